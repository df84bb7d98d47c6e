"""Saves the exact state of a Gymnasium env, wrappers included, as plain data, and restores it into another env object.

There are three ways. *Its own*: an env with `get_state()` and `set_state(state)` is trusted; only the attributes of its
wrappers are saved besides. *Attributes*: if every attribute of the env and its wrappers is data (numbers, text, arrays,
generators, MuJoCo's `MjData`, containers and objects of these), the attributes are the state. *Replay*: any other env
(Box2D, most games) is restored from its generator before the last reset and the actions of the episode.
`exactness_trial.py` tests at the start of a run whether this is exact for an env.

No torch here: worker processes import this file.
"""

import copy
import inspect
import random
import types
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from proxima.envs.gymnasium.plain import Plain
from proxima.envs.gymnasium.step_values import read_flag, read_reward

# Never part of the state: what the env was made from, renderers, code.
_CONSTANT_TYPES = (EnvSpec, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, type)
_CONSTANT_NAMES = {
    *("env", "spec", "metadata", "_ezpickle_args", "_ezpickle_kwargs", "_max_episode_steps"),
    *("model", "mujoco_renderer"),
    *("P", "initial_state_distrib"),  # toy text's tables
}
_BIT_GENERATORS = {"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"}
_BARE_SIZE = type("Bare", (), {}).__basicsize__
_MAX_DEPTH = 4  # of objects in objects; an env with deeper ones, or with circular references, is replayed


class NotPlain(Exception):
    """An attribute that cannot be saved as data, or a state that does not fit; the message says which."""


class TrackedEnv:
    """A Gymnasium env with an exact state. Resets and steps go through it, because a replay needs their history."""

    def __init__(self, env: gym.Env):
        self.env = env
        layers = _layers(env)
        self.time_limit = next((layer for layer in layers if isinstance(layer, gym.wrappers.TimeLimit)), None)
        self._own = _has_own_state(env.unwrapped)
        self._read = layers[: -1 if self._own else None]  # those whose attributes are the state
        self.replays = not _is_plain(self._read)
        self._before: Plain = None
        self._seed: int | None = None
        self._elapsed = 0
        self._actions: list[Any] = []

    def reset(self, seed: int | None = None) -> Any:
        """Start an episode and return its first observation."""
        if self.replays:
            self._before, self._seed = _encode(self.env.unwrapped._np_random, "_np_random"), seed
            self._elapsed, self._actions = 0, []
        obs, _ = self.env.reset(seed=seed)
        return obs

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """Step the env; reward and flags are checked, and an info that is not a mapping counts as empty."""
        if self.replays:
            self._actions.append(copy.copy(action))
        obs, reward, terminated, truncated, info = self.env.step(action)
        ends = read_flag(terminated, "terminated"), read_flag(truncated, "truncated")
        return obs, read_reward(reward), *ends, info if isinstance(info, Mapping) else {}

    def set_elapsed(self, steps: int) -> None:
        """Make the time limit, if there is one, count as if `steps` steps of the episode had been taken."""
        if self.time_limit is not None:
            self.time_limit._elapsed_steps = self._elapsed = steps

    def capture(self) -> Plain:
        """The state as plain data, copied."""
        if not self.replays:
            own = {"own": _encode(self.env.unwrapped.get_state(), "get_state()")} if self._own else {}
            return {"layers": [_layer_state(layer) for layer in self._read], **own}
        return {
            "before": self._before,
            "seed": self._seed,
            "elapsed": self._elapsed,
            "actions": [_encode(action, "action") for action in self._actions],
        }

    def restore(self, state: Plain) -> None:
        """Restore a state of `capture`; the env must have been built from the same recipe."""
        if not self.replays:
            if len(state["layers"]) != len(self._read):  # before anything is changed
                raise NotPlain(f"the state is of {len(state['layers'])} wrappers and env, not of {len(self._read)}")
            for layer, saved in zip(self._read, state["layers"], strict=True):
                _restore_layer(layer, saved)
            if self._own:
                self.env.unwrapped.set_state(_decode(state["own"], None))
            return
        self.env.unwrapped._np_random = _decode(state["before"], None)
        self.reset(state["seed"])
        self.set_elapsed(state["elapsed"])
        for saved in state["actions"]:
            self.step(_decode(saved, None))


def _layers(env: Any) -> list[Any]:
    """The env and its wrappers, outermost first."""
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _has_own_state(env: Any) -> bool:
    """Whether an env has `get_state()` and `set_state(state)`; MuJoCo's `set_state(qpos, qvel)` does not count."""
    try:
        inspect.signature(env.get_state).bind()
        inspect.signature(env.set_state).bind(None)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def _is_plain(layers: list[Any]) -> bool:
    try:
        for layer in layers:
            _layer_state(layer)
    except NotPlain:
        return False
    return True


def _layer_state(layer: Any) -> Plain:
    return {name: _encode(value, name) for name, value in vars(layer).items() if not _is_constant(name, value)}


def _is_constant(name: str, value: Any) -> bool:
    return name in _CONSTANT_NAMES or isinstance(value, _CONSTANT_TYPES)


def _restore_layer(layer: Any, saved: Plain) -> None:
    for name in [name for name, value in vars(layer).items() if not _is_constant(name, value)]:
        if name not in saved:
            delattr(layer, name)
    for name, value in saved.items():
        setattr(layer, name, _decode(value, getattr(layer, name, None)))


def _encode(value: Any, name: str, depth: int = 0) -> Plain:
    """A tagged copy of a value; raises NotPlain if it is more than data."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, np.ndarray) and value.dtype != object:
        return ["array", value.copy()]
    if isinstance(value, np.generic):
        return ["scalar", np.array(value)]
    if isinstance(value, np.random.Generator):
        return ["generator", type(value.bit_generator).__name__, _encode(value.bit_generator.state, name)]
    if type(value) in _CONTAINERS:
        depth = _MAX_DEPTH  # objects are restored in place, which is not possible inside containers
        return [type(value).__name__, [_encode(item, name, depth) for item in value], getattr(value, "maxlen", None)]
    if type(value) is dict:
        return ["dict", [[_encode(k, name, _MAX_DEPTH), _encode(x, name, _MAX_DEPTH)] for k, x in value.items()]]
    if isinstance(value, spaces.Space):
        return ["space", [_encode(space._np_random, name) for space in _all_spaces(value)]]
    if type(value).__name__ == "MjData":
        return ["mjdata", np.concatenate([array.ravel() for array in _mjdata_arrays(value)]), float(value.time)]
    if isinstance(value, random.Random) and type(value) is random.Random:
        return ["random", _encode(value.getstate(), name)]
    # Only a __dict__: a class with slots or a C base has more state than its attributes.
    if hasattr(value, "__dict__") and type(value).__basicsize__ <= _BARE_SIZE and depth < _MAX_DEPTH:
        fields = {key: _encode(item, f"{name}.{key}", depth + 1) for key, item in vars(value).items()}
        return ["object", type(value).__name__, fields]
    raise NotPlain(f"{name} is a {type(value).__name__}")


_CONTAINERS: dict[type, Callable[[list, int | None], Any]] = {
    list: lambda items, _: items,
    tuple: lambda items, _: tuple(items),
    set: lambda items, _: set(items),
    deque: lambda items, maxlen: deque(items, maxlen),
}


def _decode(saved: Plain, current: Any) -> Any:
    """The value of a tagged copy; objects that are part of the env (spaces, MjData) are changed in place."""
    if not isinstance(saved, list):
        return saved
    tag, content = saved[0], saved[1]
    if tag == "array":
        return content.copy()
    if tag == "scalar":
        return content[()]
    if tag == "generator":
        if content not in _BIT_GENERATORS:
            raise ValueError(f"a state names the unknown generator {content!r}")
        bit_generator = getattr(np.random, content)()
        bit_generator.state = _decode(saved[2], None)
        return np.random.Generator(bit_generator)
    if tag == "random":
        generator = random.Random()
        generator.setstate(_decode(content, None))
        return generator
    if tag == "object":
        if type(current).__name__ != content:
            raise NotPlain(f"the env has no {content} that the saved one could be restored into")
        for key, item in saved[2].items():
            setattr(current, key, _decode(item, getattr(current, key, None)))
        return current
    if tag == "dict":
        return {_decode(key, None): _decode(item, None) for key, item in content}
    if tag == "space":
        for space, generator in zip(_all_spaces(current), content, strict=True):
            space._np_random = _decode(generator, None)
        return current
    if tag == "mjdata":
        arrays = _mjdata_arrays(current)
        parts = np.split(content, np.cumsum([array.size for array in arrays])[:-1])
        for array, part in zip(arrays, parts, strict=True):
            array[...] = part.reshape(array.shape)
        current.time = saved[2]
        return current
    kind = next((kind for kind in _CONTAINERS if kind.__name__ == tag), None)
    if kind is None:
        raise NotPlain(f"a state holds an unknown kind {tag!r}")
    return _CONTAINERS[kind]([_decode(item, None) for item in content], saved[2])


def _all_spaces(space: spaces.Space) -> list[spaces.Space]:
    """A space and all those inside it; each may have a generator of its own."""
    inner: Any = ()
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        inner = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
    return [space, *(found for each in inner for found in _all_spaces(each))]


_MJDATA_NAMES: dict[int, list[str]] = {}


def _mjdata_arrays(data: Any) -> list[np.ndarray]:
    """Views of the arrays of an MjData that have a fixed size: the integration state and the fields derived from it.

    Gymnasium reads derived fields, which lag the coordinates by a substep, so they cannot be recomputed. Contacts
    and constraints, whose sizes vary, are recomputed by each step before anything reads them.
    """
    import mujoco

    key = data.signature  # of the compiled model
    if key not in _MJDATA_NAMES:
        blank = mujoco.MjData(data.model)
        arrays = [(name, getattr(blank, name)) for name in dir(blank) if not name.startswith("_")]
        _MJDATA_NAMES[key] = [name for name, array in arrays if isinstance(array, np.ndarray) and array.size]
    return [getattr(data, name) for name in _MJDATA_NAMES[key]]
