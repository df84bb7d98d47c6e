"""Checkpoints that a thread writes: training goes on meanwhile, and no guarantee depends on how a write ends."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from proxima import train
from proxima.config import load_config
from proxima.errors import ProximaError
from proxima.runs import checkpoint
from proxima.training import saving
from proxima.training.trainer import Trainer
from tests.envs.synthetic_quadruped import SYNTHETIC
from tests.training.runs import ROOT, SMALL, assert_same_end, metrics

RUN = SMALL | {"env": "CartPole-v1", "checkpoint_minutes": 0, "total_timesteps": 768, "keep_checkpoints": 9}
DQN = {"algorithm": "DQN", "save_replay": True, "iteration_steps": 128, "buffer_size": 256, "learning_starts": 100}


class SlowDisk:
    """A disk on which every checkpoint waits for `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.begun, self.release = threading.Event(), threading.Event()
        self.most = self._now = 0
        self._real = checkpoint.save
        monkeypatch.setattr(checkpoint, "save", self._save)

    def _save(self, *args: Any, **kwargs: Any) -> Path:
        self._now += 1
        self.most = max(self.most, self._now)
        self.begun.set()
        assert self.release.wait(60)
        path = self._real(*args, **kwargs)
        self._now -= 1
        return path


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.release.set()


def trainer_of(**options: Any) -> Trainer:
    return Trainer(load_config(None, RUN | options))


def iterations_of(run_dir: Path) -> list[int]:
    return [checkpoint.Checkpoint(path).iteration for path in checkpoint.list_checkpoints(run_dir)]


@pytest.mark.parametrize("algorithm", [{}, pytest.param(DQN, marks=pytest.mark.slow)], ids=["ppo", "dqn"])
def test_training_goes_on_during_a_write_which_has_the_state_of_its_boundary(
    algorithm: dict[str, Any], disk: SlowDisk
) -> None:
    trainer = trainer_of(**algorithm, name="slow", checkpoint_freq=384)
    for row in trainer.iterations():
        if row["iteration"] == 5:  # two iterations later
            assert disk.begun.wait(60) and trainer.saver.last is None
            disk.release.set()
    quick = train(**RUN | algorithm, name="quick", checkpoint_freq=384)
    assert iterations_of(trainer.run_dir) == iterations_of(quick.run_dir) == [3, 6]
    for one, two in zip(*map(checkpoint.list_checkpoints, (trainer.run_dir, quick.run_dir)), strict=True):
        assert_same_end(one, two)
    assert metrics(trainer.run_dir) == metrics(quick.run_dir)


def test_one_write_at_a_time_none_is_skipped_and_a_long_wait_is_said_once(
    disk: SlowDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(saving, "_NOTICED_WAIT", -1.0)
    disk.release.set()
    result = train(**RUN, checkpoint_freq=1)
    assert iterations_of(result.run_dir) == [1, 2, 3, 4, 5, 6] and disk.most == 1
    assert caplog.text.count("Training waited") == 1


def test_a_failed_write_is_reported_and_the_next_one_is_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures, real = iter([False, True, False, False]), checkpoint.save

    def save(*args: Any, **kwargs: Any) -> Path:
        if next(failures):
            raise OSError(errno.EIO, "Input/output error")
        return real(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", save)
    result = train(**RUN, checkpoint_freq=256)
    first, *_ = checkpoint.list_checkpoints(result.run_dir)
    assert iterations_of(result.run_dir) == [2, 6]
    message = f"No checkpoint of iteration 4 in {result.run_dir}: Input/output error. The last one is {first}."
    assert message in caplog.text


@pytest.mark.parametrize("env_fails", [False, True])
def test_what_is_no_error_of_the_disk_ends_the_run_with_its_last_boundary(
    env_fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts, real = iter([True, False]), checkpoint.save

    def save(*args: Any, **kwargs: Any) -> Path:
        if next(attempts):
            raise RuntimeError("a tensor that cannot be serialised, say")
        return real(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", save)
    trainer = trainer_of(checkpoint_freq=256)
    good = trainer.source.env.step

    def step(action: Any) -> Any:
        if env_fails and trainer.iteration == 3:
            raise RuntimeError("broken env")
        return good(action)

    monkeypatch.setattr(trainer.source.env, "step", step)
    with pytest.raises(RuntimeError, match="cannot be serialised"):
        trainer.run()
    assert iterations_of(trainer.run_dir) == [3 if env_fails else 4]  # raised where the next checkpoint was due


@pytest.mark.parametrize(
    ("ending", "message"),
    [("signal", "stopped by SIGTERM; iteration 3 is saved"), ("error", "broken env"), ("break", "")],
)
def test_every_ending_waits_for_the_write_and_saves_the_last_boundary(
    ending: str, message: str, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(checkpoint_freq=256)
    good = trainer.source.env.step

    def step(action: Any) -> Any:
        if trainer.iteration == 3 and ending == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        if trainer.iteration == 3:
            raise RuntimeError("broken env")
        return good(action)

    monkeypatch.setattr(trainer.source.env, "step", step)
    with contextlib.nullcontext() if ending == "break" else pytest.raises((ProximaError, RuntimeError), match=message):
        for row in trainer.iterations():
            if row["iteration"] == 3:
                assert disk.begun.wait(60)
                threading.Timer(0.2, disk.release.set).start()
                if ending == "break":
                    break
    assert iterations_of(trainer.run_dir) == [2, 3]


@pytest.mark.slow
def test_a_process_killed_during_a_write_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    script = f"""
import os, signal, time
from proxima import train
from proxima.runs import checkpoint, files
real, count = files._fsync, iter(range(1000))
def fsync(path):
    real(path)
    if next(count) == 8:  # in the second checkpoint, with some of its files on the disk
        os.kill(os.getpid(), signal.SIGKILL)
files._fsync = fsync
train(**{RUN | {"name": "killed", "checkpoint_freq": 128, "preset": "none"}!r})
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (run,) = (tmp_path / "runs" / "killed").iterdir()
    assert len(list(run.glob(".*.tmp"))) == 1 and iterations_of(run) == [1]
    resumed = train(resume_from=run)
    assert not list(run.glob(".*.tmp"))
    assert_same_end(train(**RUN, name="whole").checkpoint, resumed.checkpoint)


def test_a_copy_is_no_view_and_a_tensor_with_two_names_stays_one() -> None:
    weight = torch.ones(3)
    copied = saving.copies({"one": weight, "two": weight})
    held = saving.on_host({"iteration": 1, "metadata": {}, "files": {"a": copied, "b": lambda: {"x": [weight]}}})
    weight.zero_()
    assert held["files"]["a"]["one"] is held["files"]["a"]["two"]
    assert held["files"]["a"]["one"].sum() == 3 and held["files"]["b"]["x"][0] is weight


def test_a_snapshot_which_every_iteration_takes_reads_nothing_from_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"env": SYNTHETIC, "rnn": "gru", "rnn_size": 8, "minibatch_size": 4}
    trainer = trainer_of(**options, bptt_length=8)
    trainer.iterate()

    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("the host would wait for the device")

    with monkeypatch.context() as patch:
        for name in ("cpu", "numpy", "item", "tolist", "nonzero", "__bool__", "__float__", "__int__"):
            patch.setattr(torch.Tensor, name, read)
        boundary = saving.snapshot(trainer)
    assert boundary is not None and boundary["files"]["training_state.pt"]["env"] is not None
    trainer.close()
