"""Gymnasium spaces as flat arrays: keys and shapes of observations, conversion of actions, and the shared buffers.

No torch here: worker processes import this file.
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from gymnasium import spaces

from proxima.envs.gymnasium.masked_env import Source
from proxima.envs.own import find_time_limit
from proxima.errors import UsageError

ONE_HOT = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class FlatBox(spaces.Box):
    """The Box that another space is flattened to; `source` is that space."""

    def __init__(self, source: spaces.Space) -> None:
        flat = spaces.flatten_space(source)
        assert isinstance(flat, spaces.Box)
        super().__init__(
            flat.low, flat.high, flat.shape, np.float32 if isinstance(source, ONE_HOT) else flat.dtype.type
        )
        self.source = source


class StackedBox(spaces.Box):
    """The Box of the last `frames` images, oldest first along the channels `[frames * C, H, W]`.

    At the start of an episode the first image is repeated, so a buffer can store each image once and rebuild the
    stacks.
    """

    def __init__(self, image: spaces.Box, frames: int) -> None:
        repeats = (frames, 1, 1)
        super().__init__(np.tile(image.low, repeats), np.tile(image.high, repeats), dtype=image.dtype.type)
        self.frames = frames


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of an observation: its path in the env's own observation, and the Box that it becomes."""

    key: str
    path: tuple[str | int, ...]
    space: spaces.Space
    box: spaces.Box


def _leaves(space: spaces.Space, path: tuple[str | int, ...], leave_out: Collection[str]) -> Iterator[Leaf | str]:
    """Every array of an observation; only the key of one that is left out."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for part, child in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            yield from _leaves(child, (*path, part), leave_out)
        return
    key = "/".join(str(part) for part in path) or "obs"
    if isinstance(space, spaces.Box):
        # A scalar observation becomes a vector of size 1, so that every array has a feature axis.
        yield Leaf(key, path, space, space if space.shape else FlatBox(space))
    elif isinstance(space, ONE_HOT):
        yield Leaf(key, path, space, FlatBox(space))
    elif key in leave_out:
        yield key
    else:
        raise UsageError(
            f"observation {key!r} is a {type(space).__name__} space ({space}), which has no fixed-size array form: "
            f"leave it out with --encoders '{{{key}: {{use: none}}}}', or wrap the env so that it is a Box, Dict, "
            "Tuple, Discrete, MultiDiscrete or MultiBinary"
        )


class ObservationLayout:
    """The flat Dict of Box that an observation space becomes; writes observations into arrays of these shapes."""

    def __init__(self, space: spaces.Space, leave_out: Collection[str] = ()) -> None:
        """Keys in `leave_out` are left out where their space has no fixed-size array form, which is an error else."""
        found = tuple(_leaves(space, (), leave_out))
        self.leaves = tuple(leaf for leaf in found if isinstance(leaf, Leaf))
        self.left_out = tuple(key for key in found if isinstance(key, str))
        keys = [leaf.key for leaf in self.leaves]
        if not keys:
            raise UsageError(f"the observation space {space} is empty: an env must have at least one array")
        if len(set(keys)) < len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise UsageError(f"observation keys clash after joining nested names with '/': {', '.join(twice)}")
        void = [leaf.key for leaf in self.leaves if not np.prod(leaf.box.shape)]
        if void:
            raise UsageError(f"observation {void[0]!r} has no numbers in it: leave it out of the observation space")
        self.space = spaces.Dict({leaf.key: leaf.box for leaf in self.leaves})

    def write(self, obs: Any, arrays: list[np.ndarray], row: int) -> None:
        """Write one env's observation into row `row` of the arrays, one array per leaf."""
        for leaf, array in zip(self.leaves, arrays, strict=True):
            value = obs
            for part in leaf.path:
                value = value[part]
            if isinstance(leaf.space, ONE_HOT):
                value = spaces.flatten(leaf.space, value)
            elif np.shape(value) != leaf.space.shape:
                # NumPy would silently broadcast a wrong shape.
                raise ValueError(
                    f"observation {leaf.key!r} has shape {np.shape(value)}, its space says {leaf.space.shape}"
                )
            array[row] = value


class ActionLayout:
    """Dtype and shape of one env's action, and the conversion from the agent's actions."""

    def __init__(self, space: spaces.Space) -> None:
        if not isinstance(space, (spaces.Box, *ONE_HOT)):
            raise UsageError(
                f"action space {space} ({type(space).__name__}) is not supported: "
                "wrap the env so that it is a Box, Discrete, MultiDiscrete or MultiBinary"
            )
        self.space = space
        self.shape: tuple[int, ...] = space.shape
        self.dtype: np.dtype = np.dtype(space.dtype)
        self.start: Any = getattr(space, "start", 0)  # an int, or an array for MultiDiscrete
        self.agent_shape: tuple[int, ...] = () if isinstance(space, spaces.Discrete) else (int(np.prod(space.shape)),)

    def write(self, action: np.ndarray, out: np.ndarray) -> None:
        """Write the agent's actions `[N, A]` (or `[N]`) into `out` `[N, *shape]`, shifted by the space's start."""
        action = action.reshape(out.shape)
        if isinstance(self.space, spaces.Box):
            if self.dtype.kind in "iu":
                action = np.rint(action)
            if self.dtype != np.float32:  # the agent's bounds were rounded to float32
                action = np.clip(action, self.space.low, self.space.high)
        np.copyto(out, action, casting="unsafe")
        if np.any(self.start):
            out += np.asarray(self.start, dtype=self.dtype)

    def reader(self, actions: np.ndarray) -> Callable[[int], Any]:
        """A function that returns one env's action from `actions`, copied, because an env may keep it."""
        if not self.shape:
            return actions.__getitem__
        return lambda row: actions[row].copy()


@dataclass(frozen=True)
class Layout:
    """What a vector env must know about one env to lay out its buffers."""

    observation: ObservationLayout
    action: ActionLayout
    step_seconds: float | None
    episode_info: tuple[str, ...] = ()
    """Keys of `info` whose values are stored when an episode ends."""
    log_info: tuple[str, ...] = ()
    """Keys of `info` whose values are summed over all steps."""
    time_limit: int | None = None
    """Env steps of the longest episode, if there is a limit."""
    masks: Source = ""
    """Where the env has its action mask, which is one of the observation keys here."""


# Names of the statistics of episodes that every env has.
_TAKEN = {"success", *(f"{x}{y}" for x in ("return", "length") for y in ("", "_min", "_max", "_std"))}


def episode_info(env: Any) -> tuple[str, ...]:
    """The keys of `info` that an env declares as statistics of an episode: its attribute `episode_info`."""
    names = getattr(env.unwrapped, "episode_info", ())
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        return ()  # an attribute with another meaning
    taken = [name for name in names if name in _TAKEN]
    if taken:
        raise UsageError(f"the env's episode_info names {taken[0]!r}, which is reported for every env: leave it out")
    return tuple(dict.fromkeys(names))


def episode_names(env: Any, log_info: Collection[str]) -> tuple[str, ...]:
    """Names of the statistics of an episode: the env's `episode_info`, and the keys `log_info`."""
    return tuple(dict.fromkeys((*episode_info(env), *(name for name in log_info if name not in _TAKEN))))


def step_seconds(env: Any) -> float | None:
    """Simulated seconds per env step: `dt` or `tau` of the env, else from its frame rate, else None."""
    inner = env.unwrapped
    for name in ("dt", "tau"):
        value = getattr(inner, name, None)
        if isinstance(value, (int, float, np.floating)) and value > 0:
            return float(value)
    frames_per_second = (getattr(inner, "metadata", None) or {}).get("render_fps")
    if isinstance(frames_per_second, (int, float)) and frames_per_second > 0:
        return 1.0 / frames_per_second
    return None


def layout_of(env: Any, leave_out: Collection[str] = (), log_info: tuple[str, ...] = ()) -> Layout:
    """The layout of a Gymnasium env; the keys `log_info` are also statistics of its episodes."""
    spaces_ = ObservationLayout(env.observation_space, leave_out), ActionLayout(env.action_space)
    names, limit = episode_names(env, log_info), find_time_limit(env)
    return Layout(*spaces_, step_seconds(env), names, log_info, limit and limit._max_episode_steps)


@dataclass(slots=True)
class Buffers:
    """The arrays between envs and agent, over one block of memory that may be shared between processes.

    Observations have two banks, written in turn: when a worker dies in the middle of a step, the other bank still has
    the observations that the agent saw last.
    """

    obs: tuple[list[np.ndarray], list[np.ndarray]]
    final_obs: list[np.ndarray]
    action: np.ndarray
    hold: np.ndarray  # [N] int64: for how many env steps the action is to be held
    gamma: np.ndarray  # [N] float64: discount of rewards within a hold
    duration: np.ndarray  # [N] int64: for how many env steps it was held
    total: np.ndarray  # [N] float64: undiscounted sum of rewards over the hold
    reward: np.ndarray  # [N] float64: discounted sum of rewards over the hold
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    restarts: np.ndarray  # [N] int64: how often the env has been replaced since its last seeded reset
    failures: np.ndarray  # [N] int64: failures since the env's last successful step
    success: np.ndarray  # [N] float64: of the episode that just ended, as the env reports it, or NaN
    info: np.ndarray  # [N, K] float64: `episode_info` of that episode, NaN if not reported
    info_sum: np.ndarray  # [N, 2, K] float64: sums of the numbers of `log_info`, and how many they are

    def rows(self, start: int, stop: int) -> "Buffers":
        """Views of the rows of envs `start` to `stop`."""

        def cut(value: Any) -> Any:
            return [cut(each) for each in value] if isinstance(value, (list, tuple)) else value[start:stop]

        return Buffers(*(cut(getattr(self, field.name)) for field in fields(self)))

    def mark_lost(self, rows: int | slice, bank: int) -> None:
        """Results of a step that failed: reward 0, truncated at the last observation that the agent saw."""
        for final, last in zip(self.final_obs, self.obs[1 - bank], strict=True):
            final[rows] = last[rows]
        self.reward[rows] = self.total[rows] = 0.0
        self.duration[rows] = 1
        self.terminated[rows], self.truncated[rows] = False, True
        self.success[rows] = self.info[rows] = np.nan


_INT, _FLOAT, _BOOL = np.int64, np.float64, np.bool_
_DTYPES = (_INT, _FLOAT, _INT, _FLOAT, _FLOAT, _BOOL, _BOOL, _INT, _INT, _FLOAT)  # of the fields `hold` to `success`
_ALIGNMENT = 64  # bytes: no two arrays share a cache line


def _arrays(layout: Layout, num_envs: int) -> tuple[list[tuple[int, tuple[int, ...], np.dtype]], int]:
    """Offset, shape and dtype of every array, and the bytes of all."""
    bank = [(leaf.box.shape, leaf.box.dtype) for leaf in layout.observation.leaves]
    action, info = (layout.action.shape, layout.action.dtype), ((len(layout.episode_info),), np.float64)
    info_sum = ((2, len(layout.log_info)), np.float64)
    specs, size = [], 0
    for shape, kind in [*bank * 3, action, *(((), kind) for kind in _DTYPES), info, info_sum]:
        dtype = np.dtype(kind)
        specs.append((size, (num_envs, *shape), dtype))
        size += -(-num_envs * math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    return specs, size


def buffer_bytes(layout: Layout, num_envs: int) -> int:
    """Memory that the buffers of `num_envs` envs take."""
    return _arrays(layout, num_envs)[1]


def map_buffers(layout: Layout, num_envs: int, memory: Any) -> Buffers:
    """Lay the arrays over `memory` (anything with a writable buffer), in the same order in every process."""
    specs, _ = _arrays(layout, num_envs)
    arrays = [np.ndarray(shape, dtype, buffer=memory, offset=offset) for offset, shape, dtype in specs]
    count = len(layout.observation.leaves)
    banks = (arrays[:count], arrays[count : 2 * count])
    return Buffers(banks, arrays[2 * count : 3 * count], *arrays[3 * count :])
