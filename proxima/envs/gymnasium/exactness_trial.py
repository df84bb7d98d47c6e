"""Tests whether an env continues exactly after its state was restored into another object.

It runs on two envs of its own at the start of a run. Whatever these do, short of ending the process, the
result is an answer and never an exception. No torch here: worker processes import this file.
"""

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from proxima.envs.gymnasium.env_errors import asks_to_stop, env_errors_ignored, first_line
from proxima.envs.gymnasium.snapshot import Snapshot
from proxima.envs.gymnasium.step_values import read_flag, read_reward

TRIAL_SECONDS = 20.0
"""For everything but building the envs and resetting them for the first time."""
_STEPS = 40
_SHARE_BEFORE_COPY = 0.4  # of the time: an env that takes a second per step can still be compared


class _OutOfTime(Exception):
    """The deadline has passed."""


class _TimedSnapshot(Snapshot):
    """A snapshot that raises `_OutOfTime` before a reset or a step after the deadline, also in a replay."""

    deadline = float("inf")

    def before_reset(self, seed: int | None) -> None:
        self._check()
        super().before_reset(seed)

    def before_step(self, action: Any) -> None:
        self._check()
        super().before_step(action)

    def _check(self) -> None:
        if time.monotonic() > self.deadline:
            raise _OutOfTime


def why_inexact(build: Callable[[], gym.Env]) -> str | None:
    """Run an env for some episodes, restore its state into another, and see whether both go on alike.

    Returns:
        None where they do; else why a restored env would go on differently, or why that could not be found out.
    """
    envs: list[gym.Env] = []
    try:
        envs += [build()]
        envs += [build()]
        return _compare(*envs)
    except _OutOfTime:
        return f"whether its state is exact could not be tried within {TRIAL_SECONDS:g} s"
    except BaseException as error:
        if asks_to_stop(error):
            raise
        return f"its state cannot be taken: {type(error).__name__}: {first_line(error)}"
    finally:
        for env in envs:
            with env_errors_ignored():
                env.close()


def _compare(one: gym.Env, two: gym.Env) -> str | None:
    first, second = _TimedSnapshot(one), _TimedSnapshot(two)
    one.action_space.seed(0)
    start = time.monotonic()
    first.before_reset(11)
    one.reset(seed=11)
    now = time.monotonic()
    # A first reset may have much to load; the other env's may take as long.
    first.deadline = second.deadline = now + TRIAL_SECONDS + (now - start)
    worlds = _worlds(one)
    _warm_up(first, until=now + _SHARE_BEFORE_COPY * TRIAL_SECONDS)
    if first.replays and any(before is after for before, after in zip(worlds, _worlds(one), strict=False)):
        return "its Box2D world outlives an episode and remembers it, so a replay differs in the last bits"
    second.restore(first.capture())
    for step in range(1, 3 * _STEPS):
        action = one.action_space.sample()
        try:
            ours, theirs = _step(first, action), _step(second, action)
        except _OutOfTime:
            if step == 1:
                raise
            break  # a slow env has been compared for as long as there was time
        if not _same(ours, theirs):
            return f"{'replayed' if first.replays else 'restored'} episodes go on differently"
        if ours[2] or step % _STEPS == 0:  # the episodes after it count too
            try:
                for snapshot in (first, second):
                    snapshot.before_reset(None)
            except _OutOfTime:
                break
            if not _same(one.reset()[0], two.reset()[0]):
                return "episodes start differently after a restore"
    return None


def _warm_up(snapshot: Snapshot, *, until: float) -> None:
    """Random episodes, since what survives a reset must survive a snapshot too, and the first steps of another."""
    env, rng = snapshot.env, np.random.default_rng(0)
    for episode in range(3):
        if episode and time.monotonic() > until:
            break
        for _ in range(int(rng.integers(5, _STEPS))):
            if _step(snapshot, env.action_space.sample())[2] or time.monotonic() > until:
                break
        snapshot.before_reset(None)
        env.reset()
    for _ in range(3):
        if _step(snapshot, env.action_space.sample())[2]:
            snapshot.before_reset(None)
            env.reset()


def _worlds(env: Any) -> list[Any]:
    return [value for value in vars(env.unwrapped).values() if type(value).__name__ == "b2World"]


def _step(snapshot: Snapshot, action: Any) -> tuple[Any, float, bool]:
    snapshot.before_step(action)
    obs, reward, terminated, truncated, _ = snapshot.env.step(action)
    ends = read_flag(terminated, "terminated"), read_flag(truncated, "truncated")
    return obs, read_reward(reward), any(ends)


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(_same(a, b) for a, b in zip(one, two, strict=True))
    return np.array_equal(one, two)
