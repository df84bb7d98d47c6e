"""Drawing without a window: which OpenGL back end MuJoCo takes, and what to install where there is none.

MuJoCo and Gymnasium read `MUJOCO_GL` when they make their first picture. A back end that was imported and failed bars
the others from the same process, so each is tried in a short process of its own.
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
# A context alone proves little: MuJoCo must also find OpenGL's functions in it. Finalizers that complain are skipped.
_PROBE = """
import importlib, os, sys, mujoco
context = importlib.import_module("mujoco." + sys.argv[1]).GLContext(64, 64)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), mujoco.mjtFontScale.mjFONTSCALE_100)
os._exit(0)
"""


def has_display() -> bool:
    """Whether a window can be asked for; elsewhere than on Linux there is always a desktop."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def require_display() -> None:
    """Refuse at once where no window can be opened: some libraries abort the process instead.

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
    """For the length of the block, nothing looks for a display: MuJoCo gets a back end that works, SDL a dummy.

    What the user has set stays.

    Raises:
        UsageError: no back end works; the missing libraries and the command that installs them are named.
    """
    settings: dict[str, str] = {}
    if not has_display():
        settings["SDL_VIDEODRIVER"] = os.environ.get("SDL_VIDEODRIVER", "dummy")
    if mujoco and sys.platform == "linux":
        settings[VARIABLE] = choose_backend(os.environ.get(VARIABLE))
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def choose_backend(wanted: str | None = None) -> str:
    """The wanted back end if it works; without a wish the first that does of EGL, a hidden window and OSMesa."""
    if wanted and wanted not in _LIBRARIES:
        raise UsageError(f"{VARIABLE} is {wanted!r}, but it must be one of {', '.join(_LIBRARIES)}: or unset it.")
    hidden_window = ("glfw",) if has_display() else ()
    candidates = (wanted,) if wanted else ("egl", *hidden_window, "osmesa")
    for backend in candidates:
        if _works(backend):
            return backend
    reasons = "; ".join(_why_not(backend) for backend in candidates)
    raise UsageError(
        f"MuJoCo cannot draw without a window here: {reasons}."
        + (f" Or unset {VARIABLE}, so that others are tried." if wanted else " One of them is enough.")
    )


def explain_broken_choice() -> None:
    """Raise what is wrong with the user's `MUJOCO_GL`, if anything is: with a broken one MuJoCo cannot be imported."""
    wanted = os.environ.get(VARIABLE)
    if wanted and sys.platform == "linux":
        choose_backend(wanted)


@functools.cache
def _works(backend: str) -> bool:
    command = [sys.executable, "-c", _PROBE, backend]
    try:
        done = subprocess.run(command, env={**os.environ, VARIABLE: backend}, capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:  # a driver that hangs is one that does not work
        return False
    return done.returncode == 0


def _why_not(backend: str) -> str:
    """What a back end that failed lacks: its library, or a driver behind it."""
    library, install = _LIBRARIES[backend], f"apt-get install {_PACKAGES[backend]}"
    if backend == "glfw" and not has_display():
        return "glfw needs a display: xvfb-run gives one"
    try:
        ctypes.CDLL(library)
    except OSError:
        return f"{backend} needs {library}, which is missing ({install})"
    container = ", or NVIDIA_DRIVER_CAPABILITIES=all for an NVIDIA container" if backend == "egl" else ""
    return f"{backend} has {library} but finds no driver ({install}{container})"
