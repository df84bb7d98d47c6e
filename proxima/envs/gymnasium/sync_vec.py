"""Any Gymnasium id as a vector env: the base class of sync and async mode, and sync mode itself.

Async mode is in `async_vec.py`; in both modes `env_group.py` owns the env objects.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from proxima.envs.action_hold import Holder
from proxima.envs.checks import check_count, check_seed
from proxima.envs.contract import Episodes, Obs, Step, VecEnv
from proxima.envs.gymnasium.env_group import EnvGroup, Recipe
from proxima.envs.gymnasium.plain import Plain, pack, unpack
from proxima.envs.gymnasium.snapshot import NotPlain
from proxima.envs.gymnasium.spaces import buffer_bytes, map_buffers
from proxima.envs.own import Wrapper
from proxima.errors import EnvFailure, UsageError

if TYPE_CHECKING:
    from proxima.envs.gymnasium.async_vec import WorkerPool

logger = logging.getLogger("proxima")

MAX_FAILURES = 5


class GymVecEnv(VecEnv):
    """Buffers, torch views of them, and episode statistics; the envs are in a group that the subclass makes."""

    def __init__(
        self,
        env_id: str,
        *,
        num_envs: int = 1,
        env_kwargs: Mapping[str, Any] | None = None,
        max_episode_steps: int | None = None,
        spread_episodes: bool = False,
        wrappers: Sequence[Wrapper] = (),
        leave_out: Sequence[str] = (),
        max_failures: int = MAX_FAILURES,
        log_info: Sequence[str] = (),
    ) -> None:
        check_count("num_envs", num_envs)
        check_count("max_failures", max_failures)
        self.env_id = env_id
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.holder = Holder(num_envs)
        options: dict[str, Any] = {"env_kwargs": env_kwargs, "max_episode_steps": max_episode_steps}
        self._recipe = Recipe.of(env_id, wrappers=wrappers, leave_out=leave_out, **options)
        self._spread_episodes = spread_episodes
        self._max_failures = max_failures
        self.log_info = tuple(log_info)
        self._base_seed = self._bank = 0
        self._started = self._tested = self._closed = False
        self._obstacle: str | None = None
        self._was_changed = False
        """Whether a call may have changed the envs, which a replay of their actions would not do."""

    def _open(self, group: "EnvGroup | WorkerPool") -> None:
        """Set the group, spaces and buffers; the subclass calls this at the end of its constructor."""
        self._group, layout = group, group.layout
        buffers = map_buffers(layout, self.num_envs, group.allocate(buffer_bytes(layout, self.num_envs)))
        group.attach(buffers)
        self.observation_space = layout.observation.space
        self.action_space = layout.action.space
        self.step_seconds = layout.step_seconds
        self.episode_info = layout.episode_info
        self.time_limit = layout.time_limit
        self.left_out = layout.observation.left_out
        self._layout = layout
        self._buffers = buffers
        self._action_shape = (self.num_envs, *layout.action.agent_shape)
        keys = [leaf.key for leaf in layout.observation.leaves]

        def views(arrays: list[np.ndarray]) -> Obs:
            return {key: torch.from_numpy(array) for key, array in zip(keys, arrays, strict=True)}

        self._obs = (views(buffers.obs[0]), views(buffers.obs[1]))
        self._final_obs = views(buffers.final_obs)
        self._ended, self._return, self._length = (np.zeros(self.num_envs, kind) for kind in (bool, float, np.int64))
        shown = (buffers.reward, buffers.duration, buffers.terminated, buffers.truncated)
        self._reward, self._duration, self._terminated, self._truncated = map(torch.from_numpy, shown)
        # What belongs to the state besides the envs.
        self._statistics = {"ended": self._ended, "return": self._return, "length": self._length}
        self._statistics |= {"restarts": buffers.restarts, "failures": buffers.failures}
        self._episodes = Episodes(
            torch.from_numpy(self._return),
            torch.from_numpy(self._length),
            torch.from_numpy(buffers.success),
            dict(zip(layout.episode_info, torch.from_numpy(buffers.info).unbind(1), strict=True)),
        )

    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env. Env i is seeded with `seed + i`; None continues with its generator."""
        self._check_open()
        check_seed(seed)
        if seed is not None:
            seed = int(seed)
            self._base_seed = seed
            self._buffers.restarts[:] = 0
            self.holder.seed(seed)
        elif not self._started:
            self._base_seed = int(np.random.SeedSequence().generate_state(1)[0])
        self._buffers.failures[:] = 0
        self._ended[:] = False
        self._return[:] = 0.0
        self._length[:] = 0
        self._bank = 1 - self._bank
        seeds = [None if seed is None else seed + index for index in range(self.num_envs)]
        self._started = True
        spread = (self.first_env, self.total_envs or self.num_envs) if self._spread_episodes else None
        with self._reported():
            self._group.reset(bank=self._bank, seeds=seeds, base_seed=self._base_seed, spread=spread)
        return self._obs[self._bank]

    def step(self, action: Tensor) -> Step:
        """Apply one action per env, for as long as it is held; see `VecEnv.step` for its shape."""
        self._check_open()
        if not self._started:
            raise RuntimeError("step() before the first reset()")
        if tuple(action.shape) != self._action_shape:
            raise ValueError(f"actions have shape {tuple(action.shape)}, {self._action_shape} is needed")
        self._layout.action.write(action.detach().cpu().numpy(), self._buffers.action)
        self._buffers.hold[:], self._buffers.gamma[:] = self.holder.draw(), self.hold.gamma
        self._bank = 1 - self._bank
        with self._reported():
            self._group.step(self._bank)

        # Episodes that ended in the previous step have been read by now; their sums start again.
        self._return[self._ended] = 0.0
        self._length[self._ended] = 0
        self._return += self._buffers.total
        self._length += self._buffers.duration
        np.logical_or(self._buffers.terminated, self._buffers.truncated, out=self._ended)
        return Step(
            obs=self._obs[self._bank],
            reward=self._reward,
            terminated=self._terminated,
            truncated=self._truncated,
            final_obs=self._final_obs if self._ended.any() else None,
            episodes=self._episodes,
            duration=self._duration if self.hold.holds else None,
        )

    def get_state(self) -> dict[str, Any] | None:
        """Everything needed to continue, exactly unless `why_inexact` says otherwise; None if it cannot be saved."""
        if self._was_changed:
            return None
        states = self._group.get_state()
        if not isinstance(states, list):
            if states is not None and states != self._obstacle:
                logger.warning("The envs' state can no longer be saved: %s. A resume will start new episodes.", states)
                self._tested, self._obstacle = True, states
            return None
        return {
            "envs": _packed(states),
            "obs": {key: x.clone() for key, x in self._obs[self._bank].items()},
            "statistics": {name: torch.from_numpy(array.copy()) for name, array in self._statistics.items()},
            "hold": self.holder.get_state(),
            "base_seed": self._base_seed,
            "restarts": self._group.restarts,
        }

    def set_state(self, state: dict[str, Any]) -> Obs:
        """Restore a state and return the observation that the policy acts on next; NotPlain if it does not fit."""
        self._check_open()
        self._base_seed, self._group.restarts, self._started = state["base_seed"], state["restarts"], True
        self.holder.set_state(state["hold"])
        states = unpack(state["envs"]["text"], state["envs"]["data"].numpy())
        reason = self._group.set_state(states, base_seed=self._base_seed)
        if reason is not None:
            raise NotPlain(reason)
        for name, array in self._statistics.items():
            array[:] = state["statistics"][name].numpy()
        for key, x in self._obs[self._bank].items():
            x.copy_(state["obs"][key])
        return self._obs[self._bank]

    def join_states(self, states: Sequence[Any]) -> Any:
        """One state of the envs of several states, in order."""
        envs = [env for state in states for env in unpack(state["envs"]["text"], state["envs"]["data"].numpy())]
        joined = super().join_states([{**state, "envs": None} for state in states])
        return {**joined, "envs": _packed(envs)}

    def split_state(self, state: Any, counts: Sequence[int]) -> list[Any]:
        """The inverse of `join_states`."""
        envs = unpack(state["envs"]["text"], state["envs"]["data"].numpy())
        parts = super().split_state({**state, "envs": envs}, counts)
        first = 0
        for part, count in zip(parts, counts, strict=True):
            part |= {"envs": _packed(part["envs"]), "base_seed": state["base_seed"] + first}
            first += count
        return parts

    def why_inexact(self) -> str | None:
        """Why a resume would not be exact; tested once, on two envs built for the test."""
        if not self._tested:
            self._tested, self._obstacle = True, self._group.why_inexact()
        return self._obstacle

    def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of every env; see `EnvGroup.call`."""
        self._check_open()
        called = self._group.call(method, args, kwargs)
        if isinstance(called, str):
            raise UsageError(f"{called}.")
        if called.replays and not self._was_changed:
            self._was_changed = True
            logger.warning(
                "%s of the envs was called, whose state is saved by replaying actions: a resume will start new "
                "episodes, and the call has to be made again.",
                method,
            )
        return called.results

    def take_info(self) -> dict[str, float]:
        """Means over the env steps since the last call."""
        total, count = self._buffers.info_sum.sum(0)
        self._buffers.info_sum[:] = 0.0
        means = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
        return dict(zip(self.log_info, means.tolist(), strict=True))

    def counters(self) -> dict[str, int]:
        """How many failed envs or workers have been replaced."""
        return {"worker_restarts": self._group.restarts}

    def close(self) -> None:
        """Close the envs. Calling it twice is harmless."""
        if not self._closed:
            self._closed = True
            self._group.close()

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Log the envs that raised; close everything if one of them cannot be replaced."""
        try:
            yield
        except EnvFailure:
            self.close()
            raise
        finally:
            for message in self._group.failures:
                logger.warning("%s", message)
            self._group.failures.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this vector env has been closed")


def _packed(states: list[Plain]) -> dict[str, Any]:
    text, data = pack(states)
    return {"text": text, "data": torch.from_numpy(data)}


class SyncVecEnv(GymVecEnv):
    """All envs in this process, stepped one after another."""

    def __init__(self, env_id: str, **options: Any) -> None:
        super().__init__(env_id, **options)
        options = {"max_failures": self._max_failures, "log_info": self.log_info}
        self._open(EnvGroup(self._recipe, start=0, stop=self.num_envs, **options))
