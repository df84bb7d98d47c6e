"""Numbers as people read them."""

import math


def number(value: float) -> str:
    """A return or another measured value: thousands separated, and digits enough where it is small."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else str(value)
    if abs(value) >= 100:
        return f"{value:,.1f}"
    text = f"{value:.4g}" if abs(value) >= 1 else f"{value:.3g}"
    return "0" if float(text) == 0 else text
