"""Muscle control: control steps per second beside the bare physics, and learning to walk; writes muscle.md.

    python benchmarks/muscle.py --speed                    # on an idle machine
    python benchmarks/muscle.py --learn [--jobs 2]         # runs without a record, about ten minutes each
    python benchmarks/muscle.py                            # only write the page again

Each finished learning run writes a record to benchmarks/muscle/; delete a record to repeat its run.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from training_runs import git_commit, run_all, train

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "muscle"
ENVS, ROUNDS, STEPS = (1, 16, 32, 64), 9, 30
SEEDS = (1, 2)
TARGET = 240
"""Control steps: 8 of 10 seconds upright."""
FAST = "--preset muscle_fast --total-timesteps 330000"
ARMS = {
    "muscles": f"--env-file base_lonly {FAST}",
    "torques": f"--env-file torque_legs {FAST}",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true", help="measure the speed")
    parser.add_argument("--learn", action="store_true", help="train the runs that have no record")
    parser.add_argument("--jobs", type=int, default=1, help="runs in parallel")
    parser.add_argument("--runs-dir", default="runs")
    parser.add_argument("--options", default="", help="further options of train, recorded with the command")
    arguments = parser.parse_args()
    RECORDS.mkdir(exist_ok=True)
    if arguments.speed:
        (RECORDS / "speed.json").write_text(json.dumps(measure_speed(), indent=1) + "\n")
    if arguments.learn:
        jobs = [(arm, seed) for seed in SEEDS for arm in ARMS if not record_path(arm, seed).exists()]
        options = arguments.options.split()
        run_all(jobs, arguments.jobs, lambda job, cores: learn(*job, cores, arguments.runs_dir, options))
    report()
    return 0


def record_path(arm: str, seed: int) -> Path:
    return RECORDS / f"{arm}-{seed}.json"


def measure_speed() -> dict[str, object]:
    """Control steps per second on one core: the env, and MuJoCo's batch alone with the same controls and rates."""
    import torch

    from proxima.config.env_file import read_env_file
    from proxima.config.muscle_settings import to_dict
    from proxima.envs.muscle.env import MUSCLE, MuscleVecEnv
    from proxima.nets.muscle_net import MuscleNet

    torch.set_num_threads(1)

    def measure(name: str, count: int) -> dict[str, object]:
        env = MuscleVecEnv(num_envs=count, num_threads=1, **to_dict(read_env_file(name)))
        if env.is_hierarchical:
            torch.manual_seed(0)
            env.set_weights(MUSCLE, MuscleNet(**env.network_shape(MUSCLE)).state_dict())
        env.reset(0)
        action, substeps = torch.zeros(count, len(env.joints.names)), env.settings.substeps
        pairs = []
        for _ in range(ROUNDS):  # in turn, since the clock of the machine drifts
            whole = per_second(lambda: env.step(action), count)
            state = env.get_state()
            bare = per_second(lambda: env._batch.step(None, nstep=substeps), count)
            env.set_state(state)
            pairs.append((whole, bare))
        ratio = statistics.median(whole / bare for whole, bare in pairs)
        speed, bare = (statistics.median(x) for x in zip(*pairs, strict=True))
        print(f"{name} {count} envs: {speed:,.0f} of {bare:,.0f} control steps/s, ratio {ratio:.2f}", flush=True)
        return {"file": name, "envs": count, "env": speed, "physics": bare, "ratio": ratio}

    rows = [measure(name, count) for name in ("base_lonly", "torque_legs") for count in ENVS]
    return {"rows": rows, "commit": git_commit(), "machine": f"{platform.machine()}, 1 core of {os.cpu_count()}"}


def per_second(step: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    return STEPS * count / (time.perf_counter() - start)


def learn(arm: str, seed: int, cores: list[int], runs_dir: str, options: list[str]) -> None:
    record, run_dir = train(
        [*ARMS[arm].split(), "--seed", str(seed), *options], f"muscle-{arm}-{seed}", cores, runs_dir
    )
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    evaluate = [sys.executable, "-m", "proxima", "evaluate", str(run_dir), "--episodes", "100", "--json"]
    evaluated = json.loads(subprocess.run(evaluate, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    keys = ("global_step", "wall_time", "episode_length", "episode_return", "muscle_torque_error")
    record |= {
        "arm": arm,
        "seed": seed,
        "evaluated_return": evaluated["return"]["mean"],
        "evaluated_length": evaluated["length"]["mean"],
        "curve": [{key: row[key] for key in keys if key in row} for row in rows],
        "last": {key: value for key, value in rows[-1].items() if key.startswith("muscle_")},
    }
    record_path(arm, seed).write_text(json.dumps(record) + "\n")


def report() -> None:
    records = [json.loads(path.read_text()) for arm in ARMS for path in sorted(RECORDS.glob(f"{arm}-*.json"))]
    lines = [
        "# Muscle control",
        "",
        "Generated by `python benchmarks/muscle.py`; the scheme is in [docs/muscle.md](../docs/muscle.md).",
        "",
    ]
    speed_file = RECORDS / "speed.json"
    if speed_file.exists():
        lines += speed_lines(json.loads(speed_file.read_text()))
    if records:
        lines += learning_lines(records)
        draw(records)
    (ROOT / "benchmarks" / "muscle.md").write_text("\n".join([*lines, ""]))
    print("\n".join(lines))


def speed_lines(speed: dict) -> list[str]:
    lines = [
        "## Speed",
        "",
        "Control steps per second on one core (30 Hz, 16 physics steps each), and of `mujoco.batch` alone with the",
        "same body, rates and controls. Medians of alternating rounds; the ratio is the median of the rounds' ratios.",
        f"Commit {speed['commit']}, {speed['machine']}: `python benchmarks/muscle.py --speed`.",
        "",
        "| env file | envs | control steps/s | physics alone | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in speed["rows"]:
        cells = (row["file"], row["envs"], f"{row['env']:,.0f}", f"{row['physics']:,.0f}", f"**{row['ratio']:.2f}**")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return [*lines, ""]


def learning_lines(records: list[dict]) -> list[str]:
    lines = [
        "## Learning to walk",
        "",
        "An episode is 10 s, 300 control steps; the return is at most 300. Length and return: the last 100 training",
        "episodes (sampled actions); evaluated: 100 deterministic episodes of the final policy. Walks after: the first",
        f"iteration whose last 100 episodes are {TARGET} steps (8 s) long on average.",
        "",
        "| drive | seed | steps | length | return | evaluated length | return | walks after | torque error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in records:
        last = r["curve"][-1]
        walks = next((row for row in r["curve"] if (row["episode_length"] or 0) >= TARGET), None)
        cells = (
            r["arm"],
            r["seed"],
            f"{last['global_step']:,}",
            f"{last['episode_length']:.0f}",
            f"{last['episode_return']:.1f}",
            f"{r['evaluated_length']:.0f}",
            f"{r['evaluated_return']:.1f}",
            "-" if walks is None else f"{walks['global_step']:,} steps, {walks['wall_time']:,.0f} s",
            f"{r['last']['muscle_torque_error']:.2f} Nm" if r["last"] else "",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "![Episode length and return against control steps](muscle.png)", "", "Every run:", ""]
    lines += ["| command | commit | machine | seconds |", "| --- | --- | --- | --- |"]
    return lines + [f"| `{r['command']}` | {r['commit']} | {r['machine']} | {r['seconds']:,.0f} |" for r in records]


def draw(records: list[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained")
    for r in records:
        color = "#b8322a" if r["arm"] == "muscles" else "#1f6fb4"
        steps = [row["global_step"] / 1000 for row in r["curve"]]
        label = r["arm"] if r["seed"] == SEEDS[0] else None
        left.plot(steps, [(row["episode_length"] or 0) / 30 for row in r["curve"]], color=color, label=label)
        right.plot(steps, [row["episode_return"] or 0 for row in r["curve"]], color=color, label=label)
    left.axhline(TARGET / 30, color="#7a7a7a", ls="--", lw=1)
    left.set(xlabel="control steps (thousands)", ylabel="seconds upright", title="Episode length")
    right.set(xlabel="control steps (thousands)", ylabel="return", title="Imitation return (at most 300)")
    left.legend(frameon=False)
    figure.savefig(ROOT / "benchmarks" / "muscle.png", dpi=130)


if __name__ == "__main__":
    sys.exit(main())
