"""The quadruped on a GPU: speed of physics, collection and training, memory, and learning curves; writes quadruped.md.

    python benchmarks/quadruped.py --speed       # on an idle GPU, about ten minutes
    python benchmarks/quadruped.py --profile     # what a step consists of
    python benchmarks/quadruped.py               # only write the page again, from the records in benchmarks/quadruped/

The learning runs are ordinary runs of `proxima train`; `--add NAME RUN` records the curve of one.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "quadruped"
sys.path.insert(0, str(ROOT))
WORLDS = (1024, 2048, 4096, 16384)
SETTINGS = {"fast": "phase1_fast", "file": "phase1_monolithic"}
"""5 epochs x 4 minibatches; 10 epochs of minibatches of 64 sequences."""
MEMORY_LIMIT = {1024: 4, 2048: 8, 4096: 14}
"""GB, of the document that the preset phase1_monolithic comes from."""
BARS = {4096: 300_000, 16384: 450_000}
ROUNDS = 4
KINDS = ("gpu", "cpu")
"""Of the recorded curves: a row of the figure each."""
CURVES = {
    "episode_return": "return",
    "episode_tracking": "velocity tracking, 1 is perfect",
    "episode_level": "terrain level",
    "episode_tracking_error": "tracking error, m/s",
    "episode_success": "success rate",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true", help="measure the speed")
    parser.add_argument("--profile", action="store_true", help="print what a step consists of")
    parser.add_argument("--worlds", type=int, nargs="+", default=WORLDS)
    parser.add_argument("--one", nargs=3, metavar=("GROUND", "WORLDS", "SETTING"), help="one measurement, as JSON")
    parser.add_argument("--warm", action="store_true", help="with --one: only fill the compilers' caches")
    parser.add_argument("--kernels", action="store_true", help="only compile Warp's kernels")
    parser.add_argument("--add", nargs=2, metavar=("NAME", "RUN"), help="record the curve of a run")
    parser.add_argument("--commit", default="", help="with --speed: the commit to record")
    arguments = parser.parse_args()
    RECORDS.mkdir(exist_ok=True)
    if arguments.kernels:
        compile_kernels()
        return 0
    if arguments.one:
        ground, worlds, setting = arguments.one
        print(json.dumps(measure(ground, int(worlds), setting, rounds=1 if arguments.warm else ROUNDS)))
        return 0
    if arguments.speed:
        measure_all(arguments.worlds, arguments.commit)
    if arguments.profile:
        profile()
    if arguments.add:
        name, run = arguments.add
        (RECORDS / f"{name}.json").write_text(json.dumps(curve(Path(run))) + "\n")
    if (RECORDS / "speed.json").exists():
        report()
    return 0


# Speed ---------------------------------------------------------------------------------------------------------------


def measure_all(worlds: list[int], commit: str) -> None:
    """Every measurement in a process of its own, so that its memory is its own, too."""
    import torch

    jobs = [("rough", str(n), setting) for n in worlds for setting in SETTINGS]
    subprocess.run([sys.executable, __file__, "--kernels"], check=True)  # once for all
    for process in [start(*job, "--warm") for job in jobs]:  # compilation uses all cores of the CPU
        process.communicate()
    rows = []
    for job in jobs + [("plane", str(n), "fast") for n in worlds]:
        out, err = start(*job).communicate()
        if not out:
            raise SystemExit(err)
        rows.append(json.loads(out.splitlines()[-1]) | {"commit": commit})
        print(rows[-1], flush=True)
        machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
        (RECORDS / "speed.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


def compile_kernels() -> None:
    import torch

    from proxima.envs.locomotion.env import Quadruped

    for ground in ("plane", "rough"):
        env = Quadruped(num_envs=4, device="cuda", ground={"kind": ground})
        env.reset(0)
        env.step(torch.zeros(4, 12, device="cuda"))


def start(*job: str) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, "--one", *job[:3], *job[3:]]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def build(ground: str, worlds: int, setting: str, **options: Any) -> Any:
    from proxima.config import load_config
    from proxima.training.trainer import Trainer

    options = {"num_envs": worlds, "env_kwargs": {"ground": {"kind": ground}}, "device": "cuda", **options}
    if setting == "fast":
        options["minibatch_size"] = worlds // 4
    return Trainer(load_config(SETTINGS[setting], {"save_checkpoint": False, "compile": "on", **options}))


def measure(ground: str, worlds: int, setting: str, rounds: int) -> dict[str, Any]:
    """Milliseconds of every part, the best of the rounds, and memory."""
    import torch

    trainer = build(ground, worlds, setting)
    source, learner = trainer.source, trainer.algorithm.learner
    times: dict[str, list[float]] = {"collect": [], "prepare": [], "update": []}
    learns = ground == "rough"  # an update does not depend on the ground
    for _ in range(2):
        source.collect()  # the second one is recorded
    for _ in range(rounds):
        collect, rollout = seconds(source.collect)
        times["collect"].append(1e3 * collect)
        if learns:
            prepare, batch = seconds(learner.prepare, rollout)
            update, _ = seconds(learner.update, batch)
            times["prepare"].append(1e3 * prepare)
            times["update"].append(1e3 * update)
    if learns:
        for _ in range(min(rounds, 2)):  # an update after compilation
            times["update"].append(1e3 * seconds(learner.update, batch)[0])
        times["iteration"] = [1e3 * seconds(trainer.iterate)[0] for _ in range(rounds)]
    free, total = torch.cuda.mem_get_info()
    steps = trainer.config.ppo.num_steps
    row = {"ground": ground, "worlds": worlds, "setting": setting, "steps": steps, "gb": (total - free) / 1e9}
    row |= {name: min(values) for name, values in times.items() if values}
    if "iteration" in times:
        row["iteration"] = statistics.median(times["iteration"])  # with statistics, metrics and a snapshot
    if setting == "fast":
        row["waits"] = waits(source.collect)
        row["env"] = env_milliseconds(trainer, rounds)
        row["physics"] = physics_milliseconds(trainer.source.env, rounds)
    return row


def seconds(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    result = function(*arguments)
    torch.cuda.synchronize()
    return time.perf_counter() - start, result


def waits(function: Callable[[], Any]) -> int:
    """How often the host waits for the GPU."""
    import torch

    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


def env_milliseconds(trainer: Any, rounds: int) -> float:
    """A step of the envs alone, recorded like a rollout, with the actions of the last one."""
    from proxima.cuda_graphs import Tape

    env, actions = trainer.source.env, trainer.source.rollout.action
    tensors, tape = {name: x.clone() for name, x in env.tensors().items()}, Tape()
    env.set_tensors(tensors)
    with tape.record():
        for action in actions:
            env.step(action)
        for name, x in env.tensors().items():
            tensors[name].copy_(x)
    env.set_tensors(tensors)
    return min(1e3 * seconds(tape.replay)[0] / len(actions) for _ in range(rounds))


def physics_milliseconds(env: Any, rounds: int) -> float:
    """The physics of a step alone: from the same state in every round, with random joint targets."""
    import torch

    state, steps = env.physics.get_state()["state"], 24
    env.physics.ctrl.copy_(env._stance + 0.1 * torch.randn_like(env.physics.ctrl))

    def run() -> None:
        for _ in range(steps):
            env.physics.step(env._substeps)

    best = []
    for _ in range(rounds):
        for name, x in state.items():
            if name != "ctrl":
                env.physics.derived(name).copy_(x)
        best.append(1e3 * seconds(run)[0] / steps)
    return min(best)


def profile() -> None:
    """The kernels of a rollout, by the time they take."""
    import torch
    from torch.profiler import ProfilerActivity

    source = build("rough", 4096, "fast", compile="off").source
    for _ in range(3):
        source.collect()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        source.collect()
        torch.cuda.synchronize()
    events = [e for e in found.key_averages() if e.self_device_time_total]
    ours = [e for e in events if "at::" in e.key or "gemm" in e.key.lower() or "Memcpy" in e.key or "cub" in e.key]
    total = sum(e.self_device_time_total for e in events) / 1e3
    torch_ms, torch_count = sum(e.self_device_time_total for e in ours) / 1e3, sum(e.count for e in ours)
    print(f"kernels {total:.1f} ms, {sum(e.count for e in events)}; torch {torch_ms:.1f} ms, {torch_count}")
    for event in sorted(events, key=lambda e: -e.self_device_time_total)[:30]:
        print(f"{event.self_device_time_total / 1e3:8.2f} ms {event.count:6d}  {event.key[:110]}")


# The page ------------------------------------------------------------------------------------------------------------


def curve(run: Path) -> dict[str, Any]:
    """The metrics of a run that the page shows, thinned out."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    names = ["global_step", "wall_time", "action_std", "distill_loss", *CURVES]
    names += [name for name in rows[-1] if name.startswith(("episode_level_", "episode_success_"))]
    every = max(1, len(rows) // 120)
    kept = [*rows[::every], rows[-1]]

    def short(value: float | None) -> float | None:
        return None if value is None else float(f"{value:.4g}") if value % 1 else value

    return {name: [short(row.get(name)) for row in kept] for name in names if name in rows[-1]}


def report() -> None:
    record = json.loads((RECORDS / "speed.json").read_text())
    rows = record["rows"]
    lines = ["# The quadruped on a GPU", ""]
    lines += [f"{record['machine']}; `python benchmarks/quadruped.py --speed`; {commits(rows)}.", ""]
    lines += speed_table(rows)
    text = RECORDS / "notes.md"
    if text.exists():
        lines += ["", text.read_text().rstrip()]
    (ROOT / "benchmarks" / "quadruped.md").write_text("\n".join(lines) + "\n")
    plot(
        [{path.stem: json.loads(path.read_text()) for path in sorted(RECORDS.glob(f"{kind}-*.json"))} for kind in KINDS]
    )


def commits(rows: list[dict[str, Any]]) -> str:
    """Which rows were measured with which commit."""
    by_commit: dict[str, list[str]] = {}
    for row in rows:
        by_commit.setdefault(row["commit"], []).append(f"{row['ground']} {row['worlds']} {row['setting']}")
    if len(by_commit) == 1:
        return f"commit {rows[0]['commit']}"
    return "; ".join(f"commit {commit}: {', '.join(names)}" for commit, names in by_commit.items())


def speed_table(rows: list[dict[str, Any]]) -> list[str]:
    found = {(row["ground"], row["worlds"], row["setting"]): row for row in rows}
    lines = [
        "Policy steps per second, over all robots; a policy step is four substeps of 5 ms. An iteration is 24 steps.",
        "",
        "| ground | robots | physics alone | envs | collection | training, fast | training, file | hours to 15B, "
        "fast | file | memory, fast | file |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for ground in ("plane", "rough"):
        for worlds in sorted({row["worlds"] for row in rows}):
            if (fast := found.get((ground, worlds, "fast"))) is None:
                continue
            size = worlds * fast["steps"]
            cells = [f"{worlds / fast[name] * 1e3:,.0f}" for name in ("physics", "env")]
            cells.append(f"{size / fast['collect'] * 1e3:,.0f}")
            learned = [found.get(("rough", worlds, setting)) for setting in SETTINGS]
            rates = [row and size / (fast["collect"] + row["prepare"] + row["update"]) * 1e3 for row in learned]
            cells += [f"{rate:,.0f}" if rate else "" for rate in rates]
            cells += [f"{15e9 / rate / 3600:.1f}" if rate else "" for rate in rates]
            memory = [found.get((ground, worlds, setting)) for setting in SETTINGS]
            cells += [f"{row['gb']:.1f} GB" if row else "" for row in memory]
            lines.append(f"| {ground} | {worlds} | " + " | ".join(cells) + " |")
    for worlds, bar in BARS.items():
        row = found["rough", worlds, "fast"]
        rate = worlds * row["steps"] / (row["collect"] + row["prepare"] + row["update"]) * 1e3
        whole = worlds * row["steps"] / row["iteration"] * 1e3
        lines.append(
            f"\nWanted with {worlds} robots on rough ground, fast: {bar:,}; found: {rate:,.0f}, and {whole:,.0f} in "
            "whole iterations (median) with statistics, metrics and the snapshot for checkpoints."
        )
    memory = {worlds: found["rough", worlds, "fast"]["gb"] for worlds in MEMORY_LIMIT}
    text = ", ".join(f"{memory[worlds]:.1f} of {limit} GB ({worlds})" for worlds, limit in MEMORY_LIMIT.items())
    lines.append(f"\nMemory, of what the document of `phase1_monolithic` allows: {text}.")
    lines += ["", "Milliseconds of an iteration on rough ground:", ""]
    lines += [
        "| robots | physics | observations, rewards, resets | policy and storage | advantages | update, fast | update, "
        "file | waits of the host | share of observations, rewards, resets in a step |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for worlds in sorted({row["worlds"] for row in rows}):
        fast, file = found["rough", worlds, "fast"], found.get(("rough", worlds, "file"), {})
        physics, env = (fast["steps"] * fast[name] for name in ("physics", "env"))
        parts = [physics, env - physics, fast["collect"] - env, fast["prepare"], fast["update"], file.get("update")]
        cells = [f"{part:.1f}" if part else "" for part in parts] + [
            str(fast["waits"]),
            f"{(env - physics) / fast['collect']:.0%}",
        ]
        lines.append(f"| {worlds} | " + " | ".join(cells) + " |")
    return lines


def plot(rows: list[dict[str, dict[str, list[float | None]]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (3.6 * len(CURVES), 3.0 * len(rows))
    _, grid = plt.subplots(len(rows), len(CURVES), figsize=size, layout="constrained", squeeze=False)
    for axes, runs in zip(grid, rows, strict=True):
        for axis, (name, label) in zip(axes, CURVES.items(), strict=True):
            for title, found in runs.items():
                y = [float("nan") if value is None else value for value in found.get(name, [])]
                x = [step / 1e6 for step in found["global_step"] if step is not None]
                axis.plot(x[: len(y)], y, label=title.partition("-")[2].replace("_", " "))
            axis.set_xlabel("million steps")
            axis.set_title(label, fontsize=10)
            axis.grid(alpha=0.3)
        axes[0].legend(fontsize=7)
    plt.savefig(ROOT / "benchmarks" / "quadruped.png", dpi=90)


if __name__ == "__main__":
    sys.exit(main())
