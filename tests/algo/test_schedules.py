import pytest

from proxima.algo.schedules import adapted, scheduled


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", (1.0, 1.0, 1.0)), ("linear", (1.0, 0.5, 0.0)), ("cosine", (1.0, 0.55, 0.1))],
)
def test_start_middle_and_end(schedule: str, expected: tuple[float, ...]) -> None:
    assert [scheduled(schedule, 1.0, p) for p in (0.0, 0.5, 1.0)] == pytest.approx(expected)


def test_adaptive_follows_the_kl() -> None:
    assert adapted(1e-3, 0.05, 0.01) == pytest.approx(1e-3 / 1.5)
    assert adapted(1e-3, 0.001, 0.01) == pytest.approx(1.5e-3)
    assert adapted(1e-3, 0.01, 0.01) == 1e-3
    assert adapted(1e-6, 1.0, 0.01) == 1e-6 and adapted(0.1, 0.0, 0.01) == 0.1
    assert adapted(1e-5, 1.0, 0.01) == 1e-5 and adapted(1e-2, 0.0, 0.01) == 1e-2
