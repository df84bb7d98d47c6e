"""Formats numbers for tables and sentences; files keep every digit."""

import math

_ROUNDING = 1e-9


def number(value: float, *, scale: float = 0.0) -> str:
    """Four significant digits, or one decimal from 1,000 on, without trailing zeros; "-" for NaN.

    `scale` is the magnitude of the numbers that the value was computed from; values at its rounding error become 0.

    Example:
        >>> [number(x) for x in (0.946, -165.3, 9084.2, 1234567.8, -0.0, float("nan"))]
        ['0.946', '-165.3', '9,084.2', '1,234,568', '0', '-']
    """
    if math.isnan(value):
        return "-"
    if abs(value) <= _ROUNDING * scale or value == 0:
        return "0"
    short = f"{value:.4g}"
    size = abs(float(short))
    if not 1e3 <= size < 1e12:
        return short
    return f"{value:,.0f}" if size >= 1e5 else f"{value:,.1f}".removesuffix(".0")


def duration(seconds: float) -> str:
    """Seconds below two minutes, then minutes, and hours from two hours on; "-" for NaN.

    Example:
        >>> [duration(x) for x in (48.21, 1159.2, 4137, 8849, float("nan"))]
        ['48.2 s', '19 min', '69 min', '2.5 h', '-']
    """
    if math.isnan(seconds):
        return "-"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def percent(share: float) -> str:
    """A fraction in integer percent, never "-0%"; "-" for NaN.

    Example:
        >>> [percent(x) for x in (0.271, -0.001, -0.34)]
        ['27%', '0%', '-34%']
    """
    return "-" if math.isnan(share) else f"{share:.0%}".replace("-0%", "0%")
