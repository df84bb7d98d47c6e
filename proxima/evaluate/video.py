"""A policy to look at: one env drawn into an MP4 file, or in a window at its own pace."""

import contextlib
import copy
import functools
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from proxima.envs.action_hold import Hold
from proxima.envs.gymnasium.env_errors import first_line
from proxima.envs.gymnasium.env_group import Recipe
from proxima.envs.gymnasium.spaces import step_seconds
from proxima.errors import UsageError
from proxima.evaluate.camera import follow, follow_in_window, is_mujoco
from proxima.evaluate.headless import explain_broken_choice, offscreen, require_display
from proxima.evaluate.limits import check_number
from proxima.evaluate.mp4 import Mp4Writer
from proxima.evaluate.policy import LoadedPolicy
from proxima.evaluate.restored import Restored, restore_policy
from proxima.evaluate.world import chosen_env, refuse_window
from proxima.runs.layout import VIDEOS

Act = Callable[[Any], Any]
"""From one observation of the env to an action of the env."""

LONGEST_EPISODE = 10_000
"""Steps after which a video without a length ends, for envs that never do."""
DEFAULT_FPS = 30.0


def record(
    act: Act,
    env_id: str,
    *,
    path: str | Path,
    env_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    seed: int = 0,
    length: int | None = None,
    hold: Hold | None = None,
    on_reset: Callable[[], None] | None = None,
) -> Path:
    """Draw one env under a policy into an MP4, without a display; the file is whole or not there.

    Args:
        act: Chooses the actions; `LoadedPolicy.act` is one.
        env_id: A registered Gymnasium id, also as `module:EnvId`.
        path: The file, ending in `.mp4`; its folder is made.
        env_kwargs: Keywords of the env's constructor; MuJoCo tasks take `width`, `height` and
            `camera_name` among them; left alone, the camera follows the robot where the model has one that does.
        max_episode_steps: The time limit; None is the registered one.
        seed: Of the first reset.
        length: Env steps, over as many episodes as they take; None is one episode, of at most `LONGEST_EPISODE`
            steps. There is one frame a step and one a reset.
        hold: For how many env steps each action is held; `LoadedPolicy.hold` is what the policy learned with. Every
            step is drawn all the same.
        on_reset: Called where an episode begins; `LoadedPolicy.reset`, for a recurrent policy.

    Raises:
        UsageError: the env cannot be drawn; one line says what is missing.

    Example:
        >>> policy = load_policy("runs/HalfCheetah-v5")  # doctest: +SKIP
        >>> options = {"hold": policy.hold, "on_reset": policy.reset}  # doctest: +SKIP
        >>> record(policy.act, "HalfCheetah-v5", path="cheetah.mp4", **options)  # doctest: +SKIP
    """
    _check(seed=seed, length=length)
    with contextlib.ExitStack() as stack:
        env = stack.enter_context(_opened(env_id, "rgb_array", env_kwargs, max_episode_steps))
        stack.enter_context(offscreen(mujoco=is_mujoco(env)))
        video = stack.enter_context(Mp4Writer(path, fps=frame_rate(env)))
        for _ in _play(env, act, seed=seed, length=length, hold=hold, on_reset=on_reset):
            video.write(_frame(env))
    return Path(path)


def watch(
    act: Act,
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    seed: int = 0,
    length: int | None = None,
    hold: Hold | None = None,
    on_reset: Callable[[], None] | None = None,
) -> None:
    """Show one env under a policy in a window, as fast as it really is, until the end or until the window is closed.

    The arguments are those of `record`.

    Raises:
        UsageError: there is no display, or the env cannot be drawn.
    """
    _check(seed=seed, length=length)
    require_display()
    with _opened(env_id, "human", env_kwargs, max_episode_steps) as env:
        period, due = 1.0 / frame_rate(env), time.monotonic()
        moments = _play(env, act, seed=seed, length=length, hold=hold, on_reset=on_reset)
        with _explained(env, "no window can be opened"):
            next(moments)  # a human-mode env draws itself in reset and step
        follow_in_window(env)
        for _ in moments:
            due = max(due + period, time.monotonic() - period)  # a slow frame is not made up for by a rush
            time.sleep(max(0.0, due - time.monotonic()))
            if _window_closed(env):
                return


def record_checkpoint(
    path: str | Path,
    *,
    env: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    deterministic: bool = True,
    length: int | None = None,
) -> Path:
    """Record a checkpoint's policy into `videos/` of its run, and return the file."""
    _check(seed=seed, length=length)
    saved = restore_policy(path)
    act, env_id, options = _cast(saved, env=env, env_kwargs=env_kwargs, seed=seed, deterministic=deterministic)
    how = f"-seed{seed}{f'-{length}steps' if length else ''}{'' if deterministic else '-stochastic'}"
    target = video_path(saved.checkpoint.run_dir, env_id, saved.checkpoint.global_step, how)
    return record(act, env_id, path=target, seed=seed, length=length, **options)


def video_path(run_dir: Path, env_id: str, step: int, how: str = "") -> Path:
    """Where a run's video after so many training steps is, in letters that every file system takes."""
    return run_dir / VIDEOS / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', env_id)}-step{step}{how}.mp4"


def watch_checkpoint(
    path: str | Path,
    *,
    env: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    deterministic: bool = True,
    length: int | None = None,
) -> None:
    """Show a checkpoint's policy in a window."""
    _check(seed=seed, length=length)
    saved = restore_policy(path)
    act, env_id, options = _cast(saved, env=env, env_kwargs=env_kwargs, seed=seed, deterministic=deterministic)
    watch(act, env_id, seed=seed, length=length, **options)


def frame_rate(env: gym.Env) -> float:
    """Frames a second at which the env's time runs true: what it declares, else one frame a step of its clock."""
    declared = (env.metadata or {}).get("render_fps")
    if isinstance(declared, (int, float)) and declared > 0:
        return float(declared)
    seconds = step_seconds(env)
    return 1.0 / seconds if seconds else DEFAULT_FPS


def _cast(
    saved: Restored, *, env: str | None, env_kwargs: Mapping[str, Any] | None, seed: int, deterministic: bool
) -> tuple[Act, str, dict[str, Any]]:
    """Who acts in a checkpoint's video, and where: its policy, and the env of its config unless another is named."""
    env_id, kwargs, limit = chosen_env(saved.config, env, env_kwargs)
    policy = LoadedPolicy(saved.policy, seed=seed, hold=saved.hold)
    act = functools.partial(policy.act, deterministic=deterministic)
    where = {"env_kwargs": kwargs, "max_episode_steps": limit}
    return act, env_id, {"hold": policy.hold, "on_reset": policy.reset, **where}


def _check(*, seed: int, length: int | None) -> None:
    check_number("seed", seed, least=0)
    if length is not None:
        check_number("the video length", length, least=1)


@contextlib.contextmanager
def _opened(
    env_id: str, mode: str, env_kwargs: Mapping[str, Any] | None, max_episode_steps: int | None
) -> Iterator[gym.Env]:
    refuse_window(env_kwargs or {})
    recipe = Recipe.of(
        env_id, env_kwargs={**(env_kwargs or {}), "render_mode": mode}, max_episode_steps=max_episode_steps
    )
    creator: Any = recipe.spec.entry_point
    with contextlib.suppress(Exception):  # building it says better what is wrong with an entry point
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
        follow(env, env_kwargs)
        yield env
    finally:
        with contextlib.suppress(Exception):  # a picture that is done is not lost to a driver's way of closing
            env.close()


def _check_modes(env_id: str, metadata: Mapping[str, Any] | None, mode: str) -> None:
    """Gymnasium makes a window of its own for an env that only gives arrays, but no array out of a window."""
    if metadata is None:
        return
    modes = metadata.get("render_modes") or []
    if mode not in modes and not (mode == "human" and "rgb_array" in modes):
        if not modes:
            raise UsageError(
                f"env {env_id!r} has no picture (no render modes): evaluate it without --record and --render."
            )
        raise UsageError(f"env {env_id!r} cannot be drawn as {mode}: it has only {', '.join(modes)}.")


def _play(
    env: gym.Env,
    act: Act,
    *,
    seed: int,
    length: int | None,
    hold: Hold | None = None,
    on_reset: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Act for `length` steps, or one episode; stops after every reset and every step, for a look."""
    rng, left = np.random.default_rng(seed), 0
    hold, forget = hold or Hold(), on_reset or (lambda: None)
    obs, _ = env.reset(seed=seed)
    forget()
    yield
    for step in range(1, (length or LONGEST_EPISODE) + 1):
        if not left:
            action, left = act(obs), int(hold.draw(rng, 1)[0])
        left -= 1
        if np.shape(action) != env.action_space.shape:
            raise UsageError(
                f"the action has shape {np.shape(action)}, but env {_name(env)!r} takes {env.action_space}: "
                "the policy does not fit it."
            )
        with _explained(env, "it failed"):
            obs, _, terminated, truncated, _ = env.step(copy.copy(action))
        yield
        if terminated or truncated:
            left = 0
            if length is None or step == length:
                return
            obs, _ = env.reset()
            forget()
            yield


def _frame(env: gym.Env) -> NDArray:
    with _explained(env, "it cannot be drawn"):
        return np.asarray(env.render())


@contextlib.contextmanager
def _explained(env: gym.Env, what: str) -> Iterator[None]:
    """Turn whatever a drawing library raises into one line; Gymnasium's own name the package to install."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        text = first_line(error).rstrip(".")
        raise UsageError(f"env {_name(env)!r}: {what}: {type(error).__name__}: {text}.") from error


def _name(env: gym.Env) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__


def _window_closed(env: gym.Env) -> bool:
    """Whether the user has closed the window, which Gymnasium itself does not look at."""
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
