"""Trains the presets of MuJoCo tasks on several seeds; writes returns.md and returns.png.

    python benchmarks/returns.py                          # every task and seed without a record
    python benchmarks/returns.py --tasks hopper --seeds 1 2 3 --jobs 2
    python benchmarks/returns.py --report                 # only write the page again

Each finished run writes a record to benchmarks/returns/; delete a record to repeat its run. With --jobs N, N runs go in
parallel, each on its own cores. After an interruption, the same command continues.
"""

import argparse
import json
import math
import os
import platform
import queue
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "returns"
# Targets of the project, and the best published result at about the same number of steps.
TASKS: dict[str, dict[str, Any]] = {
    "halfcheetah": {"target": 6500, "published": "Tianshou, 3M steps: 7337 ± 1508", "seeds": (1, 2, 3)},
    "walker2d": {"target": 4000, "published": "Tianshou, 3M steps: 4896 ± 704", "seeds": (1, 2, 3)},
    "hopper": {"target": 2600, "published": "Tianshou, 1M steps: 2609 ± 701", "seeds": (1, 2, 3, 4, 5)},
    "ant": {"target": 3500, "published": "Tianshou, 3M steps: 4079 ± 880", "seeds": (1, 2, 3)},
    "humanoid": {"target": 5000, "published": "Sample Factory, 10M steps, best model: 5439 ± 1314", "seeds": (1,)},
}
CURVE_POINTS = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, help="(default: those in the table)")
    parser.add_argument("--jobs", type=int, default=1, help="runs in parallel")
    parser.add_argument("--runs-dir", default=str(ROOT / "runs"), help="folder of the runs")
    parser.add_argument("--report", action="store_true", help="only write the page from the records")
    arguments = parser.parse_args()
    if not arguments.report:
        wanted = [(task, seed) for task in arguments.tasks for seed in arguments.seeds or TASKS[task]["seeds"]]
        missing = [job for job in wanted if not record_path(*job).exists()]
        run_all(missing, arguments.jobs, lambda job, cores: run(*job, cores, arguments.runs_dir))
    report()
    return 0


def record_path(task: str, seed: int) -> Path:
    return RECORDS / f"{task}-{seed}.json"


def run_all(jobs: list[Any], side_by_side: int, run: Callable[[Any, list[int]], None]) -> None:
    """Call `run` with every job and its share of the cores, so that parallel runs do not compete for them."""
    cores = sorted(os.sched_getaffinity(0))
    shares: queue.Queue[list[int]] = queue.Queue()
    for i in range(side_by_side):
        shares.put(cores[i::side_by_side] or cores)

    def one(job: Any) -> None:
        share = shares.get()
        try:
            run(job, share)
        finally:
            shares.put(share)

    with ThreadPoolExecutor(side_by_side) as pool:
        list(pool.map(one, jobs))


def run(task: str, seed: int, cores: list[int], runs_dir: str) -> None:
    arguments = ["--config", task, "--seed", str(seed)]
    record, _ = train(arguments, f"returns-{task}-{seed}", cores, runs_dir)
    RECORDS.mkdir(exist_ok=True)
    record_path(task, seed).write_text(json.dumps({"task": task, "seed": seed, **record}) + "\n")


def train(options: list[str], name: str, cores: list[int], runs_dir: str) -> tuple[dict[str, Any], Path]:
    """One run in a process of its own, on `cores`: what it reached and how, and its folder."""
    arguments = ["train", *options]
    print(f"{time.strftime('%H:%M:%S')} {name} on cores {cores}", flush=True)
    commit, started = git_commit(), time.time()
    done = subprocess.run(
        [sys.executable, "-m", "proxima", *arguments, "--name", name, "--runs-dir", runs_dir],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    run_dir = max((Path(runs_dir) / name).iterdir())
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    curve = [(row["global_step"], row["episode_return"]) for row in rows[:: max(1, len(rows) // CURVE_POINTS)]]
    last = rows[-1]
    record = {
        "command": "proxima " + shlex.join(arguments),
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {len(cores)} core(s) of {os.cpu_count()}",
        "steps": last["global_step"],
        "seconds": round(time.time() - started, 1),
        "steps_per_second": round(last["steps_per_second"]),
        "final_return": last["episode_return"],
        "curve": [*curve, (last["global_step"], last["episode_return"])],
    }
    print(f"{time.strftime('%H:%M:%S')} {name}: {last['episode_return']:.2f}", flush=True)
    return record, run_dir


def git_commit() -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", "proxima"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    return commit.strip() + ("+changes" if changed.strip() else "")


def report() -> None:
    records = [json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))]
    groups = {task: [r for r in records if r["task"] == task] for task in TASKS}
    groups = {task: group for task, group in groups.items() if group}
    if not groups:
        raise SystemExit(f"no records in {RECORDS}: run it without --report first")
    plot(groups)
    lines = [
        "# Returns",
        "",
        "Mean return of the last 100 training episodes (sampled actions) at the end of the run: mean ± std over seeds.",
        "Generated by `python benchmarks/returns.py`; the settings are the presets in `proxima/presets/`.",
        "",
        "| task | steps | seeds | return | target | published |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for task, group in groups.items():
        finals = [r["final_return"] for r in group]
        spread = f" ± {statistics.stdev(finals):.0f}" if len(finals) > 1 else ""
        facts = TASKS[task]
        lines.append(
            f"| {task} | {group[0]['steps'] / 1e6:.1f}M | {len(group)} | **{statistics.fmean(finals):.0f}{spread}** "
            f"| {facts['target']} | {facts['published']} |"
        )
    lines += ["", "![returns against steps](returns.png)", "", "Every run:", ""]
    lines += ["| command | commit | machine | seconds | steps/s | return |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{r['command']}` | {r['commit']} | {r['machine']} | {r['seconds']:.0f} | {r['steps_per_second']:,} "
        f"| {r['final_return']:.0f} |"
        for group in groups.values()
        for r in sorted(group, key=lambda r: r["seed"])
    ]
    lines += [
        "",
        "The published results are from the benchmark pages of Tianshou and Sample Factory (MuJoCo v3 and v4),",
        "which use their own protocols.",
        "",
    ]
    (ROOT / "benchmarks" / "returns.md").write_text("\n".join(lines))


def plot(groups: dict[str, list[dict[str, Any]]]) -> None:
    columns = 2 if len(groups) == 4 else min(3, len(groups))
    rows = math.ceil(len(groups) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.2 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(groups) :]:
        axis.set_visible(False)
    for axis, (task, group) in zip(axes.flat, groups.items(), strict=False):
        for r in sorted(group, key=lambda r: r["seed"]):
            points = [(step / 1e6, value) for step, value in r["curve"] if value is not None]
            axis.plot(*zip(*points, strict=True), linewidth=1.4, label=f"seed {r['seed']}")
        axis.axhline(TASKS[task]["target"], color="0.5", linestyle="--", linewidth=1, label="target")
        axis.set(title=task, xlabel="env steps (millions)", ylabel="episode return")
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8, frameon=False)
    figure.savefig(ROOT / "benchmarks" / "returns.png", dpi=130)


if __name__ == "__main__":
    sys.exit(main())
