"""The one place that owns Gymnasium env objects: builds, steps, autoresets and replaces them.

Sync mode has one group in the process itself, async mode one in every worker, so both give the same trajectories.
No torch here: worker processes import this file.
"""

import contextlib
import difflib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from proxima.envs.action_hold import repeat
from proxima.envs.catalog import find_spec, with_kwargs
from proxima.envs.checks import check_count
from proxima.envs.gymnasium.env_errors import asks_to_stop, env_errors_ignored, first_line
from proxima.envs.gymnasium.exactness_trial import why_inexact
from proxima.envs.gymnasium.plain import Plain
from proxima.envs.gymnasium.snapshot import NotPlain, Snapshot, time_limit
from proxima.envs.gymnasium.spaces import Buffers, Layout, layout_of
from proxima.envs.gymnasium.step_values import read_flag, read_info, read_reward, reported_number, reported_success
from proxima.envs.mujoco.model_warnings import model_warnings
from proxima.errors import EnvFailure, UsageError

Wrapper = Callable[[gym.Env], gym.Env]
ENV_ERRORS = (Exception, SystemExit)
"""For drawing and evaluation, where nothing is replaced; here `asks_to_stop` decides."""


def _usage_error(spec: EnvSpec, error: BaseException) -> UsageError:
    """What a failed construction means to the user, in one line."""
    text = first_line(error)
    if isinstance(error, gym.error.DependencyNotInstalled):
        if "box2d" in str(spec.entry_point).lower():
            why = f" ({first_line(error.__cause__)})" if error.__cause__ else ""
            return UsageError(f'env {spec.id!r} needs Box2D{why}: pip install "gymnasium[box2d]"')
        return UsageError(f"env {spec.id!r} needs a package that is not installed: {text}")
    if isinstance(error, ModuleNotFoundError):
        return UsageError(f"env {spec.id!r} needs the package {error.name!r}, which cannot be imported")
    keyword = re.search(r"unexpected keyword argument '(\w+)'", text) if isinstance(error, TypeError) else None
    if keyword and keyword[1] in spec.kwargs:
        near = difflib.get_close_matches(keyword[1], _keywords(spec), n=1)
        advice = f"; did you mean {near[0]!r}?" if near else ""
        return UsageError(f"env {spec.id!r} does not take the keyword {keyword[1]!r}{advice}")
    return UsageError(f"cannot build env {spec.id!r}: {type(error).__name__}: {text}")


def _keywords(spec: EnvSpec) -> list[str]:
    creator: Any = spec.entry_point
    if isinstance(creator, str):
        module, _, name = creator.partition(":")
        creator = getattr(importlib.import_module(module), name)
    try:
        return list(inspect.signature(creator).parameters)
    except (TypeError, ValueError):
        return []


@dataclass(frozen=True)
class Recipe:
    """Everything needed to build one env, here or in another process."""

    spec: EnvSpec
    module: str | None = None
    """Imported before the first env is built: the module of a `module:EnvId`."""
    max_episode_steps: int | None = None
    wrappers: tuple[Wrapper, ...] = ()

    @classmethod
    def of(
        cls,
        env_id: str,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        max_episode_steps: int | None = None,
        wrappers: Sequence[Wrapper] = (),
    ) -> "Recipe":
        """Look the id up.

        Raises:
            UsageError: there is no such id; the nearest one is named.
        """
        check_count("max_episode_steps", max_episode_steps)
        spec = with_kwargs(find_spec(env_id), env_kwargs)
        return cls(spec, env_id.rpartition(":")[0] or None, max_episode_steps, tuple(wrappers))

    def portable(self) -> "Recipe":
        """The same recipe with nothing in it that only this process can look up by name."""
        entry_point = self.spec.entry_point
        if isinstance(entry_point, str) and entry_point.startswith("__main__:"):
            creator = getattr(sys.modules["__main__"], entry_point.partition(":")[2])
            return replace(self, spec=replace(self.spec, entry_point=creator))
        return self

    def build(self) -> gym.Env:
        """Build one env, with the wrappers around it.

        Raises:
            UsageError: the env cannot be built; one line says why.
        """
        try:
            if self.module:
                importlib.import_module(self.module)
            is_mujoco = str(self.spec.entry_point).startswith("gymnasium.envs.mujoco.")
            with model_warnings() if is_mujoco else contextlib.nullcontext():
                env = gym.make(self.spec, max_episode_steps=self.max_episode_steps, disable_env_checker=True)
            for wrapper in self.wrappers:
                env = wrapper(env)
            return env
        except BaseException as error:
            if asks_to_stop(error) or isinstance(error, UsageError):
                raise
            raise _usage_error(self.spec, error) from error


@dataclass(frozen=True, slots=True)
class Failure:
    """An env that raised and was replaced by a new one."""

    env_index: int
    doing: str  # "step", "reset" or "its restart"
    traceback: str
    in_a_row: int

    @property
    def last_line(self) -> str:
        """The exception itself, without the way to it."""
        return self.traceback.strip().splitlines()[-1]


def restart_seed(base_seed: int, env_index: int, restarts: int) -> int:
    """The seed of an env that replaces a failed one: another episode each time, the same in a repeated run."""
    return int(np.random.SeedSequence((base_seed, env_index, restarts)).generate_state(1)[0])


class EnvGroup:
    """Envs `start` to `stop` of a vector env, stepped one after another, results written into buffers.

    An env that raises in `step` or `reset` is replaced by a new object with a fresh episode, and the step in which it
    happened reads as a truncation with reward 0; `events` tells of it.
    """

    def __init__(self, recipe: Recipe, *, start: int, stop: int, max_failures: int) -> None:
        self.start = start
        self.max_failures = max_failures
        self.events: list[Failure] = []
        self._recipe = recipe
        self._base_seed = 0
        self._envs: list[gym.Env] = []
        try:
            for _ in range(start, stop):
                self._envs.append(recipe.build())
            self._snapshots = [Snapshot(env) for env in self._envs]
            self.layout: Layout = layout_of(self._envs[0])
        except BaseException as error:
            self.close()
            if asks_to_stop(error) or isinstance(error, UsageError):
                raise
            raise _usage_error(recipe.spec, error) from error

    def attach(self, buffers: Buffers) -> None:
        """Say where actions are read and results are written: the rows of this group."""
        self._buffers = buffers
        self._action = self.layout.action.reader(buffers.action)

    def reset(self, *, bank: int, seeds: Sequence[int | None], base_seed: int, spread_over: int = 0) -> None:
        """Start a new episode in every env, with its seed, or where its generator stands if that is None.

        Envs that replace failed ones later take their seeds from `base_seed`. With `spread_over` envs in the whole
        vector env, the time limit of env i starts at i / `spread_over` of its length, so that episodes end out of
        phase; 0 leaves it.
        """
        self._base_seed = base_seed
        for row, seed in enumerate(seeds):
            try:
                self._snapshots[row].before_reset(seed)
                obs, _ = self._envs[row].reset(seed=seed)
                self.layout.observation.write(obs, self._buffers.obs[bank], row)
            except BaseException as error:
                if asks_to_stop(error):
                    raise
                self._replace(row, bank, "reset")
            if spread_over and (limit := time_limit(self._envs[row])) is not None:
                self._snapshots[row].set_elapsed(limit._max_episode_steps * (self.start + row) // spread_over)

    def step(self, bank: int) -> None:
        """Step every env with its action for as long as that is held, and start the next episode where one ended."""
        buffers, write = self._buffers, self.layout.observation.write
        arrays = buffers.obs[bank]
        holds = zip(buffers.hold.tolist(), buffers.gamma.tolist(), strict=True)
        for row, (hold, gamma) in enumerate(holds):
            try:
                done = repeat(partial(self._step_once, row), hold, gamma)
                ended = done.terminated or done.truncated
                write(done.obs, buffers.final_obs if ended else arrays, row)
                buffers.reward[row], buffers.total[row], buffers.duration[row] = done.reward, done.total, done.duration
                buffers.terminated[row] = done.terminated
                buffers.truncated[row] = done.truncated
                if ended:
                    buffers.success[row] = reported_success(done.info)
                    for column, name in enumerate(self.layout.episode_info):
                        buffers.info[row, column] = reported_number(done.info.get(name))
            except BaseException as error:
                if asks_to_stop(error):
                    raise
                self._mark_lost(row, bank)
                self._replace(row, bank, "step")
                continue
            buffers.failures[row] = 0
            if ended:
                try:
                    self._snapshots[row].before_reset(None)
                    obs, _ = self._envs[row].reset()
                    write(obs, arrays, row)
                except BaseException as error:
                    if asks_to_stop(error):
                        raise
                    self._replace(row, bank, "reset")

    def _step_once(self, row: int) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        action = self._action(row)
        self._snapshots[row].before_step(action)
        obs, reward, terminated, truncated, info = self._envs[row].step(action)
        ends = read_flag(terminated, "terminated"), read_flag(truncated, "truncated")
        return obs, read_reward(reward), *ends, read_info(info)

    def get_state(self) -> list[Plain] | str:
        """The exact state of every env, or why one of them has become impossible to capture."""
        try:
            return [snapshot.capture() for snapshot in self._snapshots]
        except NotPlain as error:
            return str(error)
        except BaseException as error:  # out of an env's own get_state()
            if asks_to_stop(error):
                raise
            return f"{type(error).__name__}: {first_line(error)}"

    def set_state(self, states: Sequence[Plain], *, base_seed: int) -> None:
        """Put states of `get_state` into the envs.

        Raises:
            NotPlain: a state does not fit, or the env failed over it.
        """
        self._base_seed = base_seed
        for snapshot, state in zip(self._snapshots, states, strict=True):
            try:
                snapshot.restore(state)
            except NotPlain:
                raise
            except BaseException as error:
                if asks_to_stop(error):
                    raise
                raise NotPlain(f"{type(error).__name__}: {first_line(error)}") from error

    def why_inexact(self) -> str | None:
        """Why a state put into another env does not go on exactly; None where it was tried and does."""
        return why_inexact(self._recipe.build)

    def close(self) -> None:
        """Close every env, whatever they raise."""
        for env in self._envs:
            with env_errors_ignored():
                env.close()
        self._envs = []

    def take_events(self) -> list[Failure]:
        """The failures since the last call."""
        events, self.events = self.events, []
        return events

    def _mark_lost(self, row: int, bank: int) -> None:
        """The step of an env that failed: cut off at the last observation that the agent saw."""
        buffers = self._buffers
        for final, last in zip(buffers.final_obs, buffers.obs[1 - bank], strict=True):
            final[row] = last[row]
        buffers.reward[row] = buffers.total[row] = 0.0
        buffers.duration[row] = 1
        buffers.success[row] = np.nan
        buffers.info[row] = np.nan
        buffers.terminated[row] = False
        buffers.truncated[row] = True

    def _replace(self, row: int, bank: int, doing: str) -> None:
        """Put a new env in the place of one that just raised.

        Raises:
            EnvFailure: it failed `max_failures` times without one good step between.
        """
        buffers = self._buffers
        while True:
            buffers.failures[row] += 1
            in_a_row = int(buffers.failures[row])
            failure = Failure(self.start + row, doing, traceback.format_exc(), in_a_row)
            self.events.append(failure)
            if in_a_row >= self.max_failures:
                raise EnvFailure(
                    f"env {failure.env_index} of {self._recipe.spec.id!r} failed {in_a_row} times in a row, the last "
                    f"time in {doing}: {failure.last_line}"
                )
            buffers.restarts[row] += 1
            try:
                with env_errors_ignored():
                    self._envs[row].close()
                self._envs[row] = self._recipe.build()
                self._snapshots[row] = Snapshot(self._envs[row])
                seed = restart_seed(self._base_seed, failure.env_index, int(buffers.restarts[row]))
                self._snapshots[row].before_reset(seed)
                obs, _ = self._envs[row].reset(seed=seed)
                self.layout.observation.write(obs, buffers.obs[bank], row)
                return
            except BaseException as error:
                if asks_to_stop(error):
                    raise
                doing = "its restart"
