"""Redirects MuJoCo's warnings about Gymnasium's model files. Imports MuJoCo only when used."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def model_warnings() -> Iterator[None]:
    """Turn MuJoCo's warnings into Python's; MuJoCo itself prints them and writes a file in the working folder.

    Deprecation warnings are ignored: the user cannot change Gymnasium's model files.
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
