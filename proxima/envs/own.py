"""Envs and wrappers that a user brings along, by name: functions and classes that make one env, and vector envs.

What a function makes is known before it is called: one with a parameter `num_envs` makes a vector env, any other one
makes a single env. No torch here: worker processes import this file.
"""

import copy
import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from proxima.errors import UsageError
from proxima.own_parts import check_origin, find_part, is_given, only_in_python, with_keywords

Wrapper = Callable[[gym.Env], gym.Env]


@dataclass
class OwnSpec(EnvSpec):
    """Stands for a user's env where others have the spec of a registered id; `entry_point` is the user's object."""

    @classmethod
    def of(cls, name: str, part: Any) -> "OwnSpec":
        """Gymnasium allows fewer characters in an id than a name has."""
        return cls(re.sub(r"[^\w:.-]", "", name), part)

    def make(self, max_episode_steps: int | None) -> gym.Env:
        """One env; `max_episode_steps` replaces the time limit that it may have."""
        kwargs, maker = copy.deepcopy(self.kwargs), self.entry_point
        assert callable(maker)
        if not _takes(maker, "render_mode"):
            kwargs.pop("render_mode", None)
        env = maker(**kwargs)
        if not isinstance(env, gym.Env):
            raise UsageError(
                f"env {self.id!r} made a {type(env).__name__}, but it must make a gymnasium.Env; a function that makes "
                "a vector env takes its number of envs as num_envs"
            )
        if max_episode_steps is None:
            return env
        limit = find_time_limit(env)
        if limit is None:
            return gym.wrappers.TimeLimit(env, max_episode_steps)
        limit._max_episode_steps = max_episode_steps
        return env


def find_own(name: str) -> Any | None:
    """The user's object of this name: given in Python, or `module:attribute`; None if there is none.

    The module has been imported, and what it registered as an id comes first.
    """
    if is_given(name):
        return find_part(name)
    module, _, attribute = name.rpartition(":")
    if only_in_python(name):
        raise UsageError(
            f"env {name!r} was given as an object in Python, which a file cannot hold: pass it again as env=, or give "
            "the name of a function that can be imported, module:function"
        )
    found = importlib.import_module(module) if module else None
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not (callable(found) or is_vector(found)):
        return None
    check_origin(name, found)
    return found


def is_vector(part: Any) -> bool:
    """Whether this is a vector env itself, of Gymnasium's or of our interface."""
    return _is_vector_class(type(part))


def makes_vector(part: Any) -> bool:
    """Whether this is a class of vector envs, or a function that takes their number as `num_envs`."""
    if isinstance(part, type):
        return _is_vector_class(part)
    return callable(part) and not is_vector(part) and _takes(part, "num_envs", by_name=True)


def _is_vector_class(kind: type) -> bool:
    """`VecEnv` is known by its name, because its module imports torch."""
    ours = ("proxima.envs.contract", "VecEnv")
    return issubclass(kind, gym.vector.VectorEnv) or ours in [(base.__module__, base.__name__) for base in kind.__mro__]


def accepted(maker: Callable[..., Any], options: Mapping[str, Any], *, by_name: bool) -> dict[str, Any]:
    """The options that a function takes; with `by_name`, `**keywords` do not count."""
    return {name: value for name, value in options.items() if _takes(maker, name, by_name=by_name)}


def _takes(maker: Callable[..., Any], name: str, *, by_name: bool = False) -> bool:
    """Whether a function takes a keyword."""
    try:
        parameters = inspect.signature(maker).parameters
    except (TypeError, ValueError):
        return not by_name
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return name in parameters or (anything and not by_name)


def find_time_limit(env: gym.Env) -> gym.wrappers.TimeLimit | None:
    """The outermost time limit of an env."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            return env
        env = env.env
    return None


def find_wrappers(named: Sequence[str | Mapping[str, Any]]) -> tuple[Wrapper, ...]:
    """The wrappers of the option `wrappers`: names, or mappings of a name to keywords."""
    found = []
    for item in named:
        name, keywords = with_keywords(item)
        wrapper = find_part(name, what="wrapper")
        if not callable(wrapper):
            raise UsageError(f"wrapper {name!r} is {wrapper!r}, but it must be a class or function that takes an env.")
        found.append(partial(wrapper, **keywords) if keywords else wrapper)
    return tuple(found)
