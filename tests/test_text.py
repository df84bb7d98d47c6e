"""Numbers as people read them."""

import pytest

from proxima.text import duration, number, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.946, "0.946"),
        (0.01234567, "0.01235"),
        (-165.3, "-165.3"),
        (9084.2, "9,084.2"),
        (500.0, "500"),
        (1000.0, "1,000"),
        (999.97, "1,000"),
        (-999.97, "-1,000"),
        (99999.96, "100,000"),
        (1234567.8, "1,234,568"),
        (1e30, "1e+30"),
        (-1e-9, "-1e-09"),
        (0, "0"),
        (-0.0, "0"),
        (float("nan"), "-"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_keep_the_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


def test_rounding_errors_are_zero() -> None:
    assert number(5.5e-13, scale=500.0) == "0" and number(5.5e-13) == "5.5e-13" and number(-0.5, scale=500.0) == "-0.5"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.27, "27%"), (-0.0, "0%"), (-0.004, "0%"), (-0.1, "-10%"), (10.0, "1000%"), (float("nan"), "-")],
)
def test_percentages_are_never_minus_zero(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (0.1234, "0.123 s"), (119.6, "120 s"), (120.0, "2 min"), (7199.0, "120 min"), (7200.0, "2.0 h")],
)
def test_durations_have_the_unit_that_people_would_use(seconds: float, text: str) -> None:
    assert duration(seconds) == text and duration(float("nan")) == "-"
