"""Videos of a policy: one env rendered into an MP4 file, or in a window in real time."""

import contextlib
import copy
import functools
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from proxima.envs.action_hold import Hold
from proxima.envs.gymnasium.env_group import Recipe
from proxima.envs.gymnasium.masked_env import MaskedEnv, mask_source
from proxima.envs.gymnasium.spaces import step_seconds
from proxima.envs.own import OwnSpec, Wrapper
from proxima.errors import UsageError, one_line
from proxima.evaluation.camera import follow, follow_in_window, is_mujoco
from proxima.evaluation.headless import explain_broken_choice, offscreen, require_display
from proxima.evaluation.limits import check_number
from proxima.evaluation.mp4 import write_mp4
from proxima.evaluation.policy import LoadedPolicy
from proxima.evaluation.restored import Restored, restore_policy
from proxima.evaluation.world import chosen_env, refuse_window, view_options
from proxima.runs import checkpoint
from proxima.runs.layout import VIDEOS

Act = Callable[[Any], Any]
"""From one observation of the env to an action of the env."""

LONGEST_EPISODE = 10_000
"""Env steps after which a video without a given length ends, for envs that never terminate."""
DEFAULT_FPS = 30.0


def record(
    act: Act,
    env_id: str,
    *,
    path: str | Path,
    env_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    wrappers: Sequence[Wrapper] = (),
    seed: int = 0,
    length: int | None = None,
    hold: Hold | None = None,
    on_reset: Callable[[], None] | None = None,
    prepare: Callable[[Any], None] | None = None,
    masks: bool = False,
) -> Path:
    """Record one env under a policy into an MP4, without a display.

    Args:
        act: Chooses the actions, such as `LoadedPolicy.act`.
        env_id: A registered Gymnasium id, also as `module:EnvId`.
        path: The file, ending in `.mp4`; its folder is created.
        env_kwargs: Keywords of the env's constructor, such as `width`, `height` and `camera_name` of MuJoCo tasks.
            Unless a camera is given, the model's tracking camera is used where there is one.
        max_episode_steps: The time limit; None is the registered one.
        wrappers: Gymnasium wrappers, applied in order.
        seed: Of the first reset.
        length: Env steps, over as many episodes as they take; None is one episode of at most `LONGEST_EPISODE`
            steps. There is one frame per env step and one per reset.
        hold: For how many env steps each action is held, such as `LoadedPolicy.hold`.
        on_reset: Called where an episode begins; `LoadedPolicy.reset` for a recurrent policy.
        prepare: Called once with the env itself, without its wrappers.
        masks: Give `act` observations with the key `action_mask`, as `LoadedPolicy.spec.has_masks` needs them.

    Raises:
        UsageError: the env cannot be rendered; one line says what is missing.

    Example:
        >>> policy = load_policy("runs/HalfCheetah-v5")  # doctest: +SKIP
        >>> options = {"hold": policy.hold, "on_reset": policy.reset}  # doctest: +SKIP
        >>> record(policy.act, "HalfCheetah-v5", path="cheetah.mp4", **options)  # doctest: +SKIP
    """
    _check(seed=seed, length=length)
    options = (env_kwargs, max_episode_steps, wrappers, masks)
    with _opened(env_id, "rgb_array", *options) as env, offscreen(mujoco=is_mujoco(env)):
        if prepare is not None:
            prepare(env.unwrapped)
        steps = _play(env, act, seed=seed, length=length, hold=hold, on_reset=on_reset)
        write_mp4(path, (_frame(env) for _ in steps), fps=frame_rate(env))
    return Path(path)


def watch(
    act: Act,
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    wrappers: Sequence[Wrapper] = (),
    seed: int = 0,
    length: int | None = None,
    hold: Hold | None = None,
    on_reset: Callable[[], None] | None = None,
    prepare: Callable[[Any], None] | None = None,
    masks: bool = False,
) -> None:
    """Show one env under a policy in a window, in real time, until the end or until the window is closed.

    The arguments are those of `record`.

    Raises:
        UsageError: there is no display, or the env cannot be rendered.
    """
    _check(seed=seed, length=length)
    require_display()
    with _opened(env_id, "human", env_kwargs, max_episode_steps, wrappers, masks) as env:
        if prepare is not None:
            prepare(env.unwrapped)
        period, due = 1.0 / frame_rate(env), time.monotonic()
        steps = _play(env, act, seed=seed, length=length, hold=hold, on_reset=on_reset)
        with _explained(env, "no window can be opened"):
            next(steps)  # in human mode, reset and step render
        follow_in_window(env)
        for _ in steps:
            due = max(due + period, time.monotonic() - period)  # a slow frame does not speed up those after it
            time.sleep(max(0.0, due - time.monotonic()))
            if _window_closed(env):
                return


def record_checkpoint(
    path: str | Path,
    *,
    out: str | Path | None = None,
    best: bool = False,
    env: Any = None,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    deterministic: bool = True,
    length: int | None = None,
) -> Path:
    """Record a trained policy into an MP4, without a display; returns the file. `proxima.record` is this function.

    Args:
        path: A checkpoint folder, or a run folder, whose newest checkpoint is used.
        out: The file; None is one in `videos/` of the run, named after env, step and seed.
        best: Use the run's best checkpoint, not its newest.
        env: Another env id than the policy was trained on.
        env_kwargs: Keywords of the env to change.
        seed: Of the env, and of sampled actions.
        deterministic: Take the most likely action; False samples, as in training.
        length: Env steps, over as many episodes as they take; None is one episode.

    Example:
        >>> proxima.record("runs/HalfCheetah-v5", out="cheetah.mp4")  # doctest: +SKIP
        PosixPath('cheetah.mp4')
    """
    saved = restore_policy(checkpoint.find(path, best=True) if best else path)
    act, env_id, options = _played(saved, env, env_kwargs, seed=seed, deterministic=deterministic, length=length)
    if out is None:
        how = f"-seed{seed}{f'-{length}steps' if length else ''}{'' if deterministic else '-stochastic'}"
        out = video_path(saved.checkpoint.run_dir, env_id, saved.checkpoint.global_step, how)
    return record(act, env_id, path=out, **options)


def watch_checkpoint(
    path: str | Path,
    *,
    env: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    deterministic: bool = True,
    length: int | None = None,
) -> None:
    """Show a trained policy in a window; the arguments are those of `record_checkpoint`."""
    saved = restore_policy(path)
    act, env_id, options = _played(saved, env, env_kwargs, seed=seed, deterministic=deterministic, length=length)
    watch(act, env_id, **options)


def _played(
    saved: Restored,
    env: str | None,
    env_kwargs: Mapping[str, Any] | None,
    *,
    seed: int,
    deterministic: bool,
    length: int | None,
) -> tuple[Act, str, dict[str, Any]]:
    """The arguments of `record` and `watch` for a restored policy."""
    env_id, kwargs, limit = chosen_env(saved.config, env, env_kwargs)
    policy = LoadedPolicy(saved.policy, seed=seed, hold=saved.hold)
    act = functools.partial(policy.act, deterministic=deterministic)
    options: dict[str, Any] = {"env_kwargs": kwargs, "max_episode_steps": limit, "seed": seed, "length": length}
    options["wrappers"] = view_options(saved.config)["wrappers"]
    options |= {"hold": saved.hold, "on_reset": policy.reset, "prepare": saved.hand_networks}
    options["masks"] = policy.spec.has_masks
    return act, env_id, options


def video_path(run_dir: Path, env_id: str, step: int, how: str = "") -> Path:
    """The file of a video after `step` env steps of training, in characters that every file system takes."""
    return run_dir / VIDEOS / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', env_id)}-step{step}{how}.mp4"


def frame_rate(env: gym.Env) -> float:
    """Frames per second for real time: the env's `render_fps`, else one frame per step of its simulated time."""
    declared = (env.metadata or {}).get("render_fps")
    if isinstance(declared, (int, float)) and declared > 0:
        return float(declared)
    seconds = step_seconds(env)
    return 1.0 / seconds if seconds else DEFAULT_FPS


def _check(*, seed: int, length: int | None) -> None:
    check_number("seed", seed, least=0)
    if length is not None:
        check_number("the video length", length, least=1)


@contextlib.contextmanager
def _opened(
    env_id: str,
    mode: str,
    env_kwargs: Mapping[str, Any] | None,
    max_episode_steps: int | None,
    wrappers: Sequence[Wrapper],
    masks: bool,
) -> Iterator[gym.Env]:
    """The env, built with this render mode and a camera that follows, and closed after the block."""
    refuse_window(env_kwargs or {})
    kwargs = {**(env_kwargs or {}), "render_mode": mode}
    recipe = Recipe.of(env_id, env_kwargs=kwargs, max_episode_steps=max_episode_steps, wrappers=wrappers)
    creator: Any = recipe.spec.entry_point
    with contextlib.suppress(Exception):  # building it explains better what is wrong with an entry point
        creator = gym.envs.registration.load_env_creator(creator)
    _check_modes(recipe.spec.id, getattr(creator, "metadata", None), mode)
    try:
        env = recipe.build()
    except UsageError:
        if "mujoco" in str(recipe.spec.entry_point):
            explain_broken_choice()
        raise
    try:
        _check_modes(recipe.spec.id, env.metadata, mode)
        if isinstance(recipe.spec, OwnSpec) and env.render_mode != mode:
            raise UsageError(
                f"env {env_id!r} was made with render_mode {env.render_mode!r}, not {mode!r}: give its function a "
                "keyword render_mode that it passes on to the env."
            )
        follow(env, env_kwargs)
        if masks:
            # Whether a mask is in the info is tried on an env without a window.
            unseen = Recipe.of(env_id, env_kwargs=env_kwargs, max_episode_steps=max_episode_steps, wrappers=wrappers)
            source = mask_source(env, unseen.build)
            if not source:
                raise UsageError(f"env {recipe.spec.id!r} has no action_mask, but the policy was trained with masks.")
            env = MaskedEnv(env, source)
        yield env
    finally:
        with contextlib.suppress(Exception):  # a driver that fails to close does not cost a finished video
            env.close()


def _check_modes(env_id: str, metadata: Mapping[str, Any] | None, mode: str) -> None:
    """Refuse a mode that the env does not have; Gymnasium makes human of rgb_array, but not the reverse."""
    if metadata is None:
        return
    modes = metadata.get("render_modes") or []
    if not modes:
        raise UsageError(f"env {env_id!r} has no render modes: evaluate it without --record and --render.")
    if mode not in modes and not (mode == "human" and "rgb_array" in modes):
        raise UsageError(f"env {env_id!r} cannot be rendered as {mode}: it has only {', '.join(modes)}.")


def _play(
    env: gym.Env,
    act: Act,
    *,
    seed: int,
    length: int | None,
    hold: Hold | None = None,
    on_reset: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Act for `length` env steps, or one episode; yields after every reset and every step."""
    rng, left, hold = np.random.default_rng(seed), 0, hold or Hold()
    step, over = 0, True
    action: Any = None
    while step < (length or LONGEST_EPISODE):
        if over:
            if step and length is None:
                return
            obs, _ = env.reset(seed=None if step else seed)
            if on_reset is not None:
                on_reset()
            left = 0
            yield
        has_become_invalid = left and isinstance(env, MaskedEnv) and not env.allows(obs, action)
        if not left or has_become_invalid:
            action, left = act(obs), int(hold.draw(rng, 1)[0])
        if np.shape(action) != env.action_space.shape:
            raise UsageError(
                f"the action has shape {np.shape(action)}, but env {_name(env)!r} takes {env.action_space}: "
                "the policy does not fit it."
            )
        with _explained(env, "it failed"):
            obs, _, terminated, truncated, _ = env.step(copy.copy(action))
        step, left, over = step + 1, left - 1, terminated or truncated
        yield


def _frame(env: gym.Env) -> NDArray:
    with _explained(env, "it cannot be rendered"):
        return np.asarray(env.render())


@contextlib.contextmanager
def _explained(env: gym.Env, what: str) -> Iterator[None]:
    """Turn an exception of the env or of a graphics library into one line."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"env {_name(env)!r}: {what}: {one_line(error).rstrip('.')}.") from error


def _name(env: gym.Env) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__


def _window_closed(env: gym.Env) -> bool:
    """Whether the user has closed the window, which Gymnasium does not check."""
    pygame: Any = sys.modules.get("pygame")
    if pygame is not None and pygame.display.get_init():
        return bool(pygame.event.peek(pygame.QUIT))
    viewer: Any = getattr(getattr(env.unwrapped, "mujoco_renderer", None), "viewer", None)
    if getattr(viewer, "window", None) is None:
        return False
    import glfw

    with warnings.catch_warnings():  # after Escape the library itself is shut down
        warnings.simplefilter("ignore")
        return not glfw.get_current_context() or bool(glfw.window_should_close(viewer.window))
