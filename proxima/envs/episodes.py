"""Time limits, held actions, autoreset and statistics of vector envs ("worlds") that step all their envs in one call.

A world adds `_start`, `_advance`, `_observe`, `_seed`, and its state. Gymnasium's env objects, which are stepped one by
one, are in `gymnasium/env_group.py`.
"""

import sys
from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.spaces import Discrete, MultiDiscrete
from torch import Tensor

from proxima.envs.action_hold import Holder
from proxima.envs.checks import check_count, check_seed
from proxima.envs.contract import Episodes, Obs, Step, VecEnv
from proxima.errors import UsageError
from proxima.masks import ACTION_MASK

NO_LIMIT = sys.maxsize // 2
Array = Any
"""A NumPy array or a tensor `[N]`, depending on the world."""


class EpisodicVecEnv(VecEnv):
    """Base class of worlds that step all their envs in one call, on the CPU or on a GPU.

    On the CPU, a step only restarts envs if an episode ended. On a GPU this test would synchronise, so every step
    restarts under a mask and observes twice. Its work is then always the same, and can be recorded (`tensors`).

    A world computes with tensors on its device, or with NumPy on the CPU (`uses_numpy`); the code here works with both.
    NumPy is faster: a dozen small tensor operations make a step of eight MuJoCo envs 3 to 8 % slower.

    Args:
        num_envs: Number of envs.
        device: Device of the world's tensors.
        max_episode_steps: Time limit in env steps; None for none.
        spread_episodes: After `reset`, shorten env i's first episode by `i / num_envs` of the time limit, so that the
            envs do not all reach it in the same step. Of a part, `i` and `num_envs` are those of the whole set.
    """

    uses_numpy: ClassVar[bool] = False

    def __init__(
        self,
        *,
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = None,
        spread_episodes: bool = False,
    ) -> None:
        check_count("num_envs", num_envs)
        check_count("max_episode_steps", max_episode_steps)
        self.num_envs, self.device = num_envs, torch.device(device)
        self.name = type(self).__name__
        """The state of a world with another name is refused."""
        self.step_seconds: float | None = None
        self.holder = Holder(num_envs)
        self.max_episode_steps = max_episode_steps or NO_LIMIT
        self._spread = spread_episodes and max_episode_steps is not None
        self._on_cpu = self.device.type == "cpu"
        self._where: Any = np.where if self.uses_numpy else torch.where
        self._started = False
        # One step counter for all envs, instead of one per env; on a GPU a tensor, since recorded work has no host.
        self._clock: Any = 0 if self._on_cpu else torch.zeros((), dtype=torch.int64, device=self.device)
        self._never = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._zeros = self._array(self._never.long())
        self._begun: Array = self._zeros
        """int64: the clock when the episode began."""
        self._deadline: Array = self._zeros + self.max_episode_steps
        """int64: the clock at which the time limit ends the episode."""
        self._return: Array = self._array(self._never.double())
        """float64: sum of the episode's rewards so far."""
        self._next_deadline = self.max_episode_steps
        """On the CPU: no time limit is reached before it."""
        self._nothing_ended = Episodes(self._never.double(), self._never.long())

    def _array(self, x: Tensor) -> Array:
        """A tensor in the form that the world computes with."""
        return x.numpy() if self.uses_numpy else x.to(self.device)

    def _tensor(self, x: Array) -> Tensor:
        """An array of the world as a tensor."""
        return torch.from_numpy(x) if self.uses_numpy else x

    @abstractmethod
    def _seed(self, seed: int | None) -> None:
        """Seed the world's random numbers, env i with `seed + i`; None at a first `reset` without a seed."""

    @abstractmethod
    def _start(self, started: Array) -> None:
        """Start a new episode in the envs `started` (bool); their `episode_length` is 0 already."""

    @abstractmethod
    def _advance(self, action: Tensor, moving: Array | None) -> tuple[Array, Array | None]:
        """One env step of all envs, or of those in `moving` (bool); the others must not change.

        Returns:
            Reward (float64) and termination (bool; None if the task never terminates), in arrays that later calls do
            not change. Rows of envs that did not move are ignored.
        """

    @abstractmethod
    def _observe(self, started: Array | None = None) -> Obs:
        """Observation of every env, in tensors that the next step may overwrite.

        With `started` (bool) it is the second call in a step: only these envs have changed since the first call, whose
        tensors must not be overwritten.
        """

    def _info(self) -> dict[str, Tensor]:
        """`[N]` float64 for every name in `episode_info`: of the episodes that end in this step."""
        return {}

    def _aux(self) -> dict[str, Tensor]:
        """`Step.aux` of the step just taken, as tensors that `_start` does not change."""
        return {}

    @abstractmethod
    def _get_world(self) -> dict[str, Any]:
        """State of the world itself, random numbers included, copied."""

    @abstractmethod
    def _set_world(self, state: dict[str, Any]) -> Obs:
        """Restore the state of the world and return its observation."""

    @property
    def time_limit(self) -> int | None:
        """Env steps of the longest episode; None if there is no limit."""
        return None if self.max_episode_steps == NO_LIMIT else self.max_episode_steps

    @property
    def episode_length(self) -> Array:
        """int64: env steps of the current episode, including the current one."""
        return self._clock - self._begun

    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env. Env i is seeded with `seed + i`; None continues with its generator."""
        check_seed(seed)
        if seed is not None or not self._started:
            seed = None if seed is None else int(seed)
            self.holder.seed(seed)
            self._seed(seed)
        self._started = True
        self._restart(self._array(~self._never))
        if self._spread:
            index = self._array(self.first_env + torch.arange(self.num_envs))
            self._deadline = self._deadline - self.max_episode_steps * index // (self.total_envs or self.num_envs)
            self._find_next_deadline()
        return self._observe()

    def step(self, action: Tensor) -> Step:
        """Apply one action per env, for as long as it is held; where an episode ends, start the next one."""
        if not self._started:
            raise UsageError("call reset before the first step")
        duration = None
        if self.hold.holds:
            reward, terminated, duration = self._hold_action(action)
        else:
            self._clock = self._clock + 1
            reward, terminated = self._advance(action, None)
            self._return = self._return + reward
        obs, aux = self._observe(), self._aux()
        if self._none_ended(terminated):
            never = self._never
            return Step(obs, self._tensor(reward), never, never, None, self._nothing_ended, duration, aux)
        truncated = self._deadline <= self._clock
        ended = truncated if terminated is None else truncated | terminated
        episodes = Episodes(self._tensor(self._return), self._tensor(self.episode_length), info=self._info())
        self._restart(ended)
        return Step(
            obs=self._observe(ended),
            reward=self._tensor(reward),
            terminated=self._never if terminated is None else self._tensor(terminated),
            truncated=self._tensor(truncated),
            final_obs=obs,
            episodes=episodes,
            duration=duration,
            aux=aux,
        )

    def _none_ended(self, terminated: Array | None) -> bool:
        """Whether it is known, without synchronising with a GPU, that no episode ended in this step."""
        if not self._on_cpu or self._clock >= self._next_deadline:
            return False
        return terminated is None or not bool(terminated.any())

    def _hold_action(self, action: Tensor) -> tuple[Array, Array | None, Tensor]:
        """Repeat the action; an env whose hold or episode is over, or where it became invalid, waits for the others.

        Returns:
            Reward `sum gamma^i r_i`, termination, and env steps taken.
        """
        hold, start, weight = self.hold, self._clock, 1.0
        steps: Array | int = hold.high
        if hold.low < hold.high:
            steps = self._array(torch.from_numpy(self.holder.draw()))
        self._clock = self._clock + 1
        reward, terminated = self._advance(action, None)
        total, duration = reward, self._zeros + 1
        for taken in range(1, min(hold.high, self.max_episode_steps)):
            moving = (self._deadline > self._clock) & (steps > taken)
            if terminated is not None:
                moving &= ~terminated
            if self._mask_columns is not None:
                moving &= self._array(self._is_valid(action, self._mask_columns))
            if self._on_cpu and not bool(moving.any()):
                break
            self._clock = self._clock + 1
            one, over = self._advance(action, moving)
            weight *= hold.gamma
            reward = self._where(moving, reward + weight * one, reward)
            total = self._where(moving, total + one, total)
            duration += moving
            if over is not None:
                terminated = over & moving if terminated is None else terminated | (over & moving)
        self._return = self._return + total
        # The clock advanced for all envs: shift the times of those that took fewer steps.
        waited = self._clock - start - duration
        self._begun = self._begun + waited
        self._deadline = self._deadline + waited
        self._find_next_deadline()
        return reward, terminated, self._tensor(duration)

    @cached_property
    def _mask_columns(self) -> Tensor | None:
        """`[A]`, where the choices of each action column begin in the action mask; None without masks."""
        space = self.action_space
        if ACTION_MASK not in self.observation_space.spaces or not isinstance(space, (Discrete, MultiDiscrete)):
            return None
        sizes = torch.as_tensor(space.n if isinstance(space, Discrete) else space.nvec).reshape(-1)
        return (sizes.cumsum(0) - sizes).to(self.device)

    def _is_valid(self, action: Tensor, columns: Tensor) -> Tensor:
        """`[N]` bool: the mask of the current observation allows the action."""
        choice = action.to(self.device).view(self.num_envs, -1) + columns
        return self._observe()[ACTION_MASK].gather(1, choice).bool().all(-1)

    def _restart(self, started: Array) -> None:
        # New arrays, because those of a returned step must not change.
        self._begun = self._where(started, self._clock, self._begun)
        self._deadline = self._where(started, self._clock + self.max_episode_steps, self._deadline)
        self._return = self._where(started, 0.0, self._return)
        self._find_next_deadline()
        self._start(started)

    def _find_next_deadline(self) -> None:
        if self._on_cpu:
            self._next_deadline = int(self._deadline.min())

    # Recording on a GPU ----------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor] | None:
        """Every tensor on the GPU that steps replace by a new one, by name; None if steps cannot be recorded."""
        own = self._tensors()
        if self._on_cpu or self.hold.holds or own is None:
            return None
        names = ("clock", "begun", "deadline", "return")
        return {**{name: getattr(self, f"_{name}") for name in names}, **{f"world.{k}": x for k, x in own.items()}}

    def set_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Go on with these tensors, which `tensors` returned."""
        for name in ("clock", "begun", "deadline", "return"):
            setattr(self, f"_{name}", tensors[name])
        own = {name.removeprefix("world."): x for name, x in tensors.items() if name.startswith("world.")}
        self._set_tensors(own)

    def _tensors(self) -> dict[str, Tensor] | None:
        """The world's own tensors that steps replace; None if its steps cannot be recorded."""
        return None

    def _set_tensors(self, tensors: dict[str, Tensor]) -> None:
        raise NotImplementedError

    # State -----------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Everything needed to continue exactly, copied."""
        return {
            "name": self.name,
            "length": self._tensor(self.episode_length),
            "limit": self.max_episode_steps,
            "left": self._tensor(self._deadline - self._clock),
            "return": self._tensor(self._return).clone(),
            "hold": self.holder.get_state(),
            "world": self._get_world(),
        }

    def set_state(self, state: dict[str, Any]) -> Obs:
        """Restore a state and return the observation that the policy acts on next."""
        if "world" not in state or "name" not in state:
            state = self._upgrade(state)
        if state["name"] != self.name or len(state["return"]) != self.num_envs:
            raise UsageError(
                f"a state of {len(state['return'])} envs of {state['name']} does not fit {self.num_envs} envs of "
                f"{self.name}"
            )
        self._begun = self._clock - self._array(state["length"])
        self._deadline = self._clock + self._array(state["left"]) + (self.max_episode_steps - state["limit"])
        self._return = self._array(state["return"].clone())
        self.holder.set_state(state["hold"])
        self._started = True
        self._find_next_deadline()
        return self._set_world(state["world"])

    def _upgrade(self, state: dict[str, Any]) -> dict[str, Any]:
        """Convert a state of checkpoint format 3."""
        raise UsageError(f"a state with {', '.join(sorted(state))} is not one of {self.name}")

    def close(self) -> None:
        """Nothing to free, unless a subclass does."""
