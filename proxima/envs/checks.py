"""Checks of the arguments of vector envs, the same for every back end; errors name the argument and its value."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from proxima.errors import UsageError

COUNT_LIMIT = 2**31
SEED_LIMIT = 2**63


def check_count(name: str, value: Any) -> None:
    """A positive whole number that fits 32 bits; None is left to whoever has a default for it.

    Raises:
        UsageError: it is something else.
    """
    if value is not None:
        _check_whole(name, value, least=1, below=COUNT_LIMIT)


def check_seed(seed: Any) -> None:
    """A seed of `reset`, or None.

    Raises:
        UsageError: it is something else.
    """
    if seed is not None:
        _check_whole("seed", seed, least=0, below=SEED_LIMIT)


def check_env_kwargs(env_kwargs: Any, registered: Mapping[str, Any]) -> None:
    """Keywords for the constructor of an env that is stepped and never drawn.

    A render mode of arrays or text is harmless, and some wrappers need it to make observations of pictures.

    Raises:
        UsageError: they are no mapping of names, or have the env draw itself.
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


def _check_whole(name: str, value: Any, *, least: int, below: int) -> None:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise UsageError(f"{name} is {value!r}; it must be a whole number")
    if value < least:
        raise UsageError(f"{name} is {value}; it must be at least {least}")
    if value >= below:
        raise UsageError(f"{name} is {value}; it must be below 2**{below.bit_length() - 1}")
