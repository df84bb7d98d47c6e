"""Small runs, in processes of their own where they are to be killed."""

import gc
import json
import multiprocessing
import os
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from proxima import train
from proxima.runs import checkpoint

SMALL = {
    "num_envs": 4,
    "num_threads": 1,  # tests run side by side
    "num_steps": 32,
    "minibatch_size": 32,
    "update_epochs": 2,
    "lr_schedule": "linear",
    "tensorboard": False,
    "progress": False,
    "compile": "off",
}
TIMES = {
    "wall_time",
    "steps_per_second",
    "decisions_per_second",
    "collect_seconds",
    "advantage_seconds",
    "store_seconds",
    "label_seconds",
    "update_seconds",
    "muscle_seconds",
}
FILES = ("agent.pt", "optimizer.pt", "training_state.pt")
# A process that trains as the command does, with the test's own envs registered.
SCRIPT = "import sys; from tests import probes; probes.register(); from proxima.cli import main; sys.exit(main())"
ROOT = Path(__file__).parents[2]


def flags(options: dict[str, Any]) -> list[str]:
    """The options of a command."""
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]


def start(*arguments: str) -> subprocess.Popen[str]:
    """A process of its own; without presets, as tests in this process are (`conftest.py`)."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments, "--preset", "none"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def fork(**options: Any) -> BaseProcess:
    """A run in a process of its own that loses no time in imports."""
    gc.collect()  # physics of earlier runs would wait in the child for threads that it does not have
    process = multiprocessing.get_context("fork").Process(target=train, kwargs=options, daemon=True)
    process.start()
    return process


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of a run, without what depends on the clock."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def wait_for_checkpoint(
    folder: Path, process: subprocess.Popen[str] | BaseProcess, count: int = 1, *, name: str = "cut"
) -> None:
    """Until the run has so many."""
    deadline = time.monotonic() + 240
    while len(list(folder.glob(f"*/{name}-*/metadata.yaml"))) < count:
        if isinstance(process, subprocess.Popen):
            assert process.poll() is None, process.communicate()[1]
        else:
            assert process.is_alive(), f"the run ended with {process.exitcode}"
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.01)


def same(one: Any, two: Any) -> bool:
    """Equality of states, bit for bit."""
    if isinstance(one, torch.Tensor):
        # NaN, of an episode that did not report a number, equals NaN.
        alike = one.dtype == two.dtype and one.shape == two.shape
        return alike and bool(((one == two) | (one != one) & (two != two)).all())
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return bool(one == two) or (one != one and two != two)  # NaN of an episode that did not report a number


def assert_same_end(one: Path, two: Path) -> None:
    """Equality of all files of two checkpoints."""
    names = {path.name for path in one.glob("*.pt")}
    assert names == {path.name for path in two.glob("*.pt")} and names >= set(FILES)
    for name in names:
        assert same(checkpoint.read(one, name), checkpoint.read(two, name)), f"{name} differs"


def killed_run(*, by_command: bool = False, **options: Any) -> Path:
    """The folder of a run that was killed soon after its first checkpoint.

    `by_command`: started by the command, in place of a fork, which PyTorch's compiler and CUDA do not survive.
    """
    runs = Path("runs/cut")
    if by_command or options.get("compile") == "on" or torch.cuda.is_initialized():
        command = start("train", "--name", "cut", "--checkpoint-freq", "1", *flags(options))
        try:
            wait_for_checkpoint(runs, command)
        finally:
            command.kill()
            command.communicate()
    else:
        process = fork(name="cut", checkpoint_freq=1, **options)
        try:
            wait_for_checkpoint(runs, process)
        finally:
            process.kill()
            process.join()
    (folder,) = runs.iterdir()
    return folder
