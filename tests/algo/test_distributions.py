"""Distributions against torch.distributions, against numerical integration, and in range."""

import pytest
import torch
from torch import distributions as td

from proxima.algo.distributions import (
    BETA_NOISE,
    Bernoulli,
    Beta,
    Categorical,
    Gaussian,
    MultiCategorical,
    TanhGaussian,
)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_gaussian_agrees_with_torch() -> None:
    mean, log_std = torch.randn(7, 3), torch.randn(3) * 0.3
    ours, theirs = Gaussian(mean, log_std), td.Independent(td.Normal(mean, log_std.exp()), 1)
    action = ours.sample(noise(7, 3))
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())


def test_beta_agrees_with_torch() -> None:
    alpha, beta = 1 + torch.rand(7, 3) * 4, 1 + torch.rand(7, 3) * 4
    ours, theirs = Beta(alpha, beta), td.Independent(td.Beta(alpha, beta), 1)
    action = ours.sample(noise(7, 3 * BETA_NOISE))
    assert bool(((action > 0) & (action < 1)).all())
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())


def test_categorical_and_multi_categorical_agree_with_torch() -> None:
    logits = [torch.randn(9, k).log_softmax(-1) for k in (2, 5)]
    ours = MultiCategorical([Categorical(x) for x in logits])
    theirs = [td.Categorical(logits=x) for x in logits]
    action = ours.sample(noise(9, 7))
    expected = sum(dist.log_prob(action[:, i]) for i, dist in enumerate(theirs))
    torch.testing.assert_close(ours.log_prob(action), expected)
    torch.testing.assert_close(ours.entropy(), sum(dist.entropy() for dist in theirs))


def test_bernoulli_agrees_with_torch() -> None:
    logits = torch.randn(9, 4) * 3
    ours, theirs = Bernoulli(logits), td.Independent(td.Bernoulli(logits=logits), 1)
    action = ours.sample(noise(9, 4))
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action.float()))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())


@pytest.mark.parametrize("log_std", [-2.0, -0.5, 0.5])
@pytest.mark.parametrize("mean", [0.0, 0.7, -2.5])
def test_tanh_gaussian_density_and_entropy_by_integration(mean: float, log_std: float) -> None:
    # Integrate over the squashed action a = tanh(u): p(a) must sum to 1 and -p log p to the entropy.
    u = torch.linspace(-14, 14, 400_001, dtype=torch.float64)
    dist = TanhGaussian(
        torch.full((len(u), 1), mean, dtype=torch.float64), torch.tensor([log_std], dtype=torch.float64)
    )
    log_p = dist.log_prob(u[:, None])
    slope = 1 - u.tanh() ** 2  # da = slope du
    mass = torch.trapezoid(log_p.exp() * slope, u)
    entropy = torch.trapezoid(-log_p * log_p.exp() * slope, u)
    assert float(mass) == pytest.approx(1.0, abs=1e-6)
    assert float(dist.entropy()[0]) == pytest.approx(float(entropy), abs=5e-3)


def test_samples_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.1, 0.2, 0.7])
    draws = Categorical(probabilities.log().expand(60_000, 3)).sample(noise(60_000, 3))
    share = torch.bincount(draws, minlength=3) / len(draws)
    torch.testing.assert_close(share, probabilities, atol=0.01, rtol=0)
    coins = Bernoulli(torch.full((60_000, 1), 1.0)).sample(noise(60_000, 1)).float().mean()
    assert float(coins) == pytest.approx(0.731, abs=0.01)


@pytest.mark.parametrize(("alpha", "beta"), [(1.001, 1.001), (1.001, 6.0), (2.5, 1.2), (40.0, 15.0)])
def test_beta_samples_have_the_right_distribution(alpha: float, beta: float) -> None:
    count = 200_000
    dist = Beta(torch.full((count, 1), alpha), torch.full((count, 1), beta))
    ours = dist.sample(noise(count, BETA_NOISE)).flatten().sort().values
    torch.manual_seed(0)
    theirs = td.Beta(alpha, beta).sample((count,)).sort().values
    # Kolmogorov and Smirnov's distance of the two samples: beyond this once in a thousand draws.
    below = torch.searchsorted(theirs, ours) / count
    distance = (below - torch.arange(count) / count).abs().max()
    assert float(distance) < 1.95 * (2 / count) ** 0.5
