"""Vector envs ("worlds") whose step is pure tensor arithmetic: they run on any device without synchronisation."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import load_env_creator
from torch import Tensor

from proxima.envs.catalog import TENSOR_WORLDS
from proxima.envs.contract import Obs
from proxima.envs.episodes import EpisodicVecEnv
from proxima.envs.hashed_random import hash32, hashed_uniform
from proxima.errors import UsageError

World = dict[str, Tensor]
"""The complete state of the envs, one row per env."""


class TensorVecEnv(EpisodicVecEnv):
    """A world that a subclass defines by three pure functions of its state.

    Start states are computed for every env and used where an episode starts, because selecting these envs would
    synchronise with a GPU. Random numbers are a hash of the env's seed, episode and step: there is no generator state,
    and a trajectory does not depend on the number of envs.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        zeros = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._set_seeds(zeros)
        self._episode = zeros.clone()
        self._world: World = {}

    @abstractmethod
    def _first(self) -> World:
        """State at the start of an episode, for every env."""

    @abstractmethod
    def _next(self, world: World, action: Tensor) -> tuple[World, Tensor, Tensor | None]:
        """State after a step, reward `[N]`, and termination `[N]` bool (None if the task never terminates)."""

    @abstractmethod
    def _observation(self, world: World) -> Obs:
        """Observation of a state, in tensors that no step changes in place."""

    def random(self, count: int) -> Tensor:
        """`[N, count]` float32, uniform in [0, 1): a hash of seed, episode, step and column."""
        return hashed_uniform(self._hashed_seeds, self._episode, self.episode_length, count)

    def _seed(self, seed: int | None) -> None:
        """Without a seed, all seeds are 0: a world on tensors has no other source of randomness."""
        if seed is not None:
            self._set_seeds(seed + torch.arange(self.num_envs))
            self._episode.fill_(-1)

    def _set_seeds(self, seeds: Tensor) -> None:
        self._seeds = seeds.to(self.device)
        self._hashed_seeds = hash32(self._seeds)

    def _start(self, started: Tensor) -> None:
        self._episode = self._episode + started
        first = self._first()
        self._world = _where(started, first, self._world or first)

    def _advance(self, action: Tensor, moving: Tensor | None) -> tuple[Tensor, Tensor | None]:
        world, reward, terminated = self._next(self._world, action)
        self._world = world if moving is None else _where(moving, world, self._world)
        return reward.double(), terminated

    def _observe(self, started: Tensor | None = None) -> Obs:
        return self._observation(self._world)

    def _tensors(self) -> dict[str, Tensor]:
        return {"episode": self._episode, **{f"state.{name}": x for name, x in self._world.items()}}

    def _set_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._episode = tensors["episode"]
        self._world = {name: tensors[f"state.{name}"] for name in self._world}

    def _get_world(self) -> dict[str, Any]:
        state = {name: x.clone() for name, x in self._world.items()}
        return {"seed": self._seeds.clone(), "episode": self._episode.clone(), "state": state}

    def _set_world(self, state: dict[str, Any]) -> Obs:
        self._set_seeds(state["seed"])
        self._episode.copy_(state["episode"])
        self._world = {name: x.to(self.device) for name, x in state["state"].items()}
        return self._observe()

    def _upgrade(self, state: dict[str, Any]) -> dict[str, Any]:
        counters = state["counters"]
        return {
            "name": state["type"],
            "length": counters["length"],
            "limit": self.max_episode_steps,
            "left": self.max_episode_steps - counters["length"] - counters["head_start"],
            "return": counters["return"],
            "hold": state["hold"],
            "world": {"seed": counters["seed"], "episode": counters["episode"], "state": state["world"]},
        }


class SingleEnv(gym.Env):
    """A world of one env as a Gymnasium env, with the same trajectories."""

    def __init__(self, env: EpisodicVecEnv) -> None:
        self._env, self._fresh = env, False
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.dt = env.step_seconds

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict]:
        """Start an episode, unless autoreset has already started one."""
        super().reset(seed=seed)
        begun, self._fresh = self._fresh and seed is None, False
        return _row(self._env._observe() if begun else self._env.reset(seed)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Step the env."""
        step = self._env.step(torch.as_tensor(np.asarray(action))[None])
        self._fresh = bool(step.ended)
        obs = step.obs if step.final_obs is None else step.final_obs
        return _row(obs), float(step.reward), bool(step.terminated), bool(step.truncated), {}


def single(env_id: str, *, render_mode: str | None = None, **options: Any) -> SingleEnv:
    """One of our own envs on tensors, for Gymnasium. It cannot be rendered."""
    if render_mode is not None:
        raise UsageError(
            f"env {env_id!r} has no picture: it can be evaluated, but neither recorded nor shown. Leave out "
            "--record, --render and render_mode."
        )
    return SingleEnv(load_env_creator(TENSOR_WORLDS[env_id])(**options))


def _where(mask: Tensor, yes: World, no: World) -> World:
    """Row by row, `yes` where the mask is true."""
    return {name: torch.where(mask.view(-1, *[1] * (x.ndim - 1)), yes[name], x) for name, x in no.items()}


def _row(obs: Obs) -> dict[str, np.ndarray]:
    return {key: x[0].cpu().numpy() for key, x in obs.items()}
