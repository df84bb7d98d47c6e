"""Converts what an env's `step` returned to plain floats and bools; a value of another kind is a failure of the env.

No torch here: worker processes import this file.
"""

from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np


def _scalar(value: Any) -> Any:
    """The number in an array or a tensor of size 1; any other value unchanged."""
    if isinstance(value, np.generic):
        return value
    size = getattr(value, "size", None)
    size = size if isinstance(size, int) else getattr(value, "numel", lambda: None)()
    return value.item() if size == 1 else value


def read_reward(value: Any) -> float:
    """A reward as a float; TypeError if it is not a number, OverflowError if it is too large an integer."""
    scalar = value if isinstance(value, float) else _scalar(value)
    if not isinstance(scalar, (float, Real, Decimal, np.bool_)):
        raise TypeError(f"the reward is {_shown(value)}, but it must be a number")
    return float(scalar)


def read_flag(value: Any, name: str) -> bool:
    """`terminated` or `truncated` as a bool; integers and arrays of size 1 are accepted, else TypeError."""
    if type(value) is bool:
        return value
    scalar = _scalar(value)
    if not isinstance(scalar, (bool, int, np.bool_, np.integer)):
        raise TypeError(f"{name} is {_shown(value)}, but it must be True or False")
    return bool(scalar)


def reported_success(info: Mapping[str, Any]) -> float:
    """1 or 0 from `info["is_success"]` or `info["success"]` at the end of an episode; NaN if there is neither."""
    value = _scalar(info.get("is_success", info.get("success")))
    if not isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)) or value != value:
        return np.nan
    return float(bool(value))


def reported_number(value: Any) -> float:
    """A value of `info` as a float; NaN if it is missing, not a number, or beyond the range of floats."""
    value = _scalar(value)
    if not isinstance(value, (int, float, np.bool_, np.integer, np.floating)):
        return np.nan
    try:
        return float(value)
    except OverflowError:
        return np.nan


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
