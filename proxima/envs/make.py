"""Chooses the back end for an environment id; no other file does."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium.envs.registration import load_env_creator

from proxima.envs.catalog import (
    TENSOR_WORLDS,
    atari_obstacle,
    base_name,
    find_spec,
    import_obstacle,
    is_emulator,
    is_mujoco,
    live_ids,
    missing_package,
    nearest_id,
    newest_version,
    version,
)
from proxima.envs.checks import check_count, check_env_kwargs
from proxima.envs.contract import VecEnv
from proxima.envs.own import OwnSpec, Wrapper, accepted, is_vector, makes_vector
from proxima.errors import UsageError
from proxima.own_parts import name_part

__all__ = ["EnvListing", "find_spec", "list_envs", "make_env", "nearest_id", "num_envs_of"]

MODES = ("auto", "batch", "sync", "async")
_EMULATOR_MODES = ("async", "sync")
_NEEDED = ("num_envs", "observation_space", "action_space", "device", "step_seconds", "holder")


@dataclass(frozen=True, slots=True)
class EnvListing:
    """One line of the table of environments."""

    id: str
    backends: tuple[str, ...]
    """Values of `vec_env_mode` that it accepts, the best first."""
    missing: str | None
    """The command that installs what it needs, or why that cannot be imported; None if nothing is missing."""
    newest: bool
    """Whether there is no higher version of it."""

    @property
    def status(self) -> str:
        """The word "installed", or what is missing."""
        return self.missing or "installed"


def _batch_refusal(env_id: str, env_kwargs: Mapping[str, Any] | None) -> str | None:
    """Why an env cannot run in batch mode, None if it can."""
    if env_id in TENSOR_WORLDS:
        return None
    spec = find_spec(env_id)
    if is_emulator(spec):
        return "an emulator plays one game at a time"
    # Before the import of MuJoCo, which may be missing or broken: other envs do not need it.
    if not is_mujoco(spec):
        return f"{env_id} is not one of Gymnasium's MuJoCo tasks"
    if obstacle := import_obstacle("mujoco") or import_obstacle("proxima.envs.mujoco.env"):
        return obstacle
    from proxima.envs.mujoco.registry import why_not

    return why_not(env_id, env_kwargs)


def num_envs_of(env_id: str) -> int | None:
    """The number of envs of a vector env that was given as an object; None for what is made from a name."""
    spec = find_spec(env_id)
    part = spec.entry_point if isinstance(spec, OwnSpec) else None
    return int(part.num_envs) if is_vector(part) else None  # type: ignore[union-attr]


def make_env(
    env_id: Any,
    *,
    num_envs: int | None = None,
    mode: str = "auto",
    env_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    spread_episodes: bool = False,
    num_threads: int | None = None,
    num_workers: int | None = None,
    wrappers: Sequence[Wrapper] = (),
    leave_out: Sequence[str] = (),
    max_failures: int | None = None,
    log_info: Sequence[str] = (),
    step_timeout: float | None = 300.0,
    device: str = "cpu",
) -> VecEnv:
    """Make `num_envs` copies of an environment as one vector env.

    Args:
        env_id: A registered Gymnasium id, also as `module:EnvId`; or your own: a function or class that makes one env,
            or with a parameter `num_envs` a vector env, or a vector env itself, or `module:attribute` of these.
        num_envs: Number of copies that are stepped together; None is 1, or those of a vector env.
        mode: "batch" runs MuJoCo tasks on native threads and our own envs on tensors, "sync" steps Gymnasium envs one
            after another in this process, "async" in worker processes; "auto" is batch if the env supports it, async
            for several envs of an emulator (Mario, Atari), else sync. All three have the same trajectories.
        env_kwargs: Keywords of the env's constructor.
        max_episode_steps: The time limit; None is the registered one.
        spread_episodes: At every `reset()`, start the time limit of env i at i / `num_envs` of its length, so that
            the episodes of a task that always runs to its time limit do not all end in the same step.
        num_threads: Batch only: native threads; None is the available cores.
        num_workers: Async only: processes; None is the available cores, at most `num_envs`.
        wrappers: Gymnasium wrappers, applied in order; not with batch.
        leave_out: Observation keys to leave out if their space has no fixed-size array form, such as Text.
        max_failures: Sync and async: `EnvFailure` is raised when an env fails this often in a row, without a
            successful step in between.
        log_info: Keys of the env's `info` whose numbers `take_info` averages: in sync and async mode and of Gymnasium
            vector envs any, in batch mode those that the MuJoCo task has.
        device: Device of an env on tensors; all others are on the CPU.
        step_timeout: Async only: seconds after which a worker that does not answer is killed and restarted; None
            waits for ever.

    Example:
        >>> env = make_env("CartPole-v1", num_envs=4)
        >>> obs = env.reset(seed=0)
        >>> obs["obs"].shape
        torch.Size([4, 4])
    """
    if mode not in MODES:
        near = difflib.get_close_matches(str(mode), MODES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}{hint}")
    env_id = name_part(env_id)
    counts = {"num_envs": num_envs, "max_episode_steps": max_episode_steps, "num_threads": num_threads}
    for name, count in {**counts, "num_workers": num_workers, "max_failures": max_failures}.items():
        check_count(name, count)
    spec = find_spec(env_id)
    check_env_kwargs(env_kwargs, spec.kwargs)
    if is_mujoco(spec) and (missing := missing_package(spec) or import_obstacle("mujoco")):
        raise UsageError(f"env {spec.id!r} needs MuJoCo: {missing}")
    if isinstance(spec, OwnSpec) and (is_vector(spec.entry_point) or makes_vector(spec.entry_point)):
        if wrappers or mode in ("sync", "async"):
            what = "wrappers" if wrappers else f"mode {mode}"
            raise UsageError(f"env {env_id!r} is a vector env, and {what} is for single envs: leave it out.")
        limits = {"max_episode_steps": max_episode_steps, "spread_episodes": spread_episodes}
        given = {"num_envs": num_envs, **limits, "num_threads": num_threads, "device": device}
        return _own_vector(env_id, spec.entry_point, env_kwargs or {}, given, leave_out, log_info)
    num_envs = num_envs or 1
    options: dict[str, Any] = {"num_envs": num_envs, "spread_episodes": spread_episodes}
    if mode in ("auto", "batch"):
        refusal = "its function makes one env at a time" if isinstance(spec, OwnSpec) else None
        refusal = "wrappers only run in sync and async mode" if wrappers else refusal
        refusal = refusal or _batch_refusal(spec.id, env_kwargs)
        if refusal is None and spec.id in TENSOR_WORLDS:
            if log_info:
                raise UsageError(f"log_info is {', '.join(log_info)}, but {spec.id} has no info: leave it out.")
            options |= {"device": device, "max_episode_steps": max_episode_steps or spec.max_episode_steps}
            creator = load_env_creator(TENSOR_WORLDS[spec.id])
            if getattr(creator, "has_threads", False):
                options["num_threads"] = num_threads
            try:
                hidden = getattr(creator, "picture_keywords", ())  # of the single env that is drawn
                world: VecEnv = creator(**{k: x for k, x in (env_kwargs or {}).items() if k not in hidden}, **options)
            except TypeError as error:
                raise UsageError(f"cannot build env {spec.id!r}: {error}") from error
            return world
        if refusal is None:
            from proxima.envs.mujoco.env import MujocoBatchEnv

            options |= {"num_threads": num_threads, "max_episode_steps": max_episode_steps, "log_info": log_info}
            return MujocoBatchEnv(spec.id, env_kwargs=env_kwargs, **options)
        if mode == "batch":
            raise UsageError(f"env {spec.id!r} cannot run in batch mode: {refusal}; use sync or async")

    from proxima.envs.gymnasium.sync_vec import MAX_FAILURES, SyncVecEnv

    options |= {"env_kwargs": env_kwargs, "max_episode_steps": max_episode_steps, "wrappers": wrappers}
    options["log_info"] = log_info
    options["leave_out"] = leave_out
    options["max_failures"] = MAX_FAILURES if max_failures is None else max_failures
    if mode == "async" or (mode == "auto" and num_envs > 1 and is_emulator(spec)):
        from proxima.envs.gymnasium.async_vec import AsyncVecEnv

        return AsyncVecEnv(env_id, num_workers=num_workers, step_timeout=step_timeout, **options)
    return SyncVecEnv(env_id, **options)


def _own_vector(
    name: str,
    part: Any,
    env_kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    leave_out: Sequence[str],
    log_info: Sequence[str],
) -> VecEnv:
    """A user's vector env: the object itself, or what the function makes of those options that it takes."""
    from gymnasium.vector import VectorEnv

    from proxima.envs.gymnasium.vector import GymnasiumVectorEnv

    given = {key: value for key, value in options.items() if value is not None}
    made, taken = part, {}
    if makes_vector(part):
        is_ours = isinstance(part, type) and issubclass(part, VecEnv)
        taken = accepted(part, {"num_envs": 1, **given}, by_name=not is_ours)
        if is_ours and not getattr(part, "has_threads", False):  # which `**options` for the base class would take
            taken = {key: value for key, value in taken.items() if key != "num_threads"}
        by_name = {"num_threads": given.get("num_threads"), "log_info": tuple(log_info) or None}
        taken |= accepted(part, {key: value for key, value in by_name.items() if value is not None}, by_name=True)
        try:
            made = part(**{**taken, **env_kwargs})
        except TypeError as error:
            raise UsageError(f"cannot build env {name!r}: {error}") from error
    elif env_kwargs:
        raise UsageError(f"env_kwargs is {env_kwargs}, but env {name!r} is an object: give the function that makes it.")
    if not isinstance(made, (VecEnv, VectorEnv)):
        raise UsageError(
            f"env {name!r} takes num_envs, so it must make a gymnasium.vector.VectorEnv or a proxima VecEnv, not a "
            f"{type(made).__name__}."
        )
    if made.num_envs != given.get("num_envs", made.num_envs):
        raise UsageError(
            f"num_envs is {given['num_envs']}, but env {name!r} has {made.num_envs} envs: leave num_envs out."
        )
    if "max_episode_steps" in given and "max_episode_steps" not in taken:
        raise UsageError(
            f"max_episode_steps is {given['max_episode_steps']}, but env {name!r} has time limits of its own: set them "
            "there, or give its function a parameter max_episode_steps."
        )
    if isinstance(made, VectorEnv):
        place = "cpu" if given["device"] == "cpu" else None  # else the env's own
        kept: dict[str, Any] = {"leave_out": leave_out, "log_info": log_info}
        return GymnasiumVectorEnv(made, name=name, device=place, closes=made is not part, **kept)
    missing = [key for key in _NEEDED if not hasattr(made, key)]
    if missing:
        raise UsageError(f"env {name!r} has no attribute {missing[0]}, which every proxima VecEnv has.")
    if absent := [key for key in log_info if key not in made.log_info]:
        known = ", ".join(made.log_info) or "no info"
        raise UsageError(
            f"log_info is {', '.join(log_info)}, but env {name!r} reports {known}: leave {absent[0]} out, or add it to "
            "the log_info and take_info of the env."
        )
    return made


def list_envs() -> list[EnvListing]:
    """Every registered id that can be trained, by name, the newest version of each first."""
    listings: list[EnvListing] = []
    if obstacle := atari_obstacle():  # one line for all games, which are only known to the package
        listings.append(EnvListing("ALE/Pong-v5", _EMULATOR_MODES, obstacle, newest=True))
    mujoco = import_obstacle("mujoco")
    for env_id in live_ids():
        spec = find_spec(env_id)
        missing = missing_package(spec) or (mujoco if is_mujoco(spec) else None)
        backends: tuple[str, ...] = _EMULATOR_MODES
        if not is_emulator(spec):
            in_batch = not (is_mujoco(spec) and mujoco) and _batch_refusal(env_id, None) is None
            backends = ("batch", "sync", "async") if in_batch else ("sync", "async")
        listings.append(EnvListing(env_id, backends, missing, newest=newest_version(env_id) == env_id))
    return sorted(listings, key=lambda listing: (base_name(listing.id).lower(), -version(listing.id)))
