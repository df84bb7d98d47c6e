"""Ranges of the numbers that an evaluation is asked for."""

from typing import Any

from proxima.errors import UsageError

MOST = 2**31 - 1
"""Of seeds, as in training: env i gets seed + i."""
MOST_EPISODES = 1_000_000


def check_number(name: str, value: Any, *, least: int, most: int = MOST) -> None:
    """A UsageError where it is not a whole number in its range."""
    try:
        whole = not isinstance(value, bool) and int(value) == value
    except (TypeError, ValueError, OverflowError):
        whole = False
    if not whole or isinstance(value, str):
        raise UsageError(f"{name} is {value!r}, but it must be a whole number.")
    if value < least:
        raise UsageError(f"{name} is {value}, but it must be >= {least}.")
    if value > most:
        shown = value if value < 10**20 else f"{value:.3e}" if value < 10**300 else "a number of over 300 digits"
        raise UsageError(f"{name} is {shown}, but it must be <= {most}.")
