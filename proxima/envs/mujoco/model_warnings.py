"""Keeps MuJoCo's warnings about Gymnasium's model files off the screen and out of the working folder."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def model_warnings() -> Iterator[None]:
    """Hand MuJoCo's warnings to Python, or it prints them and writes them to a file in the working folder.

    Deprecation warnings are dropped: the user cannot change Gymnasium's model files.
    """
    import mujoco

    def warn(message: str) -> None:
        if "deprecated" not in message:
            warnings.warn(f"MuJoCo: {message}", stacklevel=2)

    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(warn)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(previous)
