"""Summary statistics of a few episodes or runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from proxima.text import number

RESAMPLES = 2000
FEWEST = 5
"""Fewer values than this are too few for a bootstrap interval or a probability."""


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
        return cls(
            mean=float(array.mean()),
            std=float(array.std()),
            median=float(np.median(array)),
            iqm=float(interquartile_mean(array)),
            iqm_low=float(low),
            iqm_high=float(high),
            min=float(array.min()),
            max=float(array.max()),
            count=len(array),
        )

    def cells(self) -> tuple[str, ...]:
        """Mean, std, median, IQM, its interval, min and max, for a table."""
        interval = f"{number(self.iqm_low)} to {number(self.iqm_high)}" if self.count >= FEWEST else "too few"
        first, last = (self.mean, self.std, self.median, self.iqm), (self.min, self.max)
        return *map(number, first), interval, *map(number, last)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Mean of the middle half of the last axis; a value that the quartile cuts through counts by its share."""
    ordered = np.sort(values, axis=-1)
    count = ordered.shape[-1]
    edges = np.arange(count + 1) / count
    weight = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    return ordered @ (weight / weight.sum())
