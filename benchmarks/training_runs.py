"""What the benchmarks of returns share: training runs in processes of their own, and a record of each."""

import json
import math
import os
import platform
import queue
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from proxima.report.runs import Run, load_run

ROOT = Path(__file__).parent.parent
CURVE_POINTS = 200


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


def train(
    options: list[str], name: str, cores: list[int], runs_dir: str, *, continues: bool = False
) -> tuple[dict[str, Any], Path]:
    """One run in a process of its own, on `cores`: what it reached and how, and its folder.

    `continues`: if a run of this name was interrupted, go on from its last checkpoint; if it is complete, take it.
    """
    print(f"{time.strftime('%H:%M:%S')} {name} on cores {cores}", flush=True)
    folder = Path(runs_dir) / name
    parts, earlier = _parts(folder), _read_commits(folder) if continues else []
    commits = _write_commits(folder, [*earlier, git_commit()])
    own = ["--name", name, "--runs-dir", runs_dir, "--progress", "False"]
    proxima(["train", *options, *own, *(["--auto-resume", "True"] if continues else [])], name, cores)
    if _parts(folder) == parts:  # it was complete: nothing was trained with this commit
        commits = _write_commits(folder, earlier)
    run = load_run(_parts(folder)[-1])
    reached = run.columns["episode_return"]
    record = {
        "command": "proxima " + shlex.join(["train", *options]),
        "commit": ", ".join(commits),
        "date": time.strftime("%Y-%m-%d"),
        "cores": len(cores),
        "machine": f"{platform.machine()}, {len(cores)} core(s) of {os.cpu_count()}",
        "steps": int(run.columns["global_step"][-1]),
        "seconds": round(float(run.columns["wall_time"][-1]), 1),
        "steps_per_second": round(float(run.columns["global_step"][-1] / run.columns["wall_time"][-1])),
        "parts": 1 + len(run.ancestors),
        "final_return": float(reached[np.isfinite(reached)][-1]),
        "curve": curve(run, "episode_return"),
    }
    print(f"{time.strftime('%H:%M:%S')} {name}: {record['final_return']:.2f}", flush=True)
    return record, run.path


def repeats(record: dict[str, Any], name: str, cores: list[int]) -> bool:
    """Whether the first tenth of a recorded run has the same returns with the present code, to the digits recorded.

    Training is deterministic, so a change of the code that changes what is learned shows within a few updates. Other
    numbers of threads round differently, so it needs as many cores.
    """
    if len(cores) < record["cores"]:
        raise SystemExit(f"{name} was trained on {record['cores']} cores; each job has {len(cores)}: lower --jobs")
    cores = cores[: record["cores"]]
    print(f"{time.strftime('%H:%M:%S')} beginning of {name} on cores {cores}", flush=True)
    recorded = [point for point in record["curve"] if point[0] <= record["steps"] / 10]
    if not recorded:
        raise SystemExit(f"{name} has no point of its curve to compare with in the first tenth of the run")
    options = shlex.split(record["command"])[1:]
    again: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as runs_dir:
        own = ["--name", "beginning", "--runs-dir", runs_dir, "--progress", "False", "--save-checkpoint", "False"]
        process = start([*options, *own], cores, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
        try:
            while process.poll() is None and not (again := _beginning(Path(runs_dir), recorded[-1][0])):
                time.sleep(1)
        finally:
            process.kill()
            process.wait()
    if not again:
        raise SystemExit(f"{name}: the command of its record fails now")
    return all(again.get(step) == value for step, value in recorded)


def _beginning(runs_dir: Path, last: int) -> dict[int, float]:
    """Returns by env step of the run in a folder; empty if it has not come to the step `last` yet."""
    files = list(runs_dir.glob("*/*/metrics.jsonl"))
    if not files or not files[0].stat().st_size:
        return {}
    steps, values = load_run(files[0].parent).curve("episode_return")
    return dict(map(_point, steps, values)) if len(steps) and steps[-1] >= last else {}


def curve(run: Run, metric: str) -> list[tuple[int, float]]:
    """Points `(env steps, value)` of a metric, few enough to plot."""
    steps, values = run.curve(metric)
    shown = {*range(0, len(steps), math.ceil(len(steps) / CURVE_POINTS)), len(steps) - 1}
    return [_point(steps[i], values[i]) for i in sorted(shown)]


def _point(step: float, value: float) -> tuple[int, float]:
    return int(step), float(f"{value:.5g}")


def evaluate(run_dir: Path, episodes: int, cores: list[int], *options: str) -> dict[str, Any]:
    """Episodes of the final policy, with deterministic actions unless the options say otherwise."""
    arguments = ["evaluate", str(run_dir), "--episodes", str(episodes), "--json", *options]
    return json.loads(proxima(arguments, f"evaluation of {run_dir}", cores))


def proxima(arguments: list[str], name: str, cores: list[int], **options: Any) -> str:
    """Output of a command on these cores."""
    process = start(arguments, cores, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **{"cwd": ROOT, **options})
    output, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"{name} failed:\n{errors[-2000:]}")
    return output


def start(arguments: list[str], cores: list[int], **options: Any) -> subprocess.Popen[str]:
    """A command of Proxima in a process of its own, on these cores."""
    command = [sys.executable, "-m", "proxima", *arguments]
    return subprocess.Popen(command, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores), **options)


def git_commit() -> str:
    """The last commit that changed the package, with +changes if the package differs from it.

    So runs with the same commit were trained by the same code, whatever was written about them in between: what presets
    say they reach (`about: reaches`) does not count as a change.
    """
    commits = _git("log", "--format=%h", "--abbrev=7", "--", "proxima").split()
    commit = next(commit for commit in commits if _changes(f"{commit}^", commit))
    return commit + ("+changes" if _changes("HEAD") or _git("ls-files", "-o", "--exclude-standard", "proxima") else "")


def _changes(*between: str) -> bool:
    """Whether the package changed, apart from what presets say they reach."""
    lines = _git("diff", "--unified=0", "--no-renames", *between, "--", "proxima").splitlines()
    changed = [line for line in lines if line[:1] in ("+", "-") and line[:3] not in ("+++", "---")]
    binary = any(line.startswith("Binary files") for line in lines)
    return binary or any(not line[1:].lstrip().startswith("reaches: ") for line in changed)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _parts(folder: Path) -> list[Path]:
    """The folders of a run, one for its start and one for each resume, oldest first."""
    return sorted(path for path in folder.glob("*") if path.is_dir())


def _read_commits(folder: Path) -> list[str]:
    """Commits that the parts of a run were trained with; written down before each, because it may be killed."""
    file = folder / "commits.txt"
    return file.read_text().split() if file.exists() else []


def _write_commits(folder: Path, commits: list[str]) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    different = list(dict.fromkeys(commits))
    (folder / "commits.txt").write_text("\n".join(different))
    return different
