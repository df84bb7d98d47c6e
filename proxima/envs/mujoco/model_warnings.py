"""What MuJoCo says while Gymnasium loads a model, kept out of the user's folder and screen."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def model_warnings() -> Iterator[None]:
    """Hand MuJoCo's warnings to Python, or it prints them and writes them to a file in the working folder.

    Those of deprecation are dropped: they are about Gymnasium's model files, which the user cannot mend.
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
