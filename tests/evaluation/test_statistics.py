"""Summaries against hand computations."""

import numpy as np
import pytest

from proxima.evaluation.statistics import Summary, interquartile_mean


def test_interquartile_mean_is_the_mean_of_the_middle_half() -> None:
    assert interquartile_mean(np.array([100.0, 1.0, 2.0, -50.0])) == pytest.approx(1.5)
    # Of five values, the quartiles cut through the second and the fourth: a quarter of each is left out.
    assert interquartile_mean(np.array([0.0, 1.0, 2.0, 4.0, 99.0])) == pytest.approx((0.75 * 1 + 2 + 0.75 * 4) / 2.5)
    assert interquartile_mean(np.array([7.0])) == pytest.approx(7.0)


def test_a_summary_of_known_numbers() -> None:
    found = Summary.of([1.0, 2.0, 3.0, 10.0])
    assert (found.mean, found.median, found.min, found.max) == (4.0, 2.5, 1.0, 10.0)
    assert found.std == pytest.approx(np.std([1.0, 2.0, 3.0, 10.0]))
    assert found.iqm_low <= found.iqm <= found.iqm_high
    assert found == Summary.of([1.0, 2.0, 3.0, 10.0])


def test_cells_keep_small_digits_and_round_large_ones() -> None:
    assert Summary.of([0.946] * 5).cells()[0] == "0.946"
    small = Summary.of([0.94612, 0.95, 0.96, 0.97, 0.98]).cells()
    assert small[-2:] == ("0.9461", "0.98") and small[4].count("0.9") == 2
    large = Summary.of([9084.23, 1000.0, 12.0]).cells()
    assert large[-2:] == ("12", "9,084.2") and large[4] == "too few"


def test_the_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        found = Summary.of(rng.normal(5.0, 2.0, 40))
        covered += found.iqm_low <= 5.0 <= found.iqm_high
    assert 0.90 <= covered / 200 <= 0.99
