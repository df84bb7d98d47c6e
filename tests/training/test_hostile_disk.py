"""Disks that are full, for a moment or for good, and names that they do not take."""

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
