"""Where a trained policy is tried: the env of its run, unless another is named."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxima import checkpoint
from proxima.config import config_from_dict
from proxima.envs.make import find_spec


def chosen_env(
    folder: Path, env: str | None, env_kwargs: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any], int | None]:
    """The id, the keywords and the time limit (None for the env's own) of what to try a checkpoint's policy in.

    The keywords of the run hold for the same kind of env, another stage of a game, say; those given come on top.
    """
    options = config_from_dict(checkpoint.read_metadata(folder)["config"], source=str(folder)).env
    env_id = env or options.env
    same_kind = env_id == options.env or find_spec(env_id).entry_point == find_spec(options.env).entry_point
    kwargs = (options.kwargs if same_kind else {}) | dict(env_kwargs or {})
    return env_id, kwargs, options.max_episode_steps if env_id == options.env else None
