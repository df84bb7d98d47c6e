import pytest
import torch

from proxima.algo.schedules import adapted, scheduled


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", (1.0, 1.0, 1.0)), ("linear", (1.0, 0.5, 0.0)), ("cosine", (1.0, 0.55, 0.1))],
)
def test_start_middle_and_end(schedule: str, expected: tuple[float, ...]) -> None:
    assert [scheduled(schedule, 1.0, p) for p in (0.0, 0.5, 1.0)] == pytest.approx(expected)


def next_rate(rate: float, kl: float) -> float:
    return float(adapted(torch.tensor(rate, dtype=torch.float64), torch.tensor(kl), 0.01))


def test_adaptive_follows_the_kl() -> None:
    assert next_rate(1e-3, 0.05) == pytest.approx(1e-3 / 1.5)
    assert next_rate(1e-3, 0.001) == pytest.approx(1.5e-3)
    assert next_rate(1e-3, 0.01) == next_rate(1e-3, float("nan")) == 1e-3
    assert next_rate(1e-6, 1.0) == 1e-6 and next_rate(0.1, 0.0) == 0.1
    assert next_rate(1e-5, 1.0) == 1e-5 and next_rate(1e-2, 0.0) == 1e-2


def test_adaptive_has_the_bits_of_python_numbers() -> None:
    rates = torch.logspace(-6, -1, 997)
    for kl, change in ((1.0, lambda x: min(x, max(1e-5, x / 1.5))), (0.0, lambda x: max(x, min(1e-2, x * 1.5)))):
        expected = torch.tensor([change(x) for x in rates.tolist()])
        assert torch.equal(adapted(rates, torch.tensor(kl), 0.01).float(), expected)
