"""Summary statistics of a few episodes or runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from proxima.text import number

RESAMPLES = 2000
FEWEST = 5
"""Values that a bootstrap interval or a probability needs."""
COLUMNS = ("mean", "std", "median", "IQM", "95% interval", "min", "max")
"""Heads of `Summary.cells`."""


@dataclass(frozen=True)
class Summary:
    """Summary of one quantity over episodes or runs."""

    mean: float
    std: float
    median: float
    iqm: float
    """Interquartile mean: mean of the middle half, robust to a few outliers (Agarwal et al. 2021)."""
    iqm_low: float
    iqm_high: float
    """95 % bootstrap interval of the interquartile mean."""
    min: float
    max: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        """Summarise at least one value."""
        array = np.asarray(values, np.float64)
        resampled = np.random.default_rng(0).choice(array, (RESAMPLES, len(array)))
        low, high = np.percentile(interquartile_mean(resampled), (2.5, 97.5))
        spread = float(array.std()), float(np.median(array)), float(interquartile_mean(array)), float(low), float(high)
        return cls(float(array.mean()), *spread, float(array.min()), float(array.max()), len(array))

    def cells(self) -> tuple[str, ...]:
        """One text per column of `COLUMNS`."""
        interval = f"{number(self.iqm_low)} to {number(self.iqm_high)}" if self.count >= FEWEST else "too few"
        first, last = (self.mean, self.std, self.median, self.iqm), (self.min, self.max)
        return *map(number, first), interval, *map(number, last)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the mean."""
    resampled = np.random.default_rng(0).choice(np.asarray(values, np.float64), (RESAMPLES, len(values)))
    low, high = np.percentile(resampled.mean(-1), (2.5, 97.5))
    return float(low), float(high)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Mean of the middle half of the last axis; values at a quartile are weighted by the part that is inside."""
    ordered = np.sort(values, axis=-1)
    count = ordered.shape[-1]
    edges = np.arange(count + 1) / count
    weight = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    return ordered @ (weight / weight.sum())
