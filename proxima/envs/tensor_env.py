"""Vector envs whose whole step is arithmetic on tensors: they live on any device, and nothing in a step waits."""

import sys
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from proxima.envs.action_hold import Holder
from proxima.envs.contract import Episodes, Obs, Step, VecEnv
from proxima.errors import UsageError

World = dict[str, Tensor]
"""Everything that an env is, one row an env."""
NO_LIMIT = sys.maxsize // 2
_MASK = 2**32 - 1


class TensorVecEnv(VecEnv):
    """`num_envs` copies of an env that a subclass describes by three functions of tensors.

    Where an episode may have ended the next one's beginning is computed for every env and taken where it did: to ask
    which ones they are would make a GPU wait. Random numbers are a hash of the env's seed, its episode and its step,
    so that there is no generator to keep, and a trajectory does not depend on the number of envs.
    """

    def __init__(
        self,
        *,
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = None,
        spread_episodes: bool = False,
    ) -> None:
        if num_envs < 1:
            raise UsageError(f"num_envs is {num_envs}; it must be at least 1")
        self.num_envs, self.device = num_envs, torch.device(device)
        self.holder = Holder(num_envs)
        self.step_seconds: float | None = None
        self.max_episode_steps = max_episode_steps or NO_LIMIT
        self._spread = spread_episodes and max_episode_steps is not None
        zeros = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._seed, self._episode, self._length, self._head_start = (zeros.clone() for _ in range(4))
        self._return = zeros.double()
        self._world: World = {}

    @abstractmethod
    def _begin(self) -> World:
        """The first world of an episode, for every env."""

    @abstractmethod
    def _advance(self, world: World, action: Tensor) -> tuple[World, Tensor, Tensor]:
        """The world after a step, the reward `[N]`, and `[N]` bool where the task itself has ended."""

    @abstractmethod
    def _observe(self, world: World) -> Obs:
        """What is seen of a world: new tensors, or ones that no step changes in place."""

    def random(self, count: int) -> Tensor:
        """`[N, count]` float32, uniform in [0, 1): a hash of seed, episode, step and column."""
        key = _hash(_hash(_hash(self._seed) + self._episode) + self._length)
        column = torch.arange(1, count + 1, device=self.device)
        return (_hash(key[:, None] + 0x9E3779B9 * column) >> 8).float() * 2.0**-24

    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env. Env i is seeded with `seed + i`; with None its next episode begins."""
        if seed is None:
            self._episode += 1
        else:
            self.holder.seed(seed)
            self._seed = seed + torch.arange(self.num_envs, device=self.device)
            self._episode.zero_()
        self._length.zero_()
        self._return.zero_()
        self._head_start.zero_()
        if self._spread:
            self._head_start += (
                self.max_episode_steps * torch.arange(self.num_envs, device=self.device) // self.num_envs
            )
        self._world = self._begin()
        return self._observe(self._world)

    def step(self, action: Tensor) -> Step:
        """Apply one action an env, as long as it is held; ended envs start anew within the same step."""
        duration = None
        if self.hold.holds:
            world, reward, terminated, duration = self._hold_steps(action)
        else:
            self._length += 1
            world, reward, terminated = self._advance(self._world, action)
            self._return += reward
        truncated = self._length + self._head_start >= self.max_episode_steps
        ended = terminated | truncated
        episodes = Episodes(self._return, self._length)
        final_obs: Obs | None = None
        # On the CPU it costs nothing to ask, and an answer saves work; on a GPU it is the other way round.
        if self.device.type != "cpu" or bool(ended.any()):
            final_obs, episodes = self._observe(world), Episodes(self._return.clone(), self._length.clone())
            self._episode += ended
            for counter in (self._length, self._return, self._head_start):
                counter.masked_fill_(ended, 0)
            fresh = self._begin()
            world = {name: torch.where(_like(ended, x), fresh[name], x) for name, x in world.items()}
        self._world = world
        return Step(
            obs=self._observe(world),
            reward=reward.double(),
            terminated=terminated,
            truncated=truncated,
            final_obs=final_obs,
            episodes=episodes,
            duration=duration,
        )

    def _hold_steps(self, action: Tensor) -> tuple[World, Tensor, Tensor, Tensor]:
        """Repeat the action. An env whose hold or whose episode is over stands still while the others go on."""
        hold: Tensor | int = self.hold.high
        if self.hold.low < self.hold.high:
            hold = torch.from_numpy(self.holder.draw()).to(self.device)
        world, duration = self._world, torch.zeros_like(self._length)
        reward, terminated = torch.zeros_like(self._return), torch.zeros_like(duration, dtype=torch.bool)
        weight = 1.0
        for taken in range(min(self.hold.high, self.max_episode_steps)):
            moves = ~terminated & (hold > taken) & (self._length + self._head_start < self.max_episode_steps)
            if self.device.type == "cpu" and not bool(moves.any()):
                break
            self._length += moves
            duration += moves
            after, one, over = self._advance(world, action)
            world = {name: torch.where(_like(moves, x), after[name], x) for name, x in world.items()}
            one = one.double().masked_fill(~moves, 0.0)
            reward += weight * one
            weight *= self.hold.gamma
            self._return += one
            terminated |= over & moves
        return world, reward, terminated, duration

    def get_state(self) -> dict[str, Any]:
        """Everything needed to go on exactly, copied."""
        return {
            "type": type(self).__name__,
            "counters": _copy(self._counters()),
            "world": _copy(self._world),
            "hold": self.holder.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> Obs:
        """Put a state back and return the observation that the policy acts on next."""
        if state["type"] != type(self).__name__ or len(state["counters"]["seed"]) != self.num_envs:
            raise UsageError(f"a state of {state['type']} does not fit {self.num_envs} envs of {type(self).__name__}")
        for name, x in self._counters().items():
            x.copy_(state["counters"][name])
        self.holder.set_state(state["hold"])
        self._world = {name: x.to(self.device) for name, x in state["world"].items()}
        return self._observe(self._world)

    def _counters(self) -> dict[str, Tensor]:
        return {
            "seed": self._seed,
            "episode": self._episode,
            "length": self._length,
            "head_start": self._head_start,
            "return": self._return,
        }

    def close(self) -> None:
        """Nothing to free."""


class SingleEnv(gym.Env):
    """One env of a `TensorVecEnv` as Gymnasium has them, with the same trajectories."""

    def __init__(self, env: TensorVecEnv) -> None:
        self._env, self._fresh = env, False
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.dt = env.step_seconds

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict]:
        """Begin an episode; the one after an ended one has begun already."""
        super().reset(seed=seed)
        begun, self._fresh = self._fresh and seed is None, False
        return _row(self._env._observe(self._env._world) if begun else self._env.reset(seed)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """One step of the one env."""
        step = self._env.step(torch.as_tensor(np.asarray(action))[None])
        self._fresh = bool(step.ended)
        obs = step.obs if step.final_obs is None else step.final_obs
        return _row(obs), float(step.reward), bool(step.terminated), bool(step.truncated), {}


def _hash(x: Tensor) -> Tensor:
    """32 well-mixed bits of a whole number, in int64."""
    for factor, shift in ((0x7FEB352D, 16), (0x846CA68B, 15)):
        x = x & _MASK
        x = (x ^ (x >> shift)) * factor
    x = x & _MASK
    return x ^ (x >> 16)


def _like(mask: Tensor, x: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (x.ndim - 1))


def _copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in tensors.items()}


def _row(obs: Obs) -> dict[str, np.ndarray]:
    return {key: x[0].numpy() for key, x in obs.items()}
