"""Tests whether an env continues exactly after its state was restored into another object.

It runs at the start of a run, on two envs built for the test. Whatever they raise, the result is an answer and not an
exception. No torch here: worker processes import this file.
"""

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from proxima.envs.gymnasium.env_errors import asks_to_stop, close_env
from proxima.envs.gymnasium.masked_env import MaskedEnv
from proxima.envs.gymnasium.snapshot import TrackedEnv
from proxima.errors import one_line

TRIAL_SECONDS = 20.0
"""For everything except building the envs and resetting them for the first time."""
_STEPS = 40
_WARM_UP_SHARE = 0.4  # of the time: leaves enough to compare an env that takes a second per step


class _OutOfTime(Exception):
    """The deadline has passed."""


class _TimedEnv(TrackedEnv):
    """Raises `_OutOfTime` instead of a reset or a step after the deadline, also in a replay."""

    deadline = float("inf")

    def reset(self, seed: int | None = None) -> Any:
        self._check()
        return super().reset(seed)

    def step(self, action: Any) -> Any:
        self._check()
        return super().step(action)

    def _check(self) -> None:
        if time.monotonic() > self.deadline:
            raise _OutOfTime


def why_inexact(build: Callable[[], gym.Env]) -> str | None:
    """Run an env for some episodes, restore its state into another env, and test whether both continue identically.

    Returns:
        None if they do; else why a restored env would continue differently, or why that could not be tested.
    """
    envs: list[_TimedEnv] = []
    try:
        for _ in range(2):
            envs.append(_TimedEnv(build()))
        return _compare(*envs)
    except _OutOfTime:
        return f"whether its state is exact could not be tested within {TRIAL_SECONDS:g} s"
    except BaseException as error:
        if asks_to_stop(error):
            raise
        return f"its state cannot be saved: {one_line(error)}"
    finally:
        for env in envs:
            close_env(env.env)


def _compare(one: _TimedEnv, two: _TimedEnv) -> str | None:
    one.env.action_space.seed(0)
    start = time.monotonic()
    one.reset(11)
    now = time.monotonic()
    # A first reset may have much to load; the other env's may take as long.
    one.deadline = two.deadline = now + TRIAL_SECONDS + (now - start)
    worlds = _worlds(one)
    _warm_up(one, until=now + _WARM_UP_SHARE * TRIAL_SECONDS)
    if one.replays and any(before is after for before, after in zip(worlds, _worlds(one), strict=False)):
        return "its Box2D world is kept from one episode to the next, so a replay differs in the last bits"
    two.restore(one.capture())
    for step in range(1, 3 * _STEPS):
        action = _random_action(one)
        try:
            ours, theirs = one.step(action), two.step(action)
            if not _same(ours[:4], theirs[:4]):
                return f"{'replayed' if one.replays else 'restored'} episodes continue differently"
            # The episodes after it count too.
            if (ours[2] or ours[3] or step % _STEPS == 0) and not _same(one.reset(), two.reset()):
                return "episodes start differently after a restore"
        except _OutOfTime:
            if step == 1:
                raise
            break  # a slow env is compared for as long as there is time
    return None


def _warm_up(env: _TimedEnv, *, until: float) -> None:
    """Random episodes and the first steps of another: state that survives a reset must be restored too."""
    rng = np.random.default_rng(0)
    for episode in range(3):
        if episode and time.monotonic() > until:
            break
        for _ in range(int(rng.integers(5, _STEPS))):
            if _ends(env) or time.monotonic() > until:
                break
        env.reset()
    for _ in range(3):
        if _ends(env):
            env.reset()


def _ends(env: _TimedEnv) -> bool:
    """Take a random step; whether the episode ended in it."""
    _, _, terminated, truncated, _ = env.step(_random_action(env))
    return terminated or truncated


def _random_action(env: TrackedEnv) -> Any:
    return env.env.sample() if isinstance(env.env, MaskedEnv) else env.env.action_space.sample()


def _worlds(env: TrackedEnv) -> list[Any]:
    return [value for value in vars(env.env.unwrapped).values() if type(value).__name__ == "b2World"]


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(_same(a, b) for a, b in zip(one, two, strict=True))
    return np.array_equal(one, two)
