"""Trains every task with nothing but its env id and the number of steps; writes presets.md.

    python benchmarks/presets.py                          # every task and seed without a record: hours on two cores
    python benchmarks/presets.py --tasks CartPole-v1 Pendulum-v1 --seeds 1 2 3 --jobs 2
    python benchmarks/presets.py --report                 # only write the page again

The runs use a wheel of this checkout, installed into a folder of its own, and start in an empty folder. Each finished
run writes a record to benchmarks/presets/; delete a record to repeat its run. With --jobs N, N runs go in parallel,
each on its own cores.
"""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from returns import git_commit, run_all

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "presets"
EPISODES = 100
# Steps and target: the mean return of the last 100 training episodes.
TASKS: dict[str, tuple[int, float | None]] = {
    "CartPole-v1": (100_000, 500),
    "Acrobot-v1": (100_000, -85),
    "Pendulum-v1": (100_000, -180),
    "MountainCarContinuous-v0": (60_000, 90),
    "MountainCar-v0": (1_000_000, -115),
    "LunarLander-v3": (1_000_000, 240),
    "LunarLanderContinuous-v3": (1_000_000, 265),
    "BipedalWalker-v3": (5_000_000, 280),
    "HalfCheetah-v4": (1_000_000, 5500),
    "Hopper-v5": (1_000_000, 2500),
    "Swimmer-v5": (1_000_000, 280),
    "Reacher-v5": (1_000_000, -5),
    "InvertedDoublePendulum-v5": (1_000_000, 9000),
    "InvertedPendulum-v5": (300_000, None),
    "Pusher-v5": (1_000_000, None),
    "FrozenLake-v1": (300_000, None),
    "Taxi-v4": (300_000, None),
    "CliffWalking-v1": (300_000, None),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="runs in parallel")
    parser.add_argument("--options", default="", help="further options of train, recorded with the command")
    parser.add_argument("--report", action="store_true", help="only write the page from the records")
    arguments = parser.parse_args()
    if not arguments.report:
        wanted = [(task, seed) for task in arguments.tasks for seed in arguments.seeds]
        missing = [job for job in wanted if not record_path(*job).exists()]
        with tempfile.TemporaryDirectory() as folder:
            site = install_wheel(Path(folder))
            commit, extra = git_commit(), shlex.split(arguments.options)
            run_all(missing, arguments.jobs, lambda job, cores: run(*job, cores, str(site), commit, extra))
    report()
    return 0


def record_path(task: str, seed: int) -> Path:
    return RECORDS / f"{task}-{seed}.json"


def install_wheel(folder: Path) -> Path:
    """A wheel of this checkout, without its dependencies, in a folder of its own."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


def run(task: str, seed: int, cores: list[int], site: str, commit: str, extra: list[str]) -> None:
    print(f"{time.strftime('%H:%M:%S')} {task} seed {seed} on cores {cores}", flush=True)
    environment = {**os.environ, "PYTHONPATH": site}

    def proxima(*arguments: str, cwd: str) -> str:
        command = [sys.executable, "-m", "proxima", *arguments]
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        if done.returncode:
            raise SystemExit(f"{task} seed {seed} failed:\n{done.stderr[-2000:]}")
        return done.stdout

    options = ["--env", task, "--total-timesteps", str(TASKS[task][0]), "--seed", str(seed), *extra]
    with tempfile.TemporaryDirectory() as empty:
        started = time.time()
        proxima("train", *options, "--progress", "False", "--name", "run", cwd=empty)
        seconds = time.time() - started
        (run_dir,) = (Path(empty) / "runs" / "run").iterdir()
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        evaluated = json.loads(proxima("evaluate", str(run_dir), "--episodes", str(EPISODES), "--json", cwd=empty))
    record = {
        "task": task,
        "seed": seed,
        "command": "proxima train " + " ".join(options),
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {len(cores)} core(s) of {os.cpu_count()}",
        "steps": rows[-1]["global_step"],
        "seconds": round(seconds, 1),
        "final_return": rows[-1]["episode_return"],
        "evaluated_return": evaluated["return"]["mean"],
    }
    RECORDS.mkdir(exist_ok=True)
    record_path(task, seed).write_text(json.dumps(record) + "\n")
    print(f"{time.strftime('%H:%M:%S')} {task} seed {seed}: {record['final_return']:.2f}", flush=True)


def report() -> None:
    records = [json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))]
    lines = [
        "# Presets",
        "",
        "`proxima train --env ENV --total-timesteps N` from a wheel in an empty folder, with no other option: the",
        "preset for the env is found by its id. Return: the last 100 training episodes (sampled actions); evaluated:",
        f"{EPISODES} deterministic episodes of the final policy. Mean, and each seed. Generated by",
        "`python benchmarks/presets.py`.",
        "",
        "| env | steps | target | return | each seed | evaluated | each seed | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for task, (_, target) in TASKS.items():
        found = sorted((r for r in records if r["task"] == task), key=lambda r: r["seed"])
        if not found:
            continue
        trained, evaluated = ([r[key] for r in found] for key in ("final_return", "evaluated_return"))
        lines.append(
            f"| {task} | {found[0]['steps']:,} | {'' if target is None else f'{target:,}'} "
            f"| **{statistics.mean(trained):,.1f}** | {' '.join(f'{x:,.1f}' for x in trained)} "
            f"| **{statistics.mean(evaluated):,.1f}** | {' '.join(f'{x:,.1f}' for x in evaluated)} "
            f"| {statistics.median(r['seconds'] for r in found):,.0f} |"
        )
    lines += ["", "Every run:", "", "| command | commit | machine | seconds |", "| --- | --- | --- | --- |"]
    lines += [f"| `{r['command']}` | {r['commit']} | {r['machine']} | {r['seconds']:,.0f} |" for r in records]
    (ROOT / "benchmarks" / "presets.md").write_text("\n".join([*lines, ""]))
    print("\n".join(lines[: len(lines) - len(records) - 5]))


if __name__ == "__main__":
    sys.exit(main())
