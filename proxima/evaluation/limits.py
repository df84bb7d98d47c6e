"""Ranges of the integers that evaluation takes."""

from typing import Any

import numpy as np

from proxima.config.options import shown
from proxima.errors import UsageError

MOST = 2**31 - 1
"""Of seeds, as in training: env i gets seed + i."""
MOST_EPISODES = 1_000_000


def check_number(name: str, value: Any, *, least: int, most: int = MOST) -> None:
    """Raise a UsageError if the value is not an integer from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise UsageError(f"{name} is {shown(value)}, but it must be a whole number.")
    if not least <= value <= most:
        limit = f">= {least}" if value < least else f"<= {most}"
        raise UsageError(f"{name} is {shown(int(value))}, but it must be {limit}.")
