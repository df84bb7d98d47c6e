"""The env to evaluate a trained policy in: that of its run, unless another is given."""

from collections.abc import Mapping
from typing import Any

from proxima.config import Config
from proxima.config.nested import merged
from proxima.envs.make import find_spec
from proxima.envs.own import find_wrappers
from proxima.errors import UsageError
from proxima.own_parts import name_part, trust


def chosen_env(
    config: Config, env: Any, env_kwargs: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any], int | None]:
    """Id, keywords and time limit (None for the registered one) of the env to evaluate a run's policy in.

    Keywords of the run are kept for an env of the same class, such as another stage of a game; `env_kwargs` override
    them.
    """
    options, given = config.env, dict(env_kwargs or {})
    refuse_window(given)
    env_id = options.env if env is None else name_part(env)
    trust([] if env is None else env_id)
    same_kind = env_id == options.env or _same_class(env_id, options.env)
    kwargs = merged(options.env_kwargs, given) if same_kind else given
    if kwargs.get("render_mode") == "human":
        del kwargs["render_mode"]  # the run's own
    return env_id, kwargs, options.max_episode_steps if env_id == options.env else None


def _same_class(env_id: str, run_env: str) -> bool:
    """Whether both ids have the same entry point; an env of the run that cannot be found again is another."""
    spec = find_spec(env_id)
    try:
        return bool(spec.entry_point == find_spec(run_env).entry_point)
    except UsageError:
        return False


def view_options(config: Config) -> dict[str, Any]:
    """What a policy sees an env through, as keywords of `make_env`: wrappers, and observation keys left out."""
    return {"wrappers": find_wrappers(config.env.wrappers), "leave_out": left_out_keys(config)}


def left_out_keys(config: Config) -> tuple[str, ...]:
    """Observation keys that the option `encoders` leaves out."""
    encoders = config.policy.encoders.items()
    return tuple(key for key, given in encoders if isinstance(given, Mapping) and given.get("use") == "none")


def refuse_window(env_kwargs: Mapping[str, Any]) -> None:
    """Raise a UsageError if the keywords would open a window for every env."""
    if env_kwargs.get("render_mode") == "human":
        raise UsageError(
            "env_kwargs has render_mode human, which opens a window for every env: leave it out; "
            "evaluate --render shows one env in a window, and --record writes a video."
        )
