"""What a signal or an error leaves on the disk, and what it says."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from proxima import checkpoint, train
from proxima.config import load_config
from proxima.errors import ProximaError
from proxima.track.tracker import Tracker
from proxima.training.trainer import Trainer
from tests.training.runs import SMALL, flags, metrics, start, wait_for_checkpoint


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("mode", ["batch", "async"])
def test_a_signal_saves_the_last_boundary_and_says_how_to_go_on(
    number: signal.Signals, code: int, mode: str, tmp_path: Path
) -> None:
    options = SMALL | {"env": "Hopper-v5", "vec_env_mode": mode}
    process = start("train", "--name", "cut", "--total-timesteps", "1M", "--checkpoint-freq", "128", *flags(options))
    wait_for_checkpoint(tmp_path / "runs" / "cut", process)
    time.sleep(0.2)
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    (run,) = (tmp_path / "runs" / "cut").iterdir()
    assert process.returncode == code, error
    assert f"stopped by {number.name}" in error and f"proxima resume {run.relative_to(tmp_path)}" in error
    rows = metrics(run)
    assert checkpoint.read_metadata(checkpoint.find(run))["iteration"] == rows[-1]["iteration"]
    resumed = train(resume_from=run, total_timesteps=rows[-1]["global_step"] + 256)
    assert metrics(resumed.run_dir)[0]["iteration"] == rows[-1]["iteration"] + 1


def test_a_signal_before_the_first_iteration_is_over_saves_the_start(tmp_path: Path) -> None:
    options = SMALL | {"env": "Hopper-v5", "num_steps": 100_000}
    process = start("train", "--name", "cut", "--total-timesteps", "10M", *flags(options))
    while not list((tmp_path / "runs").glob("cut/*/metrics.jsonl")):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert checkpoint.read_metadata(checkpoint.find(tmp_path / "runs" / "cut"))["iteration"] == 0


def test_the_first_signal_waits_to_be_heard_and_a_second_one_does_not() -> None:
    script = """
import os, signal, sys
from proxima.training.signals import Interrupted, StopSignals
def kill():
    os.kill(os.getpid(), signal.SIGTERM)
with StopSignals() as signals:
    kill()
    print("deferred")
    try:
        signals.hear()
    except Interrupted as stop:
        print(stop.name, flush=True)
        kill()
    print("still here")
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (process.returncode, process.stdout.split()) == (143, ["deferred", "SIGTERM"])


def test_a_signal_while_the_run_starts_saves_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(load_config(None, SMALL | {"env": "InvertedPendulum-v5", "total_timesteps": 128}))
    real = Tracker.__init__

    def signalled(*args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        real(*args, **kwargs)

    monkeypatch.setattr(Tracker, "__init__", signalled)
    with pytest.raises(ProximaError, match="stopped by SIGTERM; iteration 0 is saved") as stop:
        trainer.run()
    assert stop.value.exit_code == 143


@pytest.mark.parametrize("where", ["save", "tracker", "env"])
def test_a_signal_at_the_very_end_loses_nothing(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the last save, and while the tracker and the envs are being closed."""
    trainer = Trainer(load_config(None, SMALL | {"env": "InvertedPendulum-v5", "total_timesteps": 128}))

    def signalled(function: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return function(*args, **kwargs)

        return wrapped

    owner = {"save": checkpoint, "tracker": Tracker, "env": trainer.env}[where]
    name = "save" if where == "save" else "close"
    monkeypatch.setattr(owner, name, signalled(getattr(owner, name)))
    if where == "save":
        with pytest.raises(ProximaError, match="stopped by SIGTERM; iteration 1 is saved"):
            trainer.run()
    else:
        trainer.run()
    assert checkpoint.read_metadata(checkpoint.find(trainer.run_dir))["iteration"] == 1


def test_any_error_leaves_the_last_boundary_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(load_config(None, SMALL | {"env": "InvertedPendulum-v5", "total_timesteps": 12_800}))
    good, calls = trainer.algorithm.learner.update, iter(range(100))

    def update(*args: Any) -> Any:
        if next(calls) == 3:
            raise RuntimeError("out of memory, say")
        return good(*args)

    monkeypatch.setattr(trainer.algorithm.learner, "update", update)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.run()
    assert checkpoint.read_metadata(checkpoint.find(trainer.run_dir))["iteration"] == 3
