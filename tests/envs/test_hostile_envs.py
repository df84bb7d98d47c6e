"""Envs that raise a BaseException, return unreadable values, or leave processes behind, in both modes."""

import os
import signal
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import gymnasium as gym
import hostile_envs
import numpy as np
import pytest
import torch

from proxima.envs.contract import VecEnv
from proxima.envs.gymnasium import worker_handle
from proxima.envs.gymnasium.async_vec import AsyncVecEnv
from proxima.envs.gymnasium.env_group import EnvGroup
from proxima.envs.gymnasium.step_values import read_flag, read_reward, reported_number, reported_success
from proxima.envs.gymnasium.sync_vec import SyncVecEnv
from proxima.envs.make import make_env
from proxima.errors import EnvFailure, StopRequest, UsageError

MODES = ("sync", "async")


def step(env: VecEnv) -> Any:
    return env.step(torch.zeros(env.num_envs, dtype=torch.int64))


# Exceptions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["step", "reset", "close"])
@pytest.mark.parametrize("what", ["sys.exit", "panic"])
def test_whatever_an_env_raises_costs_only_its_own_episode(
    what: str, where: str, mode: str, opened: list[VecEnv], tmp_path: Path, caplog: Any
) -> None:
    kwargs = {"what": what, "where": where, "once": str(tmp_path / "struck")}
    env = make_env("hostile/Hostile-v0", num_envs=2, mode=mode, num_workers=1, env_kwargs=kwargs)
    opened.append(env)
    env.reset(0)
    pids = [worker.pid for worker in env._group.workers] if isinstance(env, AsyncVecEnv) else []
    rewards = [step(env).reward.tolist() for _ in range(8)]
    assert rewards[1] == ([0.0, 1.0] if where == "step" else [1.0, 1.0])
    assert env.counters() == {"worker_restarts": int(where != "close")}
    if where != "close":
        assert f"raised in {where}" in caplog.text and ("SystemExit" if what == "sys.exit" else "Panic") in caplog.text
    assert pids == ([worker.pid for worker in env._group.workers] if isinstance(env, AsyncVecEnv) else [])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["sys.exit", "panic"])
def test_a_constructor_that_raises_anything_is_one_line(what: str, mode: str) -> None:
    with pytest.raises(UsageError, match=r"^cannot build env 'hostile/Hostile-v0': (SystemExit|Panic): ") as caught:
        make_env("hostile/Hostile-v0", mode=mode, env_kwargs={"what": what, "where": "build"})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("where", ["step", "reset", "close"])
@pytest.mark.parametrize("stop", [KeyboardInterrupt, StopRequest])
def test_a_request_to_stop_goes_through_an_env(stop: type[BaseException], where: str, monkeypatch: Any) -> None:
    def strike(self: Any, here: str) -> None:
        if here == where:
            raise stop

    env = SyncVecEnv("hostile/Hostile-v0")
    env.reset(0)
    with monkeypatch.context() as patch:
        patch.setattr(hostile_envs.Hostile, "strike", strike)
        with pytest.raises(stop):
            for _ in range(6):
                step(env)
            env.close()
    assert env.counters() == {"worker_restarts": 0}


def test_ctrl_c_reaches_the_user_out_of_the_middle_of_a_step() -> None:
    env = SyncVecEnv("hostile/Slow-v0", env_kwargs={"seconds": 5.0})
    env.reset(0)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        step(env)
    assert time.monotonic() - start < 3.0
    assert env.counters() == {"worker_restarts": 0}


def test_an_interrupt_raised_in_a_worker_is_the_envs_own(opened: list[VecEnv], tmp_path: Path, caplog: Any) -> None:
    kwargs = {"what": "interrupt", "once": str(tmp_path / "struck")}
    env = AsyncVecEnv("hostile/Hostile-v0", num_envs=2, num_workers=1, env_kwargs=kwargs)
    opened.append(env)
    env.reset(0)
    pid = env._group.workers[0].pid
    step(env)
    assert step(env).truncated.tolist() == [True, False]
    assert "env 0 (worker 0) raised in step" in caplog.text and env._group.workers[0].pid == pid


def test_a_module_that_exits_when_it_is_imported(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "leaves_at_once.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=r"the module leaves_at_once cannot be imported \(SystemExit"):
        make_env("leaves_at_once:Some-v0")


# Values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("odd", "score", "success"),
    [
        ({"info": None, "reset_info": None}, np.nan, np.nan),
        ({"info": ["score"]}, np.nan, np.nan),
        ({"info": {"score": 10**400, "is_success": 10**400}}, np.nan, 1.0),
        ({"info": {"score": np.array(2.0), "is_success": np.array(False)}}, 2.0, 0.0),
        ({"info": {"score": [1], "is_success": "yes"}}, np.nan, np.nan),
        ({"info": {"score": 1, "is_success": float("nan")}}, 1.0, np.nan),
        ({"terminated": np.bool_(True)}, 3.0, 1.0),
        ({"terminated": np.array([True])}, 3.0, 1.0),
        ({"terminated": 1}, 3.0, 1.0),
        ({"reward": np.array([1.0])}, 3.0, 1.0),
        ({"reward": np.array(1, np.int8)}, 3.0, 1.0),
        ({"reward": Decimal(1)}, 3.0, 1.0),
        ({"reward": True}, 3.0, 1.0),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_what_can_be_read_ends_the_episode_as_the_env_says(
    odd: dict[str, Any], score: float, success: float, mode: str, opened: list[VecEnv]
) -> None:
    env = make_env("hostile/Returns-v0", mode=mode, env_kwargs=odd)
    opened.append(env)
    env.reset(0)
    for _ in range(3):
        step(env)
        last = step(env)
        assert last.terminated.tolist() == [True] and last.reward.tolist() == [1.0]
        assert last.episodes.success is not None
        np.testing.assert_equal([last.episodes.info["score"].item(), last.episodes.success.item()], [score, success])
    assert env.counters() == {"worker_restarts": 0}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"reward": None}, "TypeError: the reward is None, but it must be a number"),
        ({"reward": "1.5"}, "TypeError: the reward is '1.5', but it must be a number"),
        ({"reward": np.ones(2)}, "TypeError: the reward is an array of shape (2,), but it must be a number"),
        ({"reward": 1j}, "TypeError: the reward is 1j"),
        ({"reward": 10**400}, "OverflowError: int too large to convert to float"),
        ({"terminated": None}, "TypeError: terminated is None, but it must be True or False"),
        ({"terminated": "False"}, "TypeError: terminated is 'False'"),
        ({"terminated": np.array([True, False])}, "TypeError: terminated is an array of shape (2,)"),
        ({"info": hostile_envs.UnreadableInfo(score=1), "terminated": True}, "RuntimeError: the info cannot be read"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_what_cannot_be_read_is_the_envs_failure(
    odd: dict[str, Any], reason: str, mode: str, opened: list[VecEnv], caplog: Any
) -> None:
    env = make_env("hostile/Returns-v0", num_envs=2, mode=mode, num_workers=1, env_kwargs=odd)
    opened.append(env)
    env.reset(0)
    step(env)
    last = step(env)
    assert last.truncated.all() and not last.terminated.any() and not last.reward.any()
    assert "env 1" in caplog.text and "raised in step" in caplog.text and reason in caplog.text
    assert env.counters() == {"worker_restarts": 2}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_value_that_is_never_readable_ends_the_run_with_the_reason(mode: str, opened: list[VecEnv]) -> None:
    env = make_env("hostile/Returns-v0", mode=mode, env_kwargs={"reward": None}, wrappers=[SecondStepFirst])
    opened.append(env)
    env.reset(0)
    with pytest.raises(EnvFailure, match=r"'hostile/Returns-v0' failed 5 times in a row.*the reward is None"):
        for _ in range(6):
            step(env)


class SecondStepFirst(gym.Wrapper):
    """Its episodes start with the step that returns an odd value."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        result = self.env.reset(**kwargs)
        self.unwrapped.count = 1  # type: ignore[attr-defined]
        return result


def test_a_failure_outside_the_envs_is_not_taken_for_a_dead_worker(opened: list[VecEnv]) -> None:
    def broken(self: EnvGroup, bank: int) -> None:
        raise ZeroDivisionError("the bookkeeping is wrong")

    def in_the_worker(env: gym.Env) -> gym.Env:
        EnvGroup.step = broken  # type: ignore[method-assign]
        return env

    env = AsyncVecEnv("hostile/Hostile-v0", wrappers=[in_the_worker])
    opened.append(env)
    env.reset(0)
    with pytest.raises(EnvFailure, match="failed outside the envs: ZeroDivisionError: the bookkeeping is wrong"):
        step(env)


def test_numbers_by_themselves() -> None:
    assert read_reward(np.float32(0.5)) == 0.5 and read_reward(torch.tensor([2.0])) == 2.0
    assert read_flag(torch.tensor(True), "terminated") is True and read_flag(np.int8(0), "truncated") is False
    assert np.isnan(reported_number(10**400)) and reported_number(np.array([7])) == 7.0
    assert np.isnan(reported_success({})) and reported_success({"success": np.True_}) == 1.0


# Processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("what", ["helper", "helper by command"])
def test_a_worker_is_dead_even_if_a_helper_of_its_env_lives_on(
    what: str, opened: list[VecEnv], tmp_path: Path, caplog: Any
) -> None:
    kwargs = {"what": what, "once": str(tmp_path / "struck")}
    env = AsyncVecEnv("hostile/Hostile-v0", env_kwargs=kwargs)
    opened.append(env)
    env.reset(0)
    step(env)
    start = time.monotonic()
    assert step(env).truncated.tolist() == [True]
    assert time.monotonic() - start < 5.0
    assert "exited with code 5" in caplog.text
    assert not step(env).ended.any()
    start = time.monotonic()
    env.close()
    assert time.monotonic() - start < 5.0


@pytest.mark.slow
def test_a_large_command_to_a_dead_worker_does_not_block(opened: list[VecEnv]) -> None:
    env = AsyncVecEnv("hostile/Hostile-v0", wrappers=[with_helper])
    opened.append(env)
    env.reset(0)
    worker = env._group.workers[0]
    os.kill(worker.pid, signal.SIGKILL)
    start = time.monotonic()
    worker.call("set_state", states=bytes(2**24))
    with pytest.raises(worker_handle.WorkerDied, match="SIGKILL"):
        worker.wait()
    worker.kill()
    assert time.monotonic() - start < 5.0
    with pytest.raises(worker_handle.WorkerDied, match="has ended"):
        worker.wait()


def with_helper(env: gym.Env) -> gym.Env:
    """Start a process that keeps the worker's file descriptors."""
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    return env


def test_an_answer_that_was_interrupted_is_taken_up_again(opened: list[VecEnv], monkeypatch: Any) -> None:
    env = AsyncVecEnv("hostile/Hostile-v0", num_envs=1)
    opened.append(env)
    env.reset(0)
    worker = env._group.workers[0]
    worker.call("get_state")
    real, calls = worker._await_data, []

    def interrupt_the_second() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real()

    monkeypatch.setattr(worker, "_await_data", interrupt_the_second)
    with pytest.raises(KeyboardInterrupt):
        worker.wait()
    kind, (states, failures, _) = worker.wait()
    assert kind == worker_handle.wire.ANSWER and isinstance(states, list) and failures == []


@pytest.mark.slow
def test_a_slow_start_of_many_envs_has_time_for_each(monkeypatch: Any, opened: list[VecEnv]) -> None:
    monkeypatch.setattr(worker_handle, "BUILD_SECONDS", 1.5)

    def slowly(env: gym.Env) -> gym.Env:
        time.sleep(0.6)
        return env

    env = AsyncVecEnv("hostile/Hostile-v0", num_envs=4, num_workers=1, wrappers=[slowly], step_timeout=1.0)
    opened.append(env)
    assert env.reset(0)["obs"].shape == (4, 1)
