"""Which of Gymnasium's envs run on the batch physics, and the Gymnasium env that their parameters are read from."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from proxima.envs.catalog import entry_point
from proxima.envs.gymnasium.env_group import Recipe, model_warnings, usage_error
from proxima.envs.mujoco import contact_bodies, tasks
from proxima.envs.mujoco.tasks import Task
from proxima.errors import UsageError

# By entry point, because an id may have been registered again for another class.
TASKS: dict[str, type[Task]] = {
    f"gymnasium.envs.mujoco.{module}_{version}:{task.__name__}Env": task
    for module, task in (
        ("half_cheetah", tasks.HalfCheetah),
        ("hopper", tasks.Hopper),
        ("walker2d", tasks.Walker2d),
        ("swimmer", tasks.Swimmer),
        ("ant", contact_bodies.Ant),
        ("humanoid", contact_bodies.Humanoid),
        ("humanoidstandup", contact_bodies.HumanoidStandup),
        ("reacher", tasks.Reacher),
        ("pusher", tasks.Pusher),
        ("inverted_pendulum", tasks.InvertedPendulum),
        ("inverted_double_pendulum", tasks.InvertedDoublePendulum),
    )
    for version in ("v4", "v5")
    if (module, version) != ("pusher", "v4")  # Gymnasium itself refuses it with MuJoCo 3 and later
}


def why_not(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> str | None:
    """Why this env cannot run on the batch physics; None if it can."""
    spec = gymnasium.registry.get(env_id)
    if spec is None:
        return f"{env_id} is not registered with Gymnasium"
    if entry_point(spec) not in TASKS:
        return f"{env_id} is not one of Gymnasium's MuJoCo tasks"
    if spec.additional_wrappers:
        return f"{env_id} is registered with wrappers"
    if ({**spec.kwargs, **(env_kwargs or {})}).get("render_mode") is not None:
        return "it does not render (render_mode)"
    return None


def make_template(env_id: str, env_kwargs: Mapping[str, Any] | None) -> tuple[Any, type[Task]]:
    """An unwrapped env of Gymnasium's own class, made with the user's arguments; and its task here."""
    reason = why_not(env_id, env_kwargs)
    if reason is not None:
        raise UsageError(f"no batch physics for {env_id}: {reason}")
    recipe = Recipe.of(env_id, env_kwargs=env_kwargs)
    template: Any = recipe.build().unwrapped
    try:
        with model_warnings():
            # A weight or a range of the wrong type only raises when it is used.
            template.reset(seed=0)
            template.step(np.zeros(template.action_space.shape, np.float32))
    except Exception as error:
        raise usage_error(recipe.spec, error) from error
    return template, TASKS[entry_point(recipe.spec)]
