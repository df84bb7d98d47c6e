"""The test of exactness at the start of a run returns an answer, whatever the env does."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import hostile_envs
import pytest
import torch

from proxima.envs.contract import VecEnv
from proxima.envs.gymnasium import exactness_trial
from proxima.envs.gymnasium.env_group import EnvGroup
from proxima.envs.gymnasium.exactness_trial import why_inexact
from proxima.envs.make import make_env
from proxima.errors import StopRequest

pytestmark = pytest.mark.slow


def hostile(**kwargs: Any) -> Any:
    return lambda: gym.make("hostile/Hostile-v0", **kwargs)


@pytest.mark.parametrize("where", ["step", "reset", "close"])
@pytest.mark.parametrize(("what", "word"), [("sys.exit", "SystemExit"), ("panic", "Panic: the game core panicked")])
def test_an_env_may_raise_anything(what: str, word: str, where: str) -> None:
    answer = why_inexact(hostile(what=what, where=where))
    if where == "close":
        assert answer is None, "close() says nothing about the state"
    else:
        assert answer is not None and word in answer


def test_a_second_env_that_cannot_be_built_is_an_answer_and_the_first_is_closed() -> None:
    built: list[Any] = []

    class Only(hostile_envs.Hostile):
        closed = False

        def close(self) -> None:
            Only.closed = True

    def build() -> gym.Env:
        if built:
            raise RuntimeError("there is one licence")
        built.append(Only())
        return built[0]

    assert "there is one licence" in str(why_inexact(build))
    assert Only.closed


@pytest.mark.parametrize("stop", [KeyboardInterrupt, StopRequest])
def test_a_request_to_stop_is_not_swallowed(stop: type[BaseException]) -> None:
    class Stopped(hostile_envs.Hostile):
        closed = False

        def strike(self, where: str) -> None:
            if where == "step" and self.life == 3:
                raise stop

        def close(self) -> None:
            Stopped.closed = True

    with pytest.raises(stop):
        why_inexact(Stopped)
    assert Stopped.closed


def test_ctrl_c_ends_the_trial() -> None:
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        why_inexact(lambda: hostile_envs.Slow(0.2))
    assert time.monotonic() - start < 3.0


@pytest.mark.parametrize("replay", [False, True])
def test_a_slow_env_is_left_alone_at_the_deadline(replay: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(exactness_trial, "TRIAL_SECONDS", 0.4)
    start = time.monotonic()
    assert why_inexact(lambda: hostile_envs.Slow(0.15, replay=replay)) == (
        "whether its state is exact could not be tested within 0.4 s"
    )
    assert time.monotonic() - start < 1.5


@pytest.mark.parametrize("replay", [False, True])
def test_a_rather_slow_env_is_compared_for_fewer_steps(replay: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(exactness_trial, "TRIAL_SECONDS", 2.0)  # as 0.5 s per step in 20 s
    start = time.monotonic()
    assert why_inexact(lambda: hostile_envs.Slow(0.05, replay=replay)) is None
    assert time.monotonic() - start < 3.0


def test_a_first_reset_and_a_constructor_may_take_their_time(monkeypatch: Any) -> None:
    monkeypatch.setattr(exactness_trial, "TRIAL_SECONDS", 0.5)

    def build() -> gym.Env:
        time.sleep(0.6)
        return hostile_envs.Slow(first_reset=0.6, replay=True)

    assert why_inexact(build) is None


@pytest.mark.parametrize("what", ["abort", "os._exit", "segfault", "sys.exit", "interrupt", "panic"])
def test_a_run_in_workers_goes_on_after_a_trial_that_failed(
    what: str, opened: list[VecEnv], tmp_path: Path, caplog: Any
) -> None:
    kwargs = {"what": what, "once": str(tmp_path / "struck")}
    env = make_env("hostile/Hostile-v0", num_envs=3, mode="async", num_workers=2, env_kwargs=kwargs)
    opened.append(env)
    env.reset(0)
    reason = env.why_inexact()
    deadly = what in ("abort", "os._exit", "segfault")
    assert reason is not None and ("could not be tested: the worker" if deadly else "cannot be saved") in reason
    assert "\n" not in reason
    assert (env.get_state() is None) == deadly  # type: ignore[attr-defined]
    step = env.step(torch.zeros(3, dtype=torch.int64))
    assert step.truncated.tolist() == [deadly, False, False]
    assert env.counters() == {"worker_restarts": int(deadly)}
    assert not env.step(torch.zeros(3, dtype=torch.int64)).ended.any()
    assert env.get_state() is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("then", ["reset", "set_state"])
def test_a_worker_that_died_in_the_trial_is_replaced_before_a_reset_or_a_state(
    then: str, opened: list[VecEnv], tmp_path: Path
) -> None:
    kwargs = {"what": "abort", "once": str(tmp_path / "struck"), "at": 4}
    options: dict[str, Any] = {"num_envs": 2, "mode": "async", "num_workers": 2, "env_kwargs": kwargs}
    env = make_env("hostile/Hostile-v0", **options)
    opened.append(env)
    env.reset(0)
    state = env.get_state()  # type: ignore[attr-defined]
    assert "could not be tested" in str(env.why_inexact())
    obs = env.reset(1) if then == "reset" else env.set_state(state)  # type: ignore[attr-defined]
    assert obs["obs"].tolist() == [[0.0], [0.0]]
    assert not env.step(torch.zeros(2, dtype=torch.int64)).ended.any()
    assert env.counters() == {"worker_restarts": 1}


def test_a_trial_that_hangs_is_ended_with_its_worker(opened: list[VecEnv], monkeypatch: Any) -> None:
    monkeypatch.setattr("proxima.envs.gymnasium.async_vec.TRIAL_SECONDS", 0.0)
    monkeypatch.setattr("proxima.envs.gymnasium.async_vec.BUILD_SECONDS", 0.5)
    env = make_env("hostile/Slow-v0", mode="async", step_timeout=0.5, env_kwargs={"seconds": 60.0})
    opened.append(env)
    env.reset(0)
    reason = str(env.why_inexact())
    assert "could not be tested: the worker did not answer within 1 s and was killed" in reason


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_state_that_the_env_cannot_give_is_a_warning(mode: str, opened: list[VecEnv], caplog: Any) -> None:
    env = make_env("hostile/BrokenState-v0", mode=mode)
    opened.append(env)
    env.reset(0)
    assert env.get_state() is not None  # type: ignore[attr-defined]
    for _ in range(3):
        env.step(torch.zeros(1, dtype=torch.int64))
    assert env.get_state() is None  # type: ignore[attr-defined]
    assert "RuntimeError: the state is too large" in caplog.text
    assert env.step(torch.zeros(1, dtype=torch.int64)).reward.tolist() == [1.0]
    assert env.counters() == {"worker_restarts": 0}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_state_that_the_env_does_not_take_is_reported(mode: str, opened: list[VecEnv]) -> None:
    from proxima.envs.gymnasium.snapshot import NotPlain

    env = make_env("hostile/BrokenState-v0", mode=mode, env_kwargs={"broken": "set_state"})
    opened.append(env)
    env.reset(0)
    with pytest.raises(NotPlain, match="Panic: the state does not fit"):
        env.set_state(env.get_state())  # type: ignore[attr-defined]
    assert env.reset(0)["obs"].tolist() == [[0.0]]


def test_envs_that_were_built_are_closed_where_a_later_one_fails() -> None:
    closed: list[Any] = []

    class Fewer(hostile_envs.Hostile):
        def close(self) -> None:
            closed.append(self)

    class Two:
        spec = gym.spec("hostile/Hostile-v0")
        left = 2

        def build(self) -> gym.Env:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("no more")
            return Fewer()

    with pytest.raises(Exception, match="no more"):
        EnvGroup(Two(), start=0, stop=3, max_failures=1)  # type: ignore[arg-type]
    assert len(closed) == 2
