"""What a signal or an error leaves on the disk, and what it says."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from proxima import train
from proxima.config import load_config
from proxima.errors import ProximaError
from proxima.runs import checkpoint
from proxima.track.tracker import Tracker
from proxima.training import trainer as trainer_module
from proxima.training.signals import Interrupted, StopSignals
from proxima.training.trainer import Trainer
from tests.training.runs import SMALL, flags, metrics, start, wait_for_checkpoint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "mode"),
    [
        (signal.SIGINT, 130, "batch"),
        (signal.SIGINT, 130, "async"),
        (signal.SIGTERM, 143, "batch"),
        (signal.SIGTERM, 143, "async"),
        (signal.SIGHUP, 129, "batch"),
        (signal.SIGUSR1, 138, "async"),
        (signal.SIGXCPU, 152, "batch"),
    ],
)
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


@pytest.mark.slow
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
        print(signal.Signals(stop.signum).name, flush=True)
        kill()
    print("still here")
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (process.returncode, process.stdout.split()) == (143, ["deferred", "SIGTERM"])


def test_warnings_may_repeat_and_a_demand_after_one_is_not_a_second_demand() -> None:
    script = """
import os, signal
from proxima.training.signals import Interrupted, StopSignals
with StopSignals() as signals:
    try:
        signals.hear()
        os.kill(os.getpid(), signal.SIGXCPU)
    except Interrupted as stop:
        print(signal.Signals(stop.signum).name)
        signals.defer()
    for number in (signal.SIGXCPU, signal.SIGUSR1, signal.SIGTERM):
        os.kill(os.getpid(), number)
    print("saved", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("still here")
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (process.returncode, process.stdout.split()) == (143, ["SIGXCPU", "saved"])


def test_what_nohup_ignores_stays_ignored() -> None:
    script = """
import os, signal
from proxima.training.signals import Interrupted, StopSignals
with StopSignals() as signals:
    signals.hear()
    os.kill(os.getpid(), signal.SIGHUP)
    print("still here")
"""
    command = ["bash", "-c", 'trap "" HUP; exec "$@"', "bash", sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "still here\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_an_env_that_raises_what_is_no_exception_leaves_the_last_boundary(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(load_config(None, SMALL | {"env": "CartPole-v1", "total_timesteps": 12_800}))
    good, calls = trainer.source.env.step, iter(range(10_000))

    def step(action: Any) -> Any:
        if next(calls) == 3 * SMALL["num_steps"] + 5:
            raise error
        return good(action)

    monkeypatch.setattr(trainer.source.env, "step", step)
    with pytest.raises(ProximaError, match="stopped by SIGINT" if error is KeyboardInterrupt else "GeneratorExit"):
        trainer.run()
    assert checkpoint.read_metadata(checkpoint.find(trainer.run_dir))["iteration"] == 3


def test_ctrl_c_during_the_imports_is_one_line() -> None:
    script = """
import builtins, os, signal, sys
real = builtins.__import__
def slow(name, *args, **kwargs):
    if name == "proxima.config":
        try:
            os.kill(os.getpid(), signal.SIGINT)
            import time; time.sleep(5)
        except BaseException:
            pass  # as some packages do
    return real(name, *args, **kwargs)
builtins.__import__ = slow
from proxima.__main__ import main
sys.argv = ["proxima", "envs"]
main()
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (130, "proxima: interrupted.\n")


def test_a_signal_while_the_run_starts_saves_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(load_config(None, SMALL | {"env": "InvertedPendulum-v5", "total_timesteps": 128}))
    real = trainer_module.make_tracker

    def signalled(*args: Any, **kwargs: Any) -> Tracker:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*args, **kwargs)

    monkeypatch.setattr(trainer_module, "make_tracker", signalled)
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

    owner = {"save": checkpoint, "tracker": Tracker, "env": trainer.source.env}[where]
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


def test_a_handler_of_the_calling_program_is_kept() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        with StopSignals() as signals:
            signals.hear()
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1]


def test_a_second_signal_is_ignored_by_ranks() -> None:
    """torchrun passes on the one that a scheduler may have sent to all processes."""
    with StopSignals(is_patient=True) as signals:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            signals.hear()
