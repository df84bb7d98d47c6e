"""Any Gymnasium id as a vector env: the base class of sync and async mode, and sync mode itself.

Async mode is in `async_vec.py`; in both modes `env_group.py` owns the env objects.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxima.envs.action_hold import Holder
from proxima.envs.checks import check_count, check_seed
from proxima.envs.contract import Episodes, Obs, Step, VecEnv
from proxima.envs.gymnasium.env_group import EnvGroup, Failure, Recipe, Wrapper
from proxima.envs.gymnasium.plain import Plain, pack, unpack
from proxima.envs.gymnasium.snapshot import NotPlain
from proxima.envs.gymnasium.spaces import Buffers, Layout, buffer_bytes, map_buffers
from proxima.errors import EnvFailure

logger = logging.getLogger("proxima")

MAX_FAILURES = 5


class GymVecEnv(VecEnv):
    """Buffers, torch views of them, and episode statistics; the subclass decides where the envs run."""

    def __init__(
        self,
        env_id: str,
        *,
        num_envs: int = 1,
        env_kwargs: Mapping[str, Any] | None = None,
        max_episode_steps: int | None = None,
        spread_episodes: bool = False,
        wrappers: Sequence[Wrapper] = (),
        max_failures: int = MAX_FAILURES,
    ) -> None:
        check_count("num_envs", num_envs)
        check_count("max_failures", max_failures)
        self.env_id = env_id
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.holder = Holder(num_envs)
        self._recipe = Recipe.of(env_id, env_kwargs=env_kwargs, max_episode_steps=max_episode_steps, wrappers=wrappers)
        self._spread_episodes = spread_episodes
        self._max_failures = max_failures
        self._base_seed = 0
        self._bank = 0
        self._started = False
        self._restarts = 0
        self._tested = False
        self._obstacle: str | None = None
        self._closed = False

    def _lay_out(self, layout: Layout, buffers: Buffers) -> None:
        """Set spaces and arrays; the subclass calls this when it knows them."""
        self.observation_space = layout.observation.space
        self.action_space = layout.action.space
        self.step_seconds = layout.step_seconds
        self.episode_info = layout.episode_info
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
        with self._closing_on_failure():
            self._reset_envs(seeds, spread_over=self.num_envs if self._spread_episodes else 0)
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
        with self._closing_on_failure():
            self._step_envs()

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
        states = self._get_env_states()
        if not isinstance(states, list):
            if states is not None and states != self._obstacle:
                logger.warning("The envs' state can no longer be saved: %s. A resume will start new episodes.", states)
                self._tested, self._obstacle = True, states
            return None
        text, data = pack(states)
        return {
            "envs": {"text": text, "data": torch.from_numpy(data)},
            "obs": {key: x.clone() for key, x in self._obs[self._bank].items()},
            "statistics": {name: torch.from_numpy(array.copy()) for name, array in self._statistics().items()},
            "hold": self.holder.get_state(),
            "base_seed": self._base_seed,
            "restarts": self._restarts,
        }

    def set_state(self, state: dict[str, Any]) -> Obs:
        """Restore a state and return the observation that the policy acts on next.

        Raises:
            NotPlain: the state does not fit an env, or the env raised.
        """
        self._check_open()
        self._base_seed, self._restarts, self._started = state["base_seed"], state["restarts"], True
        self.holder.set_state(state["hold"])
        reason = self._set_env_states(unpack(state["envs"]["text"], state["envs"]["data"].numpy()))
        if reason is not None:
            raise NotPlain(reason)
        for name, array in self._statistics().items():
            array[:] = state["statistics"][name].numpy()
        for key, x in self._obs[self._bank].items():
            x.copy_(state["obs"][key])
        return self._obs[self._bank]

    def why_inexact(self) -> str | None:
        """Why a resume would not be exact; tested once, on two envs built for the test."""
        if not self._tested:
            self._tested, self._obstacle = True, self._why_inexact()
        return self._obstacle

    def _statistics(self) -> dict[str, np.ndarray]:
        """What belongs to the state besides the envs: statistics of unfinished episodes, and failures."""
        return {
            "ended": self._ended,
            "return": self._return,
            "length": self._length,
            "restarts": self._buffers.restarts,
            "failures": self._buffers.failures,
        }

    def counters(self) -> dict[str, int]:
        """How many failed envs or workers have been replaced."""
        return {"worker_restarts": self._restarts}

    @abstractmethod
    def _reset_envs(self, seeds: list[int | None], *, spread_over: int) -> None:
        """Reset every env; first observations go into the current bank."""

    @abstractmethod
    def _step_envs(self) -> None:
        """Step every env with the actions in the buffers; observations go into the current bank."""

    @abstractmethod
    def _get_env_states(self) -> list[Plain] | str | None:
        """The state of every env; a reason if one cannot be saved, None if it is unavailable at the moment."""

    @abstractmethod
    def _set_env_states(self, states: list[Plain]) -> str | None:
        """Restore the state of every env; None, or why that is not possible."""

    @abstractmethod
    def _why_inexact(self) -> str | None:
        """Test whether an env with a restored state continues exactly."""

    def _report(self, failures: list[Failure], *, worker: int | None = None) -> None:
        """Log and count the envs that raised, and clear the list."""
        where = "" if worker is None else f" (worker {worker})"
        for failure in failures:
            gives_up = failure.in_a_row >= self._max_failures
            self._restarts += not gives_up
            logger.warning(
                "env %d%s raised in %s, failure %d of %d in a row; %s\n%s",
                failure.env_index,
                where,
                failure.doing,
                failure.in_a_row,
                self._max_failures,
                "giving up" if gives_up else "replaced by a new env with a fresh episode",
                failure.traceback.rstrip(),
            )
        failures.clear()

    @contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        try:
            yield
        except EnvFailure:
            self.close()
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this vector env has been closed")


class SyncVecEnv(GymVecEnv):
    """All envs in this process, stepped one after another."""

    def __init__(self, env_id: str, **options: Any) -> None:
        super().__init__(env_id, **options)
        self._group = EnvGroup(self._recipe, start=0, stop=self.num_envs, max_failures=self._max_failures)
        layout = self._group.layout
        buffers = map_buffers(layout, self.num_envs, np.zeros(buffer_bytes(layout, self.num_envs), dtype=np.uint8))
        self._group.attach(buffers)
        self._lay_out(layout, buffers)

    def _reset_envs(self, seeds: list[int | None], *, spread_over: int) -> None:
        try:
            self._group.reset(bank=self._bank, seeds=seeds, base_seed=self._base_seed, spread_over=spread_over)
        finally:
            self._report(self._group.failures)

    def _step_envs(self) -> None:
        try:
            self._group.step(self._bank)
        finally:
            self._report(self._group.failures)

    def _get_env_states(self) -> list[Plain] | str | None:
        return self._group.get_state()

    def _set_env_states(self, states: list[Plain]) -> str | None:
        return self._group.set_state(states, base_seed=self._base_seed)

    def _why_inexact(self) -> str | None:
        return self._group.why_inexact()

    def close(self) -> None:
        """Close the envs. Calling it twice is harmless."""
        if not self._closed:
            self._closed = True
            self._group.close()
