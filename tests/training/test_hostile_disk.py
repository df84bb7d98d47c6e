"""Disks that are full, for a moment or for good, and names that they do not take."""

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from proxima import train
from proxima.config import load_config
from proxima.errors import UsageError
from proxima.runs import checkpoint
from proxima.training import saving
from proxima.training.trainer import Trainer
from tests.training.runs import SMALL, flags

CARTPOLE = SMALL | {"env": "CartPole-v1"}


@pytest.mark.slow
def test_a_file_size_limit_costs_the_checkpoint_and_says_so_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "proxima", "train", "--total-timesteps", "6000", *flags(CARTPOLE)]
    script = 'ulimit -f 20; exec "$@"'
    done = subprocess.run(["bash", "-c", script, "bash", *command], capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "trained to the end, but the end could not be saved" in done.stderr.splitlines()[-1]
    (run,) = (tmp_path / "runs" / "CartPole-v1").iterdir()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines[:-1]] == list(range(1, len(lines)))  # the last was cut
    assert "File too large" in done.stderr


@pytest.mark.slow
def test_a_disk_that_is_full_at_the_last_save_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = iter([True, True, False])
    real = checkpoint.save

    def save(*args: Any, **kwargs: Any) -> Path:
        if next(refusals):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **kwargs)

    pauses: list[float] = []
    monkeypatch.setattr(saving.time, "sleep", pauses.append)
    monkeypatch.setattr(checkpoint, "save", save)
    result = train(**CARTPOLE, total_timesteps=128)
    assert result.checkpoint is not None and len(pauses) == 2


def test_a_disk_that_is_full_for_a_moment_costs_no_older_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving.time, "sleep", lambda _: None)
    result = train(**CARTPOLE, total_timesteps=512, checkpoint_freq=128)
    before = checkpoint.list_checkpoints(result.run_dir)
    saver, boundary = saver_of(result.run_dir)
    refusals, real = iter([True, False]), checkpoint.save

    def save(*args: Any, **kwargs: Any) -> Path:
        if next(refusals):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", save)
    monkeypatch.setattr(checkpoint, "prune", lambda *_, **__: None)
    saver.save(boundary)
    assert set(before) < set(checkpoint.list_checkpoints(result.run_dir))


@pytest.mark.parametrize("keep", ["9", "all"])
def test_a_disk_that_stays_full_leaves_the_newest_and_the_best(keep: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or everything, if that is what the run was told to keep."""
    monkeypatch.setattr(saving.time, "sleep", lambda _: None)
    result = train(**CARTPOLE, total_timesteps=512, checkpoint_freq=128, keep_checkpoints=keep)
    paths = checkpoint.list_checkpoints(result.run_dir)
    best = checkpoint.find(result.run_dir, best=True)
    saver, boundary = saver_of(result.run_dir, keep_checkpoints=keep)

    def full(*_args: Any, **_kwargs: Any) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", full)
    assert saver.save(boundary) is None
    left = set(paths) if keep == "all" else {paths[-1], best}
    assert set(checkpoint.list_checkpoints(result.run_dir)) == left and len(paths) == 4


def saver_of(run_dir: Path, **options: Any) -> tuple[saving.Saver, saving.Boundary]:
    config = load_config(None, CARTPOLE | options)
    trainer = Trainer(config)
    trainer.close()
    boundary = saving.snapshot(trainer)
    assert boundary is not None
    boundary["iteration"] = 99
    return saving.Saver(config, run_dir), boundary


@pytest.mark.parametrize("length", [201, 236, 255, 300])
def test_a_name_that_is_too_long_for_checkpoints_is_refused_at_the_start(length: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"name has {length} bytes"):
        train(**CARTPOLE, total_timesteps=128, name="x" * length)
    assert not (tmp_path / "runs").exists()


def test_the_longest_name_saves(tmp_path: Path) -> None:
    assert train(**CARTPOLE, total_timesteps=128, name="x" * 200).checkpoint is not None


def test_a_path_that_is_too_long_for_checkpoints_is_refused_at_the_start(tmp_path: Path) -> None:
    deep = "/".join(["d" * 200] * 18)  # the run folder itself would fit into PATH_MAX
    runs_dir = tmp_path / deep / ("e" * (4096 - len(str(tmp_path / deep)) - 60))
    trainer = Trainer(load_config(None, CARTPOLE | {"runs_dir": str(runs_dir), "total_timesteps": 128}))
    with pytest.raises(UsageError, match="cannot be written: File name too long"):
        trainer.run()


class _FullFile(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_console_that_takes_nothing_does_not_end_the_run() -> None:
    assert train(**CARTPOLE, total_timesteps=128, console=Console(file=_FullFile())).checkpoint is not None


def test_a_pipe_that_nobody_reads_does_not_end_the_run(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "proxima", "train", "--total-timesteps", "128", *flags(CARTPOLE)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=write_end, text=True)
    os.close(write_end)
    assert done.returncode == 0 and "evaluate" in done.stdout
