"""Observation and action spaces as plain data: enough to build a policy again without the env."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from proxima.errors import UsageError
from proxima.masks import ACTION_MASK


@dataclass(frozen=True)
class ActionSpec:
    """The action space of one env."""

    kind: str
    """box, discrete, multi_discrete or multi_binary."""
    sizes: tuple[int, ...]
    """(A,) numbers or binary choices; or the number of choices per column."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    """Of an action of the env; those of the policy are flat."""
    start: tuple[int, ...] = ()
    """First choice per column; () if all are 0."""
    dtype: str = "float32"

    def check(self) -> None:
        """Raise a ValueError if this is not the spec of an action space."""
        _require(self.kind in ("box", "discrete", "multi_discrete", "multi_binary"), f"the action is {self.kind!r:.80}")
        _require_whole(self.shape, "the action's shape")
        _require_whole(self.sizes, "the action's sizes", least=1)
        _require_whole(self.start, "the action's start", least=-(2**63))
        _require_dtype(self.dtype)
        box, count, columns = self.kind == "box", math.prod(self.shape), len(self.sizes)
        if self.kind == "multi_discrete":
            fits = columns == count
        else:
            fits = columns == 1 and (self.shape == () if self.kind == "discrete" else self.sizes[0] == count)
        _require(fits, f"an action of shape {self.shape} does not have sizes {self.sizes!s:.80}")
        _require(len(self.start) in (0, columns) and not (box and self.start), "the action's start does not fit it")
        for bound in (self.low, self.high):
            numbers = isinstance(bound, tuple) and all(isinstance(x, float) and x == x for x in bound)
            _require(numbers and len(bound) == (count if box else 0), "the action's bounds do not fit it")

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """Convert actions `[B, A]` or `[B]`, already scaled and clipped, to the env's space: `[B, *shape]`."""
        if self.start:
            action = action + np.array(self.start).reshape(action.shape[1:])
        action = action.reshape(len(action), *self.shape)
        dtype = np.dtype(self.dtype)
        if self.kind == "box" and dtype != np.float32:  # the policy's bounds were rounded to float32
            low, high = (np.array(bound).reshape(self.shape) for bound in (self.low, self.high))
            action = np.clip(action.astype(np.float64), low, high)
        return (np.rint(action) if dtype.kind in "iu" else action).astype(dtype)


@dataclass(frozen=True)
class ObsSpec:
    """One observation key."""

    shape: tuple[int, ...]
    dtype: str
    own_shape: tuple[int, ...] | None = None
    """Shape in the env's own space, if different: e.g. () of a Discrete space, which becomes one-hot."""
    choices: tuple[int, ...] = ()
    """Number of choices per column of a Discrete or MultiDiscrete space."""
    start: tuple[int, ...] = ()
    """First choice per column."""
    frames: int = 1
    """Number of stacked frames (`envs/spaces.py`)."""

    def check(self) -> None:
        """Raise a ValueError if this is not the spec of an observation."""
        _require_whole(self.shape, "an observation's shape")
        _require_whole(self.choices, "an observation's choices", least=1)
        _require_whole(self.start, "an observation's start", least=-(2**63))
        _require_whole((self.frames,), "an observation's frames", least=1)
        _require_dtype(self.dtype)
        if self.own_shape is not None:
            _require_whole(self.own_shape, "an observation's own shape")
        own, start = () if self.own_shape is None else self.own_shape, self.start
        fits = (math.prod(own), math.prod(self.shape)) == (len(self.choices), sum(self.choices))
        _require(
            len(start) == len(self.choices) and (fits or not self.choices), "an observation's choices do not fit it"
        )

    def read(self, key: str, value: ArrayLike) -> tuple[np.ndarray, bool]:
        """Convert one observation or a batch, in the env's or the policy's form, to `[B, *shape]`.

        Also returns whether it was a batch. If both forms have the same shape, integers are choices, floats one-hot.
        """
        array = np.asarray(value)
        axes = array.ndim - len(self.shape)
        fits = axes in (0, 1) and array.shape[axes:] == self.shape
        if self.own_shape is not None and (not fits or (self.choices and array.dtype.kind in "iu")):
            own_axes = array.ndim - len(self.own_shape)
            if own_axes in (0, 1) and array.shape[own_axes:] == self.own_shape:
                axes, fits = own_axes, True
                array = self._flatten(key, array)
        if not fits:
            own = "" if self.own_shape is None else f" (or {self.own_shape}, as the env has it)"
            raise UsageError(f"observation {key!r} has shape {array.shape}, but the policy takes {self.shape}{own}.")
        return array.reshape(-1, *self.shape), axes == 1

    def _flatten(self, key: str, array: np.ndarray) -> np.ndarray:
        if not self.choices:
            return array
        chosen = array.reshape(-1, len(self.choices)) - np.array(self.start)
        wrong = (chosen < 0) | (chosen >= self.choices) | (chosen != np.floor(chosen))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            first, count = self.start[column], self.choices[column]
            raise UsageError(
                f"observation {key!r} is {array.reshape(chosen.shape)[row, column]}, but its space has the whole "
                f"numbers from {first} to {first + count - 1}."
            )
        columns = zip(self.choices, chosen.astype(int).T, strict=True)
        return np.concatenate([np.eye(count, dtype=np.float32)[column] for count, column in columns], axis=1)


@dataclass(frozen=True)
class Spec:
    """Observation and action spaces."""

    obs: dict[str, ObsSpec]
    action: ActionSpec

    @property
    def has_masks(self) -> bool:
        """Whether the observation has an action mask: the key `action_mask`, with Discrete or MultiDiscrete actions."""
        return ACTION_MASK in self.obs and self.action.kind in ("discrete", "multi_discrete")

    def _wrong_mask(self) -> str:
        """How the mask does not fit the actions; empty if it does."""
        if not self.has_masks or self.obs[ACTION_MASK].shape == (sum(self.action.sizes),):
            return ""
        shape, choices = self.obs[ACTION_MASK].shape, sum(self.action.sizes)
        return f"the observation {ACTION_MASK!r} has shape {shape}, but the actions have {choices} choices"

    def to_dict(self) -> dict[str, Any]:
        """As dictionaries, lists and numbers, for YAML."""
        return {"obs": {key: _plain(o) for key, o in self.obs.items()}, "action": _plain(self.action)}

    def check_fit(self, other: "Spec", env_id: str, *, keys: Sequence[str] | None = None) -> None:
        """Raise a UsageError if an env's spaces differ from those that a policy of this spec was trained on.

        Given the `keys` that are needed, all others are ignored; so is a mask that the policy does not use.
        """
        if keys is None and other.has_masks and ACTION_MASK not in self.obs:
            keys = [key for key in {**self.obs, **other.obs} if key != ACTION_MASK]
        ours, theirs = self._what_matters(keys), other._what_matters(keys)
        for name in dict.fromkeys([*ours, *theirs]):
            one, two = ours.get(name, "missing"), theirs.get(name, "missing")
            if one != two:
                raise UsageError(f"env {env_id!r} does not fit the policy: its {name} is {two}, the policy's {one}.")

    def _what_matters(self, keys: Sequence[str] | None) -> dict[str, str]:
        """Shapes and bounds as text; dtypes do not matter, except that images are bytes."""
        seen = {
            f"observation {key!r}": f"{o.shape}" + (" of bytes" if o.dtype == "uint8" else "")
            for key, o in self.obs.items()
            if keys is None or key in keys
        }
        action = self.action
        bounds = f" from {list(action.low)} to {list(action.high)}" if action.low else ""
        return seen | {"action": f"{action.kind} {action.shape or action.sizes}{bounds}"}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Spec":
        """The spec that `to_dict` described; a ValueError if it is invalid."""
        obs = {key: ObsSpec(**_with_tuples(o)) for key, o in data["obs"].items()}
        action = ActionSpec(**_with_tuples(data["action"]))
        _require(bool(obs) and all(isinstance(key, str) for key in obs), "the spec's observations have no names")
        for one in obs.values():
            one.check()
        action.check()
        spec = cls(obs, action)
        _require(not spec._wrong_mask(), spec._wrong_mask())
        return spec

    @classmethod
    def from_spaces(cls, observation_space: spaces.Dict, action_space: spaces.Space) -> "Spec":
        """The spec of a vector env's single-env spaces."""
        obs = {key: _obs_spec(box) for key, box in observation_space.spaces.items()}
        spec = cls(obs, _action_spec(action_space))
        if wrong := spec._wrong_mask():
            raise UsageError(f"{wrong}: the key is reserved for their mask, rename it if it is something else.")
        return spec


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _require_whole(numbers: Any, what: str, *, least: int = 0) -> None:
    whole = isinstance(numbers, tuple) and all(isinstance(x, int) and not isinstance(x, bool) for x in numbers)
    _require(whole and all(least <= x < 2**63 for x in numbers), f"{what} is {numbers!s:.80}")


def _require_dtype(dtype: Any) -> None:
    _require(isinstance(dtype, str) and np.dtype(dtype).kind in "biuf", f"the dtype is {dtype!r:.80}")


def _plain(spec: ActionSpec | ObsSpec) -> dict[str, Any]:
    return {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(spec).items()}


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(x) if isinstance(x, list) else x for name, x in fields.items()}


def _obs_spec(box: spaces.Space) -> ObsSpec:
    source = getattr(box, "source", box)  # the space that a vector env converted to this Box
    shape, own = tuple(box.shape or ()), tuple(source.shape or ())
    choices: tuple[int, ...] = ()
    if isinstance(source, spaces.Discrete):
        choices = (int(source.n),)
    elif isinstance(source, spaces.MultiDiscrete):
        choices = tuple(int(n) for n in np.ravel(source.nvec))
    start = tuple(int(first) for first in np.ravel(source.start)) if choices else ()
    own_shape = None if own == shape and not choices else own
    return ObsSpec(shape, str(box.dtype), own_shape, choices, start, frames=getattr(box, "frames", 1))


def _action_spec(space: spaces.Space) -> ActionSpec:
    form: dict[str, Any] = {"shape": tuple(space.shape or ()), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Box):
        low, high = (tuple(np.ravel(bound).astype(float).tolist()) for bound in (space.low, space.high))
        return ActionSpec("box", (len(low),), low, high, **form)
    start = tuple(int(first) for first in np.ravel(getattr(space, "start", ())))
    form["start"] = start if any(start) else ()
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", (int(space.n),), **form)
    if isinstance(space, spaces.MultiDiscrete):
        return ActionSpec("multi_discrete", tuple(int(n) for n in np.ravel(space.nvec)), **form)
    if isinstance(space, spaces.MultiBinary):
        return ActionSpec("multi_binary", (int(np.prod(space.shape)),), **form)
    raise UsageError(f"the action space {space} is not supported: use Box, Discrete, MultiDiscrete or MultiBinary.")
