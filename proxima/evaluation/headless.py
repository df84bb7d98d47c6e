"""Offscreen rendering: which OpenGL back end MuJoCo uses, and what to install where none works.

MuJoCo and Gymnasium read `MUJOCO_GL` when they render their first frame. After a back end was imported and failed, the
same process cannot use another, so each is tried in a separate process.
"""

import contextlib
import ctypes
import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator

from proxima.errors import UsageError

VARIABLE = "MUJOCO_GL"
_LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8", "glfw": "libGL.so.1"}
_PACKAGES = {"egl": "libegl1 libgl1-mesa-dri", "osmesa": "libosmesa6", "glfw": "libgl1 libgl1-mesa-dri"}
# MuJoCo must also find OpenGL's functions in the context. `os._exit` skips finalizers that print errors.
_PROBE = """
import importlib, os, sys, mujoco
context = importlib.import_module("mujoco." + sys.argv[1]).GLContext(64, 64)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), mujoco.mjtFontScale.mjFONTSCALE_100)
os._exit(0)
"""


def has_display() -> bool:
    """Whether a window can be requested; on other platforms than Linux always."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def require_display() -> None:
    """Check that a window can be opened: without one some libraries abort the process.

    Raises:
        UsageError: there is no display, or it does not answer.
    """
    ways = "use --record for a video file, log in with ssh -X, or start the command with xvfb-run."
    if not has_display():
        raise UsageError(f"no display to open a window on (DISPLAY and WAYLAND_DISPLAY are unset): {ways}")
    if sys.platform != "linux":
        return
    import glfw

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reachable = glfw.init()
        glfw.terminate()
    if not reachable:
        name = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY")
        raise UsageError(f"no window can be opened on the display {name!r}, which does not answer: {ways}")


@contextlib.contextmanager
def offscreen(*, mujoco: bool) -> Iterator[None]:
    """Render without a display inside the block: MuJoCo with a back end that works, SDL with its dummy driver.

    Variables that the user has set are kept.

    Raises:
        UsageError: no back end works; the message names the missing libraries and how to install them.
    """
    settings: dict[str, str] = {}
    if not has_display():
        settings["SDL_VIDEODRIVER"] = os.environ.get("SDL_VIDEODRIVER", "dummy")
    if mujoco and sys.platform == "linux":
        settings[VARIABLE] = choose_backend(os.environ.get(VARIABLE))
    before = {name: os.environ[name] for name in settings if name in os.environ}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]
        os.environ.update(before)


def choose_backend(wanted: str | None = None) -> str:
    """The wanted back end if it works; without one, the first that works of EGL, a hidden window and OSMesa."""
    if wanted and wanted not in _LIBRARIES:
        raise UsageError(f"{VARIABLE} is {wanted!r}, but it must be one of {', '.join(_LIBRARIES)}: or unset it.")
    hidden_window = ("glfw",) if has_display() else ()
    candidates = (wanted,) if wanted else ("egl", *hidden_window, "osmesa")
    for backend in candidates:
        if _works(backend):
            return backend
    reasons = "; ".join(_why_not(backend) for backend in candidates)
    raise UsageError(
        f"MuJoCo cannot render offscreen on this machine: {reasons}."
        + (f" Or unset {VARIABLE}, so that others are tried." if wanted else " One of them is enough.")
    )


def explain_broken_choice() -> None:
    """Raise a UsageError if the user's `MUJOCO_GL` does not work: MuJoCo cannot be imported then."""
    wanted = os.environ.get(VARIABLE)
    if wanted and sys.platform == "linux":
        choose_backend(wanted)


@functools.cache
def _works(backend: str) -> bool:
    command = [sys.executable, "-c", _PROBE, backend]
    try:
        done = subprocess.run(command, env={**os.environ, VARIABLE: backend}, capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:  # a driver that hangs
        return False
    return done.returncode == 0


def _why_not(backend: str) -> str:
    """What a back end that failed is missing: its library, or a driver."""
    library, install = _LIBRARIES[backend], f"apt-get install {_PACKAGES[backend]}"
    if backend == "glfw" and not has_display():
        return "glfw needs a display: use xvfb-run"
    try:
        ctypes.CDLL(library)
    except OSError:
        return f"{backend} needs {library}, which is missing ({install})"
    container = ", or NVIDIA_DRIVER_CAPABILITIES=all for an NVIDIA container" if backend == "egl" else ""
    return f"{backend} has {library} but finds no driver ({install}{container})"
