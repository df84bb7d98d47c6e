"""Which of Gymnasium's envs run on the batch physics, and the Gymnasium env that their parameters are read from."""

import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from proxima.envs.mujoco.arms import Pusher, Reacher
from proxima.envs.mujoco.contact_bodies import Ant, Humanoid, HumanoidStandup
from proxima.envs.mujoco.locomotion import HalfCheetah, Hopper, Swimmer, Walker2d
from proxima.envs.mujoco.model_warnings import model_warnings
from proxima.envs.mujoco.pendulums import InvertedDoublePendulum, InvertedPendulum
from proxima.envs.mujoco.task import Task
from proxima.errors import UsageError

# By Gymnasium's entry point, so that an id re-registered for another class is not taken for Gymnasium's own.
TASKS: dict[str, type[Task]] = {
    f"gymnasium.envs.mujoco.{module}_{version}:{task.__name__}Env": task
    for module, task in (
        ("half_cheetah", HalfCheetah),
        ("hopper", Hopper),
        ("walker2d", Walker2d),
        ("swimmer", Swimmer),
        ("ant", Ant),
        ("humanoid", Humanoid),
        ("humanoidstandup", HumanoidStandup),
        ("reacher", Reacher),
        ("pusher", Pusher),
        ("inverted_pendulum", InvertedPendulum),
        ("inverted_double_pendulum", InvertedDoublePendulum),
    )
    for version in ("v4", "v5")
    if (module, version) != ("pusher", "v4")  # Gymnasium itself refuses it with MuJoCo 3 and later
}


def why_not(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> str | None:
    """Why this env cannot run on the batch physics; None if it can."""
    spec = gymnasium.registry.get(env_id)
    if spec is None:
        return f"{env_id} is not registered with Gymnasium"
    if _entry_point(spec) not in TASKS:
        return f"{env_id} is not one of Gymnasium's MuJoCo tasks"
    if spec.additional_wrappers:
        return f"{env_id} is registered with wrappers"
    if ({**spec.kwargs, **(env_kwargs or {})}).get("render_mode") is not None:
        return "it does not render (render_mode)"
    return None


def can_serve(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> bool:
    """Whether this env can run on the batch physics."""
    return why_not(env_id, env_kwargs) is None


def served_ids() -> list[str]:
    """Every registered id that can run on the batch physics."""
    return sorted(env_id for env_id in gymnasium.registry if can_serve(env_id))


def make_template(env_id: str, env_kwargs: Mapping[str, Any] | None) -> tuple[Any, type[Task]]:
    """One env of Gymnasium's own class, unwrapped, made with the user's arguments; and its task here."""
    reason = why_not(env_id, env_kwargs)
    if reason is not None:
        raise UsageError(f"no batch physics for {env_id}: {reason}")
    spec = gymnasium.registry[env_id]
    entry_point = _entry_point(spec)
    module, _, name = entry_point.partition(":")
    class_ = getattr(importlib.import_module(module), name)
    kwargs = {**spec.kwargs, **(env_kwargs or {})}
    _check_keywords(env_id, class_, kwargs)
    try:
        with model_warnings():
            template = class_(**kwargs)
            # A weight or a range of the wrong type shows only in use.
            template.reset(seed=0)
            template.step(np.zeros(template.action_space.shape, np.float32))
    except Exception as error:
        first_line = (str(error) or repr(error)).strip().splitlines()[0]
        raise UsageError(f"cannot build env {env_id!r}: {type(error).__name__}: {first_line}") from error
    return template, TASKS[entry_point]


def _entry_point(spec: Any) -> str:
    entry_point = spec.entry_point
    if callable(entry_point):
        return f"{entry_point.__module__}:{getattr(entry_point, '__qualname__', '')}"
    return str(entry_point)


def _check_keywords(env_id: str, class_: type, kwargs: Mapping[str, Any]) -> None:
    """Gymnasium's own TypeError names neither the env nor what it would have accepted."""
    accepted = set(inspect.signature(class_).parameters)
    base = next(parent for parent in class_.__mro__ if parent.__name__ == "MujocoEnv")
    given_by_class = {"model_path", "frame_skip", "observation_space", "default_camera_config"}
    accepted |= set(inspect.signature(base).parameters) - given_by_class
    accepted.discard("kwargs")
    for name in kwargs:
        if name not in accepted:
            nearest = difflib.get_close_matches(name, accepted, n=1, cutoff=0.0)[0]
            raise UsageError(f"{env_id} has no keyword {name!r}; the nearest is {nearest!r}")
