"""The only code that builds, steps, autoresets and replaces Gymnasium env objects.

Sync mode has one group in its own process, async mode one in every worker, so both have the same trajectories.
No torch here: worker processes import this file.
"""

import contextlib
import difflib
import importlib
import inspect
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator

from proxima.envs.action_hold import repeat
from proxima.envs.catalog import find_spec, is_emulator, is_mujoco
from proxima.envs.checks import check_count
from proxima.envs.gymnasium.env_errors import asks_to_stop, close_env
from proxima.envs.gymnasium.exactness_trial import why_inexact
from proxima.envs.gymnasium.masked_env import MaskedEnv, Source, mask_source
from proxima.envs.gymnasium.plain import Plain
from proxima.envs.gymnasium.snapshot import NotPlain, TrackedEnv
from proxima.envs.gymnasium.spaces import Buffers, Layout, layout_of
from proxima.envs.gymnasium.step_values import reported_number, reported_success
from proxima.envs.own import OwnSpec, Wrapper, is_vector, makes_vector
from proxima.errors import EnvFailure, UsageError, first_line, one_line
from proxima.masks import ACTION_MASK


def usage_error(spec: EnvSpec, error: BaseException) -> UsageError:
    """Why an env cannot be built, in one line: a missing package, an unknown keyword, or its own exception."""
    text = first_line(error)
    if isinstance(error, gym.error.DependencyNotInstalled):
        if "box2d" in str(spec.entry_point).lower():
            why = f" ({first_line(error.__cause__)})" if error.__cause__ else ""
            return UsageError(f'env {spec.id!r} needs Box2D{why}: pip install "gymnasium[box2d]"')
        return UsageError(f"env {spec.id!r} needs a package that is not installed: {text}")
    if isinstance(error, ModuleNotFoundError):
        return UsageError(f"env {spec.id!r} needs the package {error.name!r}, which cannot be imported")
    # A keyword that a subclass of MujocoEnv sets itself is given twice.
    keyword = re.search(r"(?:unexpected keyword|multiple values for(?: keyword)?) argument '(\w+)'", text)
    if isinstance(error, TypeError) and keyword and keyword[1] in spec.kwargs:
        near = difflib.get_close_matches(keyword[1], set(_keywords(spec)) - {keyword[1]}, n=1)
        advice = f"; did you mean {near[0]!r}?" if near else ""
        return UsageError(f"env {spec.id!r} does not take the keyword {keyword[1]!r}{advice}")
    return UsageError(f"cannot build env {spec.id!r}: {one_line(error)}")


def _keywords(spec: EnvSpec) -> list[str]:
    creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    try:
        return list(inspect.signature(creator).parameters)
    except (TypeError, ValueError):
        return []


@contextlib.contextmanager
def model_warnings() -> Iterator[None]:
    """Turn MuJoCo's warnings into Python's; MuJoCo itself prints them and writes a file in the working folder.

    Deprecation warnings are ignored: the user cannot change Gymnasium's model files.
    """
    import mujoco

    def warn(message: str) -> None:
        if "deprecated" not in message:
            warnings.warn(f"MuJoCo: {message}", stacklevel=2)

    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(warn)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(previous)


@dataclass(frozen=True)
class Recipe:
    """Everything needed to build one env, here or in another process."""

    spec: EnvSpec
    module: str | None = None
    """The module of a `module:EnvId`; imported before an env is built."""
    max_episode_steps: int | None = None
    wrappers: tuple[Wrapper, ...] = ()
    leave_out: tuple[str, ...] = ()
    """Observation keys that are left out if they are in no space that a policy takes."""

    @classmethod
    def of(
        cls,
        env_id: str,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        max_episode_steps: int | None = None,
        wrappers: Sequence[Wrapper] = (),
        leave_out: Sequence[str] = (),
    ) -> "Recipe":
        """Look the id up; `find_spec` raises if there is no such id."""
        check_count("max_episode_steps", max_episode_steps)
        spec = find_spec(env_id)
        is_own = isinstance(spec, OwnSpec)
        if is_own and (is_vector(spec.entry_point) or makes_vector(spec.entry_point)):
            raise UsageError(f"env {env_id!r} is a vector env: there is no single env of it to build or to show")
        if is_own and isinstance(spec.entry_point, gym.Env):
            raise UsageError(
                f"env {env_id!r} is one env object, and training makes several: give the function or class that makes "
                "it, such as env=lambda: MyEnv(...)"
            )
        # Gymnasium copies the keywords for each env it makes.
        spec = replace(spec, kwargs={**spec.kwargs, **(env_kwargs or {})})
        module = None if is_own else env_id.rpartition(":")[0] or None
        return cls(spec, module, max_episode_steps, tuple(wrappers), tuple(leave_out))

    def pickled(self) -> bytes:
        """The recipe for another process; a class of the main script is pickled itself, not by name."""
        import cloudpickle  # type: ignore[import-untyped]

        spec = self.spec
        try:
            return cloudpickle.dumps(replace(self, spec=_with_creator(spec)))
        except Exception as error:
            raise UsageError(
                f"env {spec.id!r} cannot be sent to a worker process ({type(error).__name__}: {error}); use sync mode, "
                "or give it arguments that can be pickled"
            ) from error

    def build(self) -> gym.Env:
        """Build one env and its wrappers; UsageError if that fails."""
        try:
            if self.module:
                importlib.import_module(self.module)
            if isinstance(self.spec, OwnSpec):
                env = self.spec.make(self.max_episode_steps)
            else:
                with model_warnings() if is_mujoco(self.spec) else contextlib.nullcontext():
                    env = gym.make(self.spec, max_episode_steps=self.max_episode_steps, disable_env_checker=True)
            for wrapper in self.wrappers:
                env = wrapper(env)
            return env
        except BaseException as error:
            if asks_to_stop(error) or isinstance(error, UsageError):
                raise
            raise usage_error(self.spec, error) from error


def _with_creator(spec: EnvSpec) -> EnvSpec:
    """A spec that another process can use: with the class itself, if it is one of the main script."""
    if isinstance(spec.entry_point, str) and spec.entry_point.startswith("__main__:"):
        return replace(spec, entry_point=load_env_creator(spec.entry_point))
    return spec


def sendable_spec(env_id: str) -> EnvSpec | None:
    """The spec of a Gymnasium id for another process, which may not have registered it; None for the user's own."""
    spec = find_spec(env_id)
    return None if isinstance(spec, OwnSpec) else _with_creator(spec)


class Called(NamedTuple):
    """Results of a method of every env."""

    results: list[Any]
    replays: bool
    """Whether the envs' state is saved by replaying actions, which does not include what the method changed."""


def restart_seed(base_seed: int, env_index: int, restarts: int) -> int:
    """The seed of an env that replaces a failed one: different for each restart, the same in a repeated run."""
    return int(np.random.SeedSequence((base_seed + env_index, restarts)).generate_state(1)[0])


class EnvGroup:
    """Envs `start` to `stop` of a vector env, stepped one after another, results written into buffers.

    An env that raises in `step` or `reset` is replaced by a new object with a fresh episode, and the step in which it
    raised is returned as a truncation with reward 0. `async_vec.WorkerPool` has the same interface.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        start: int,
        stop: int,
        max_failures: int,
        log_info: tuple[str, ...] = (),
        label: str = "",
        masks: Source | None = None,
    ) -> None:
        """`masks`: where the envs have their action masks, if that is known."""
        self.failures: list[str] = []
        """Messages about envs that raised, until the owner logs and clears them."""
        self.restarts = 0
        """Number of envs that have been replaced."""
        self._recipe, self._start, self._max_failures, self._label = recipe, start, max_failures, label
        self._base_seed, self._masks = 0, masks
        self._envs: list[TrackedEnv] = []
        try:
            for _ in range(start, stop):
                self._envs.append(TrackedEnv(self._build()))
            layout = layout_of(self._envs[0].env, recipe.leave_out, log_info)
            self.layout: Layout = replace(layout, masks=self._masks or "")
            has_choices = isinstance(layout.action.space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
            self._ignores_masks = has_choices and not self._masks
        except BaseException as error:
            self.close()
            if asks_to_stop(error) or isinstance(error, UsageError):
                raise
            raise usage_error(recipe.spec, error) from error

    def _build(self) -> gym.Env:
        env = self._recipe.build()
        if self._masks is None:
            # Emulators have no masks, and most of them run once per process.
            self._masks = mask_source(env, None if is_emulator(self._recipe.spec) else self._recipe.build)
        return MaskedEnv(env, self._masks) if self._masks else env

    def allocate(self, size: int) -> Any:
        """Memory for the buffers of this process alone."""
        return np.zeros(size, np.uint8)

    def attach(self, buffers: Buffers) -> None:
        """Read actions from these buffers and write results into them: the rows of this group."""
        self._buffers = buffers
        self._action = self.layout.action.reader(buffers.action)

    def reset(self, *, bank: int, seeds: Sequence[int | None], base_seed: int, spread: tuple[int, int] | None) -> None:
        """Start a new episode in every env, with its seed; None continues with the env's generator.

        Seeds of envs that replace failed ones are derived from `base_seed`. With `spread`, the number of the vector
        env's first env and the number of all envs, the time limit of env i starts at `(first + i) / all` of its
        length, so that episodes end out of phase; with None every time limit starts at 0.
        """
        self._base_seed = base_seed
        for row, seed in enumerate(seeds):
            self._reset_env(row, bank, seed)
            env = self._envs[row]
            if spread is not None and env.time_limit is not None:
                first, total = spread
                env.set_elapsed(env.time_limit._max_episode_steps * (first + self._start + row) // total)

    def step(self, bank: int) -> None:
        """Step every env with its action, for as long as it is held, and start a new episode where one ended."""
        buffers, write = self._buffers, self.layout.observation.write
        arrays = buffers.obs[bank]
        holds = zip(buffers.hold.tolist(), buffers.gamma.tolist(), strict=True)
        for row, (hold, gamma) in enumerate(holds):
            try:
                done = repeat(partial(self._step_env, row), hold, gamma, partial(self._may_repeat, row))
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
                buffers.mark_lost(row, bank)
                self._replace(row, bank, "step")
                continue
            buffers.failures[row] = 0
            if ended:
                self._reset_env(row, bank, None)

    def _step_env(self, row: int) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        step = self._envs[row].step(self._action(row))
        if self._ignores_masks and ACTION_MASK in step[-1]:
            raise ValueError(
                "info has an action_mask in step, but had none in the reset of another env of its kind, which shows "
                "where masks are: report it in every reset and step, as an observation key, or by action_masks()"
            )
        if self.layout.log_info:
            self._sum_info(row, step[-1])
        return step

    def _sum_info(self, row: int, info: Mapping[str, Any]) -> None:
        total, count = self._buffers.info_sum[row]
        for column, name in enumerate(self.layout.log_info):
            number = reported_number(info.get(name))
            if np.isfinite(number):
                total[column] += number
                count[column] += 1

    def _may_repeat(self, row: int, obs: Any) -> bool:
        """Whether the held action is still valid."""
        env = self._envs[row].env
        return not isinstance(env, MaskedEnv) or env.allows(obs, self._action(row))

    def _reset_env(self, row: int, bank: int, seed: int | None) -> None:
        try:
            self.layout.observation.write(self._envs[row].reset(seed), self._buffers.obs[bank], row)
        except BaseException as error:
            if asks_to_stop(error):
                raise
            self._replace(row, bank, "reset")

    def get_state(self) -> list[Plain] | str:
        """The exact state of every env, or why that of one of them cannot be saved."""
        try:
            return [env.capture() for env in self._envs]
        except BaseException as error:
            return _why_not(error)

    def set_state(self, states: Sequence[Plain], *, base_seed: int) -> str | None:
        """Restore states of `get_state`; returns None, or why one of them cannot be restored."""
        self._base_seed = base_seed
        try:
            for env, state in zip(self._envs, states, strict=True):
                env.restore(state)
        except BaseException as error:
            return _why_not(error)
        return None

    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Called | str:
        """Call a method of every env, of the outermost wrapper that has it; returns the results, or why there are none.

        An env that is replaced later does not know of the call.
        """
        try:
            results = [env.env.get_wrapper_attr(name)(*args, **kwargs) for env in self._envs]
        except BaseException as error:
            if asks_to_stop(error):
                raise
            return f"{name} of env {self._recipe.spec.id!r}: {one_line(error)}"
        return Called(results, replays=self._envs[0].replays)

    def why_inexact(self) -> str | None:
        """Why an env with a restored state would not continue exactly; None if a test showed that it does."""
        return why_inexact(self._build)

    def close(self) -> None:
        """Close every env; what they raise is ignored."""
        for env in self._envs:
            close_env(env.env)
        self._envs = []

    def _replace(self, row: int, bank: int, doing: str) -> None:
        """Replace an env that has just raised; EnvFailure after `max_failures` without a successful step in between."""
        buffers = self._buffers
        while True:
            buffers.failures[row] += 1
            index, in_a_row, trace = self._start + row, int(buffers.failures[row]), traceback.format_exc().rstrip()
            gives_up = in_a_row >= self._max_failures
            self.failures.append(
                f"env {index}{self._label} raised in {doing}, failure {in_a_row} of {self._max_failures} in a row; "
                f"{'giving up' if gives_up else 'replaced by a new env with a fresh episode'}\n{trace}"
            )
            if gives_up:
                raise EnvFailure(
                    f"env {index} of {self._recipe.spec.id!r} failed {in_a_row} times in a row, the last time in "
                    f"{doing}: {trace.splitlines()[-1]}"
                )
            self.restarts += 1
            buffers.restarts[row] += 1
            try:
                close_env(self._envs[row].env)
                self._envs[row] = TrackedEnv(self._build())
                seed = restart_seed(self._base_seed, index, int(buffers.restarts[row]))
                self.layout.observation.write(self._envs[row].reset(seed), buffers.obs[bank], row)
                return
            except BaseException as error:
                if asks_to_stop(error):
                    raise
                doing = "its restart"


def _why_not(error: BaseException) -> str:
    """Why a state cannot be saved or restored, in one line; a request to stop is raised again."""
    if asks_to_stop(error):
        raise error
    return str(error) if isinstance(error, NotPlain) else one_line(error)
