"""Kills a HalfCheetah run with SIGKILL at random times, resumes it, and compares it with an uninterrupted run.

    python benchmarks/kill_resume.py                       # 50 kills
    python benchmarks/kill_resume.py --kills 5 --steps 200000

The killed run is restarted with the same command and --auto-resume, as a preemptible job would be. Writes
kill_resume.md: whether weights, optimizer, random generators and env states are bit-identical at the end.
"""

import argparse
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from proxima.runs import checkpoint

ROOT = Path(__file__).parent.parent
FILES = ("agent.pt", "optimizer.pt", "training_state.pt")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random times")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kill-resume-"))
    try:
        report = compare(folder, arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(report)
    (ROOT / "benchmarks" / "kill_resume.md").write_text(report)
    return 0 if "differ" not in report else 1


def command(folder: Path, name: str, steps: int) -> list[str]:
    options = ["--config", "halfcheetah", "--total-timesteps", str(steps), "--compile", "off"]
    options += ["--name", name, "--runs-dir", str(folder), "--tensorboard", "False", "--progress", "False"]
    return [sys.executable, "-m", "proxima", "train", *options]


def compare(folder: Path, arguments: argparse.Namespace) -> str:
    started = time.monotonic()
    subprocess.run(command(folder, "whole", arguments.steps), cwd=ROOT, check=True, capture_output=True)
    seconds = time.monotonic() - started
    moments, kills, early = random.Random(arguments.seed), 0, 0
    # The process lives long enough on average to spread the kills over the run.
    start_up, share = 4.0, seconds / arguments.kills
    killable = [*command(folder, "cut", arguments.steps), "--checkpoint-freq", "1", "--auto-resume", "True"]
    while kills < arguments.kills:
        before = whole_checkpoints(folder)
        process = subprocess.Popen(killable, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0.0, start_up + share))
        if process.poll() is not None:
            break  # the run is complete
        process.kill()
        process.wait()
        kills += 1
        lost = [path for path in before if path.exists() and checkpoint.newest_complete(path.parent) is None]
        early += whole_checkpoints(folder) == before
        print(f"kill {kills}: {len(runs(folder))} run folders, checkpoints lost: {len(lost)}", flush=True)
    subprocess.run(killable, cwd=ROOT, check=True, capture_output=True)
    return write_report(folder, arguments, kills, early)


def runs(folder: Path) -> list[Path]:
    return sorted((folder / "cut").iterdir()) if (folder / "cut").is_dir() else []


def whole_checkpoints(folder: Path) -> list[Path]:
    return [path for run in runs(folder) for path in checkpoint.list_checkpoints(run)]


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        # NaN, of an episode that did not report a number, equals NaN.
        return one.shape == two.shape and bool(((one == two) | (one != one) & (two != two)).all())
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return bool(one == two)


def write_report(folder: Path, arguments: argparse.Namespace, kills: int, early: int) -> str:
    whole, cut = checkpoint.find(folder / "whole"), checkpoint.find(folder / "cut")
    damaged = [path for path in whole_checkpoints(folder) if checkpoint.newest_complete(path.parent) is None]
    verdicts = {name: same(checkpoint.read(whole, name), checkpoint.read(cut, name)) for name in FILES}
    lineage = checkpoint.read_metadata(cut)["lineage"]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    lines = [
        "# Kill and resume",
        "",
        f"`python benchmarks/kill_resume.py --kills {arguments.kills} --steps {arguments.steps}`,",
        f"commit {commit.strip()}, {platform.machine()} with {os.cpu_count()} cores: HalfCheetah-v5, one run of",
        f"{arguments.steps:,} steps, killed {kills} times with SIGKILL at random moments (seed {arguments.seed}), each",
        "time restarted with `--auto-resume`.",
        "",
        "| what | result |",
        "| --- | --- |",
        f"| kills | {kills}, of which {early} came before the restarted process had written a checkpoint of its own |",
        f"| resumes in the lineage of the last checkpoint | {len(lineage)} |",
        f"| runs that lost all valid checkpoints | {len(damaged)} |",
    ]
    lines += [
        f"| `{name}` against the uninterrupted run | {'bit-identical' if ok else 'they differ'} |"
        for name, ok in verdicts.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
