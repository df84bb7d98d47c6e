"""Gymnasium spaces as flat arrays: which keys and shapes an observation has, and what an action looks like to the env.

No torch here: worker processes import this file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from proxima.errors import UsageError

ONE_HOT = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class FlatBox(spaces.Box):
    """The Box that another space becomes, which remembers what it was."""

    def __init__(self, source: spaces.Space) -> None:
        flat = spaces.flatten_space(source)
        assert isinstance(flat, spaces.Box)
        super().__init__(
            flat.low, flat.high, flat.shape, np.float32 if isinstance(source, ONE_HOT) else flat.dtype.type
        )
        self.source = source


class StackedBox(spaces.Box):
    """The Box of the last `frames` images, oldest first along the channels `[frames * C, H, W]`.

    At the start of an episode the first image is repeated. A buffer may therefore store each image once and rebuild
    the stacks.
    """

    def __init__(self, image: spaces.Box, frames: int) -> None:
        repeats = (frames, 1, 1)
        super().__init__(np.tile(image.low, repeats), np.tile(image.high, repeats), dtype=image.dtype.type)
        self.frames = frames


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of an observation: where it sits in the env's own observation, and the Box that it becomes."""

    key: str
    path: tuple[str | int, ...]
    space: spaces.Space
    box: spaces.Box


def _leaves(space: spaces.Space, path: tuple[str | int, ...]) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for name, child in space.spaces.items():
            yield from _leaves(child, (*path, name))
        return
    if isinstance(space, spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from _leaves(child, (*path, index))
        return
    key = "/".join(str(part) for part in path) or "obs"
    if isinstance(space, spaces.Box):
        # A scalar observation becomes a vector of one, so that every array has a feature axis.
        box = space if space.shape else FlatBox(space)
        yield Leaf(key, path, space, box)
    elif isinstance(space, ONE_HOT):
        yield Leaf(key, path, space, FlatBox(space))
    else:
        raise UsageError(
            f"observation {key!r} is a {type(space).__name__} space ({space}), which has no fixed-size array form; "
            "Box, Dict, Tuple, Discrete, MultiDiscrete and MultiBinary are supported: wrap the env so that it gives one"
        )


class ObservationLayout:
    """The flat Dict of Box that an observation space becomes, and the way to write an observation into its arrays."""

    def __init__(self, space: spaces.Space) -> None:
        self.leaves = tuple(_leaves(space, ()))
        keys = [leaf.key for leaf in self.leaves]
        if not keys:
            raise UsageError(f"the observation space {space} is empty: an env must give at least one array")
        if len(set(keys)) < len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise UsageError(f"observation keys clash after joining nested names with '/': {', '.join(twice)}")
        void = [leaf.key for leaf in self.leaves if not np.prod(leaf.box.shape)]
        if void:
            raise UsageError(f"observation {void[0]!r} has no numbers in it: leave it out of the observation space")
        self.space = spaces.Dict({leaf.key: leaf.box for leaf in self.leaves})

    def write(self, obs: Any, arrays: list[np.ndarray], row: int) -> None:
        """Put one env's observation into row `row` of the arrays, one array a leaf."""
        for leaf, array in zip(self.leaves, arrays, strict=True):
            value = obs
            for part in leaf.path:
                value = value[part]
            if isinstance(leaf.space, ONE_HOT):
                value = spaces.flatten(leaf.space, value)
            elif np.shape(value) != leaf.space.shape:
                # NumPy would broadcast a wrong shape without a word.
                raise ValueError(
                    f"observation {leaf.key!r} has shape {np.shape(value)}, its space says {leaf.space.shape}"
                )
            array[row] = value


class ActionLayout:
    """The array that holds one action an env in the env's own dtype and shape, and the way from the agent's form."""

    def __init__(self, space: spaces.Space) -> None:
        if not isinstance(space, (spaces.Box, *ONE_HOT)):
            raise UsageError(
                f"action space {space} ({type(space).__name__}) is not supported: "
                "Box, Discrete, MultiDiscrete and MultiBinary are; wrap the env so that it takes one of those"
            )
        self.space = space
        self.shape: tuple[int, ...] = space.shape
        self.dtype: np.dtype = np.dtype(space.dtype)
        self.start: Any = getattr(space, "start", 0)  # an int, or an array for MultiDiscrete
        self.agent_shape: tuple[int, ...] = () if isinstance(space, spaces.Discrete) else (int(np.prod(space.shape)),)

    def write(self, action: np.ndarray, out: np.ndarray) -> None:
        """Put the agent's actions `[N, A]` (or `[N]`) into `out` `[N, *shape]`, shifted by the space's start."""
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
        """A function that takes one env's action out of `actions`, as its own copy: an env may keep it."""
        if not self.shape:
            return actions.__getitem__
        return lambda row: actions[row].copy()


@dataclass(frozen=True)
class Layout:
    """All that a vector env must know about one env to store what goes in and out."""

    observation: ObservationLayout
    action: ActionLayout
    step_seconds: float | None
    episode_info: tuple[str, ...] = ()
    """Numbers of `info` that are kept where an episode ends."""


# Numbers of an episode that are kept for every env, under these names.
KEPT_ANYWAY = (
    "return",
    "length",
    "success",
    *(f"{x}_{y}" for x in ("return", "length") for y in ("min", "max", "std")),
)


def episode_info(env: Any) -> tuple[str, ...]:
    """The keys of `info` whose last numbers say how an episode went: a tuple of names that the env itself declares."""
    names = getattr(env.unwrapped, "episode_info", ())
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        return ()  # something else of the env's own
    taken = [name for name in names if name in KEPT_ANYWAY]
    if taken:
        raise UsageError(f"the env's episode_info names {taken[0]!r}, which is kept for every env: leave it out")
    return tuple(dict.fromkeys(names))


def step_seconds(env: Any) -> float | None:
    """Simulated seconds of one step: `dt` or `tau` of the env, else its frame rate, else None."""
    inner = env.unwrapped
    for name in ("dt", "tau"):
        value = getattr(inner, name, None)
        if isinstance(value, (int, float, np.floating)) and value > 0:
            return float(value)
    frames_per_second = (getattr(inner, "metadata", None) or {}).get("render_fps")
    if isinstance(frames_per_second, (int, float)) and frames_per_second > 0:
        return 1.0 / frames_per_second
    return None


def layout_of(env: Any) -> Layout:
    """The layout of a Gymnasium env."""
    observation, action = ObservationLayout(env.observation_space), ActionLayout(env.action_space)
    return Layout(observation, action, step_seconds(env), episode_info(env))


ALIGNMENT = 64  # bytes: no two arrays share a cache line


@dataclass(slots=True)
class Buffers:
    """The arrays between envs and agent, over one block of memory that may be shared between processes.

    Observations have two banks, written in turn: when a worker dies in the middle of a step, the observations that
    the agent last saw are still whole in the other one.
    """

    obs: tuple[list[np.ndarray], list[np.ndarray]]
    final_obs: list[np.ndarray]
    action: np.ndarray
    hold: np.ndarray  # [N] int64: for how many env steps the action is to be held
    gamma: np.ndarray  # [N] float64: discount of rewards within a hold
    duration: np.ndarray  # [N] int64: for how many it was
    total: np.ndarray  # [N] float64: undiscounted sum of rewards over the hold
    reward: np.ndarray  # [N] float64: the discounted sum
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    restarts: np.ndarray  # [N] int64: how often the env has been replaced since its last seeded reset
    failures: np.ndarray  # [N] int64: failures in a row, without one good step between
    success: np.ndarray  # [N] float64: of the episode that just ended, as the env reports it, or NaN
    info: np.ndarray  # [N, K] float64: the env's `episode_info` of that episode, NaN if not reported

    def rows(self, start: int, stop: int) -> "Buffers":
        """The same arrays, seen from env `start` to `stop`."""

        def cut(arrays: list[np.ndarray]) -> list[np.ndarray]:
            return [array[start:stop] for array in arrays]

        return Buffers(
            (cut(self.obs[0]), cut(self.obs[1])),
            cut(self.final_obs),
            *cut([self.action, self.hold, self.gamma, self.duration, self.total]),
            *cut([self.reward, self.terminated, self.truncated]),
            *cut([self.restarts, self.failures, self.success, self.info]),
        )


def _array_specs(layout: Layout, num_envs: int) -> list[tuple[tuple[int, ...], np.dtype]]:
    boxes = [leaf.box for leaf in layout.observation.leaves]
    one_bank = [((num_envs, *box.shape), np.dtype(box.dtype)) for box in boxes]
    hold = (np.int64, np.float64, np.int64, np.float64)
    outcome = (np.float64, np.bool_, np.bool_, np.int64, np.int64, np.float64)
    rest = [((num_envs,), np.dtype(kind)) for kind in (*hold, *outcome)]
    info = ((num_envs, len(layout.episode_info)), np.dtype(np.float64))
    return [*one_bank * 3, ((num_envs, *layout.action.shape), layout.action.dtype), *rest, info]


def _padded_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    size = int(np.prod(shape)) * dtype.itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT


def buffer_bytes(layout: Layout, num_envs: int) -> int:
    """How much memory the buffers of `num_envs` envs take."""
    return sum(_padded_bytes(shape, dtype) for shape, dtype in _array_specs(layout, num_envs))


def map_buffers(layout: Layout, num_envs: int, memory: Any) -> Buffers:
    """Lay the arrays over `memory` (anything with a writable buffer); the same in every process that shares it."""
    arrays, offset = [], 0
    for shape, dtype in _array_specs(layout, num_envs):
        arrays.append(np.ndarray(shape, dtype, buffer=memory, offset=offset))
        offset += _padded_bytes(shape, dtype)
    count = len(layout.observation.leaves)
    banks = (arrays[:count], arrays[count : 2 * count])
    return Buffers(banks, arrays[2 * count : 3 * count], *arrays[3 * count :])
