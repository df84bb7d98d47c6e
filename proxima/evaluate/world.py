"""The env to evaluate a trained policy in: that of its run, unless another is given."""

from collections.abc import Mapping
from typing import Any

from proxima.config import Config
from proxima.config.nested import merged
from proxima.envs.make import find_spec
from proxima.errors import UsageError


def chosen_env(
    config: Config, env: str | None, env_kwargs: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any], int | None]:
    """Id, keywords and time limit (None for the registered one) of the env to evaluate a run's policy in.

    Keywords of the run are kept for an env of the same class, such as another stage of a game; `env_kwargs` override
    them.
    """
    options, given = config.env, dict(env_kwargs or {})
    refuse_window(given)
    env_id = env or options.env
    same_kind = env_id == options.env or find_spec(env_id).entry_point == find_spec(options.env).entry_point
    kwargs = merged(options.env_kwargs, given) if same_kind else given
    if kwargs.get("render_mode") == "human":
        del kwargs["render_mode"]  # the run's own
    return env_id, kwargs, options.max_episode_steps if env_id == options.env else None


def refuse_window(env_kwargs: Mapping[str, Any]) -> None:
    """Raise a UsageError if the keywords would open a window for every env."""
    if env_kwargs.get("render_mode") == "human":
        raise UsageError(
            "env_kwargs has render_mode human, which opens a window for every env: leave it out; "
            "evaluate --render shows one env in a window, and --record writes a video."
        )
