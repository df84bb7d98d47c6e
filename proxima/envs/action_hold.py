"""Held actions: for how many env steps an action is repeated, how its rewards are summed, and a Gymnasium wrapper.

Proxima's vector envs hold actions themselves (`hold`); the wrapper is for other libraries. `docs/action-hold.md`
explains why rewards are discounted within a hold. No torch here: worker processes import this file.
"""

import copy
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from numpy.random import Generator
from numpy.typing import NDArray

from proxima.errors import UsageError

LONGEST = 1_000_000
_STREAM = 0x401D  # makes the generator of durations differ from those of the envs, which have the same seeds


@dataclass(frozen=True, slots=True)
class Hold:
    """An action is held for `low` to `high` env steps, drawn uniformly per env and action; 1 to 1 is no hold.

    Its reward is `sum gamma^i r_i` over the env steps taken; with gamma 1 that is the plain sum.
    """

    low: int = 1
    high: int = 1
    gamma: float = 1.0

    def __post_init__(self) -> None:
        for steps in (self.low, self.high):
            if not isinstance(steps, (int, np.integer)) or isinstance(steps, bool):
                raise UsageError(f"a hold of {steps!r} env steps: it needs whole numbers.")
        if not 1 <= self.low <= self.high <= LONGEST:
            raise UsageError(
                f"a hold of {self.low} to {self.high} env steps: it needs 1 <= low <= high <= {LONGEST:,}."
            )
        if not 0 <= self.gamma <= 1:
            raise UsageError(f"gamma of a hold is {self.gamma}, but it must lie between 0 and 1.")

    @property
    def holds(self) -> bool:
        """Whether any action is held for more than one step."""
        return self.high > 1

    @property
    def steps(self) -> int | tuple[int, int]:
        """A number, or (low, high) if it is random."""
        return self.low if self.low == self.high else (self.low, self.high)

    @property
    def mean(self) -> float:
        """Mean number of env steps per action, if no episode ends."""
        return (self.low + self.high) / 2

    def text(self) -> str:
        """A phrase for the start of a list; empty if no action is held."""
        steps = f"{self.low}" if self.low == self.high else f"{self.low} to {self.high}"
        return f"actions held for {steps} env steps, " if self.holds else ""

    def draw(self, rng: Generator, count: int) -> NDArray[np.int64]:
        """Durations of the next actions of `count` envs; the generator is not used if they are fixed."""
        if self.low == self.high:
            return np.full(count, self.low, np.int64)
        return rng.integers(self.low, self.high, count, endpoint=True)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for `Hold(**data)`."""
        return asdict(self)


class Holder:
    """The hold of a vector env, and the generator of its durations: part of the env's state."""

    def __init__(self, num_envs: int) -> None:
        self.hold = Hold()
        self._rows, self._total = slice(0, num_envs), num_envs
        self.seed(None)

    def become_part(self, first: int, total: int) -> None:
        """Draw for `total` envs, and use the durations of those from `first` on; before `seed`."""
        self._rows, self._total = slice(first, first + self._rows.stop - self._rows.start), total

    def seed(self, seed: int | None) -> None:
        """Seed the generator with the seed of the first env here; None uses fresh entropy."""
        self._rng = np.random.default_rng(None if seed is None else [seed - self._rows.start, _STREAM])

    def draw(self) -> NDArray[np.int64]:
        """Durations `[N]` of the next action of every env."""
        return self.hold.draw(self._rng, self._total)[self._rows]

    def get_state(self) -> dict[str, Any]:
        """As plain data; the generator as text, because its integers have 128 bits."""
        return {"hold": self.hold.to_dict(), "rng": json.dumps(self._rng.bit_generator.state)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self.hold = Hold(**state["hold"])
        self._rng.bit_generator.state = json.loads(state["rng"])


def steps_of(seconds: float, step_seconds: float) -> int:
    """Number of env steps nearest to `seconds`, at least 1. Halves are rounded up, also within a rounding error."""
    return max(1, math.floor(seconds / step_seconds + 0.5 + 1e-9))


class HeldStep(NamedTuple):
    """Result of one held action."""

    obs: Any
    reward: float  # `sum gamma^i r_i`
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]  # of the last step
    total: float  # undiscounted sum of rewards
    duration: int  # env steps taken: fewer than requested if the episode ended or the action became invalid


def repeat(
    step: Callable[[], tuple[Any, SupportsFloat, bool, bool, Mapping[str, Any]]],
    hold: int,
    gamma: float,
    may_repeat: Callable[[Any], bool] = lambda obs: True,
) -> HeldStep:
    """Call `step` `hold` times, or until the episode ends or `may_repeat` is False for the observation."""
    obs, first, terminated, truncated, info = step()
    reward = total = float(first)
    duration, weight = 1, 1.0
    while duration < hold and not (terminated or truncated) and may_repeat(obs):
        obs, one, terminated, truncated, info = step()
        weight *= gamma
        reward += weight * float(one)
        total += float(one)
        duration += 1
    return HeldStep(obs, reward, terminated, truncated, info, total, duration)


class ActionHold(gym.Wrapper, RecordConstructorArgs):
    """Holds every action for several steps of the env, for use with any library.

    The reward of `step` is `sum gamma^i r_i` over the env steps taken. `info["duration"]` is their number, so that the
    next value is discounted by `gamma ** duration`; `info["undiscounted_reward"]` is the plain sum. A hold ends with
    the episode. Proxima's own vector envs need no wrapper: they have `hold`.

    Args:
        env: Any env. A time limit inside it counts env steps, one outside it counts held actions.
        steps: Number of env steps, or a pair (low, high) to draw it from, for every action, with the env's generator.
            It may be changed between steps.
        gamma: Discount per env step; 1 is the plain sum of rewards.

    Example:
        >>> env = ActionHold(gym.make("CartPole-v1"), 4, gamma=0.99)
        >>> _ = env.reset(seed=0)
        >>> _, reward, _, _, info = env.step(0)
        >>> round(reward, 6), info["undiscounted_reward"], info["duration"]
        (3.940399, 4.0, 4)
    """

    def __init__(self, env: gym.Env, steps: int | tuple[int, int], *, gamma: float = 1.0) -> None:
        RecordConstructorArgs.__init__(self, steps=steps, gamma=gamma)
        gym.Wrapper.__init__(self, env)
        self.gamma = gamma
        self.steps = steps

    @property
    def steps(self) -> int | tuple[int, int]:
        """Number of env steps, or the range that it is drawn from."""
        return self._hold.steps

    @steps.setter
    def steps(self, steps: int | tuple[int, int]) -> None:
        pair = tuple(steps) if isinstance(steps, (tuple, list)) else (steps, steps)
        if len(pair) != 2:
            raise UsageError(f"steps is {steps!r}, but it must be a whole number or a pair (low, high).")
        self._hold = Hold(*pair, self.gamma)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeat the action."""
        count = int(self._hold.draw(self.np_random, 1)[0])
        # A copy for each step, because an env may keep or change its action.
        done = repeat(lambda: self.env.step(copy.copy(action)), count, self.gamma)
        info = {**done.info, "duration": done.duration, "undiscounted_reward": done.total}
        return done.obs, done.reward, done.terminated, done.truncated, info
