"""Checks of arguments, the same for every back end; errors name the argument and its value."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from proxima.errors import UsageError


def check_count(name: str, value: Any, *, least: int = 1, below: int = 2**31) -> None:
    """Raise UsageError unless the value is None or an integer from `least` up to, but not including, `below`."""
    if value is None:
        return
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise UsageError(f"{name} is {value!r}; it must be a whole number")
    if value < least:
        raise UsageError(f"{name} is {value}; it must be at least {least}")
    if value >= below:
        raise UsageError(f"{name} is {value}; it must be below 2**{below.bit_length() - 1}")


def check_seed(seed: Any) -> None:
    """Raise UsageError unless it is None or a seed below 2**63."""
    check_count("seed", seed, least=0, below=2**63)


def check_env_kwargs(env_kwargs: Any, registered: Mapping[str, Any]) -> None:
    """Raise UsageError unless these are keywords for an env that neither opens a window nor stores its frames.

    Other render modes are harmless, and some wrappers need them to make observations from frames.
    """
    if env_kwargs is not None and not (
        isinstance(env_kwargs, Mapping) and all(isinstance(name, str) for name in env_kwargs)
    ):
        raise UsageError(f"env_kwargs is {env_kwargs!r}; it must be a mapping from keywords to values")
    mode = {**registered, **(env_kwargs or {})}.get("render_mode")
    if mode == "human" or (isinstance(mode, str) and mode.endswith("_list")):
        what = "would open a window for every env" if mode == "human" else "would keep every frame in memory"
        raise UsageError(
            f"env_kwargs has render_mode {mode!r}, which {what}: leave it out; training does not render, and "
            "`proxima evaluate RUN --render` shows the trained policy"
        )
