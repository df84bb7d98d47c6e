"""The only place that chooses a back end for an environment id."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

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
from proxima.envs.gymnasium.env_group import Wrapper
from proxima.errors import UsageError

__all__ = ["MODES", "EnvListing", "batch_refusal", "find_spec", "list_envs", "make_env", "nearest_id"]

if TYPE_CHECKING:
    from proxima.envs.tensor_env import TensorVecEnv

MODES = ("auto", "batch", "sync", "async")
_EMULATOR_MODES = ("async", "sync")


@dataclass(frozen=True, slots=True)
class EnvListing:
    """One line of the table of environments."""

    id: str
    backends: tuple[str, ...]
    """What `vec_env_mode` may be for it, the best first."""
    missing: str | None
    """The command that installs what it needs, or why that cannot be imported; None where nothing is missing."""
    newest: bool
    """Whether no higher version of it is registered."""

    @property
    def status(self) -> str:
        """The word installed, or what is missing."""
        return self.missing or "installed"


def batch_refusal(env_id: str, env_kwargs: Mapping[str, Any] | None) -> str | None:
    """Why the batch back end cannot serve an env, None where it can."""
    if env_id in TENSOR_WORLDS:
        return None
    spec = find_spec(env_id)
    if is_emulator(spec):
        return "an emulator plays one game at a time"
    # Asked for MuJoCo's own envs alone: no other needs MuJoCo, which may be missing or broken.
    if not is_mujoco(spec):
        return f"{env_id} is not one of Gymnasium's MuJoCo tasks"
    if obstacle := import_obstacle("mujoco") or import_obstacle("proxima.envs.mujoco.env"):
        return obstacle
    from proxima.envs.mujoco.registry import why_not

    return why_not(env_id, env_kwargs)


def tensor_world(env_id: str) -> "type[TensorVecEnv] | None":
    """The class of one of our own worlds on tensors, None for any other id."""
    path = TENSOR_WORLDS.get(env_id)
    return None if path is None else cast("type[TensorVecEnv]", load_env_creator(path))


def make_env(
    env_id: str,
    *,
    num_envs: int = 1,
    mode: str = "auto",
    env_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    spread_episodes: bool = False,
    num_threads: int | None = None,
    num_workers: int | None = None,
    wrappers: Sequence[Wrapper] = (),
    max_failures: int | None = None,
    step_timeout: float | None = 300.0,
    device: str = "cpu",
) -> VecEnv:
    """Make `num_envs` copies of an environment as one vector env.

    Args:
        env_id: A registered Gymnasium id, also as `module:EnvId`.
        num_envs: How many copies are stepped together.
        mode: "batch" runs MuJoCo tasks on native threads and our own on tensors, "sync" steps Gymnasium envs one after
            another in this process, "async" in worker processes; "auto" is batch where that can serve, async for
            several envs of an emulator (Mario, Atari), else sync. All three give the same trajectories.
        env_kwargs: Keywords of the env's constructor.
        max_episode_steps: The time limit; None is the registered one.
        spread_episodes: At every `reset()`, start the time limit of env i at i / `num_envs` of its length, so that
            the episodes of a task that always runs to its time limit do not all end in the same step.
        num_threads: Batch only: native threads; None is the available cores.
        num_workers: Async only: processes; None is the available cores, at most `num_envs`.
        wrappers: Gymnasium wrappers, applied in order; not with batch.
        max_failures: Sync and async: how often an env may fail in a row, without one good step between, before
            `EnvFailure` is raised.
        device: Where a task on tensors lives; all others are on the CPU.
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
    check_count("num_envs", num_envs)
    check_count("max_episode_steps", max_episode_steps)
    check_count("num_threads", num_threads)
    check_count("num_workers", num_workers)
    check_count("max_failures", max_failures)
    spec = find_spec(env_id)
    check_env_kwargs(env_kwargs, spec.kwargs)
    if is_mujoco(spec) and (missing := missing_package(spec) or import_obstacle("mujoco")):
        raise UsageError(f"env {spec.id!r} needs MuJoCo: {missing}")
    if mode in ("auto", "batch"):
        refusal = "wrappers only run in sync and async mode" if wrappers else batch_refusal(spec.id, env_kwargs)
        world = None if refusal else tensor_world(spec.id)
        if world is not None:
            try:
                return world(
                    **(env_kwargs or {}),
                    num_envs=num_envs,
                    device=device,
                    max_episode_steps=max_episode_steps or spec.max_episode_steps,
                    spread_episodes=spread_episodes,
                )
            except TypeError as error:
                raise UsageError(f"cannot build env {spec.id!r}: {error}") from error
        if refusal is None:
            from proxima.envs.mujoco.env import MujocoBatchEnv

            return MujocoBatchEnv(
                spec.id,
                num_envs=num_envs,
                env_kwargs=env_kwargs,
                num_threads=num_threads,
                max_episode_steps=max_episode_steps,
                spread_episodes=spread_episodes,
            )
        if mode == "batch":
            raise UsageError(f"env {spec.id!r} cannot run in batch mode: {refusal}; use sync or async")

    from proxima.envs.gymnasium.sync_vec import MAX_FAILURES, SyncVecEnv

    common: dict[str, Any] = {
        "num_envs": num_envs,
        "env_kwargs": env_kwargs,
        "max_episode_steps": max_episode_steps,
        "spread_episodes": spread_episodes,
        "wrappers": wrappers,
        "max_failures": MAX_FAILURES if max_failures is None else max_failures,
    }
    if mode == "async" or (mode == "auto" and num_envs > 1 and is_emulator(spec)):
        from proxima.envs.gymnasium.async_vec import AsyncVecEnv

        return AsyncVecEnv(env_id, num_workers=num_workers, step_timeout=step_timeout, **common)
    return SyncVecEnv(env_id, **common)


def list_envs() -> list[EnvListing]:
    """Every registered id that can be trained, by name, the newest version of each first."""
    listings: list[EnvListing] = []
    if obstacle := atari_obstacle():  # one for all of them: their names come with the package
        listings.append(EnvListing("ALE/Pong-v5", _EMULATOR_MODES, obstacle, newest=True))
    mujoco = import_obstacle("mujoco")
    for env_id in live_ids():
        spec = find_spec(env_id)
        missing = missing_package(spec) or (mujoco if is_mujoco(spec) else None)
        backends: tuple[str, ...] = _EMULATOR_MODES
        if not is_emulator(spec):
            in_batch = not (is_mujoco(spec) and mujoco) and batch_refusal(env_id, None) is None
            backends = ("batch", "sync", "async") if in_batch else ("sync", "async")
        listings.append(EnvListing(env_id, backends, missing, newest=newest_version(env_id) == env_id))
    return sorted(listings, key=lambda listing: (base_name(listing.id).lower(), -version(listing.id)))
