"""The objective by hand."""

import math
from typing import Any

import pytest
import torch

from proxima.algo.losses import LossTerms, explained_variance, ppo_loss, weighted_mean
from proxima.config.sections import PPOOptions
from proxima.data.batch import Minibatch


def loss(ratio: list[float], advantage: list[float], **changes: Any) -> LossTerms:
    zeros = torch.zeros(len(ratio))
    batch = Minibatch({}, None, None, zeros, zeros, zeros, torch.tensor(advantage), zeros)
    options = PPOOptions(clip_range=0.2, value_loss_coef=0.5, entropy_coef=0.1)
    options.clip_value_loss = changes.pop("clip_value_loss", False)
    options.normalize_advantage = changes.pop("normalize_advantage", "off")
    value, entropy = changes.pop("value", zeros), changes.pop("entropy", zeros)
    return ppo_loss(torch.tensor(ratio).log(), value, entropy, batch._replace(**changes), options)


@pytest.mark.parametrize(
    ("ratio", "advantage", "surrogate"),
    [(1.1, 2.0, 2.2), (1.5, 2.0, 2.4), (0.5, 2.0, 1.0), (1.5, -2.0, -3.0), (0.5, -2.0, -1.6)],
)
def test_the_surrogate_is_clipped_only_where_it_would_gain(ratio: float, advantage: float, surrogate: float) -> None:
    assert float(loss([ratio], [advantage]).policy_loss) == pytest.approx(-surrogate, rel=1e-5)


def test_kl_and_clip_fraction() -> None:
    terms = loss([1.0, 1.5, 0.9], [1.0, 1.0, 1.0])
    expected = sum(r - 1 - math.log(r) for r in (1.0, 1.5, 0.9)) / 3
    assert float(terms.approx_kl) == pytest.approx(expected, rel=1e-4)
    assert float(terms.clip_fraction) == pytest.approx(1 / 3)


def test_value_loss_with_and_without_clipping() -> None:
    changes = {"value": torch.tensor([1.0]), "old_value": torch.tensor([0.0]), "return_": torch.tensor([2.0])}
    assert float(loss([1.0], [0.0], **changes).value_loss) == pytest.approx(0.5 * 1.0)
    clipped = loss([1.0], [0.0], clip_value_loss=True, **changes)
    assert float(clipped.value_loss) == pytest.approx(0.5 * (2.0 - 0.2) ** 2)


def test_the_terms_add_up() -> None:
    changes = {"value": torch.tensor([3.0]), "entropy": torch.tensor([2.0])}
    terms = loss([1.0], [1.0], **changes)
    assert float(terms.loss) == pytest.approx(-1.0 + 0.5 * 4.5 - 0.1 * 2.0)


def test_normalised_advantages_survive_a_minibatch_of_one() -> None:
    assert math.isfinite(float(loss([1.0], [3.0], normalize_advantage="minibatch").loss))
    terms = loss([1.0, 1.0], [3.0, 5.0], normalize_advantage="minibatch")
    assert float(terms.policy_loss) == pytest.approx(0.0, abs=1e-6)


def test_explained_variance() -> None:
    target = torch.tensor([1.0, 2.0, 3.0])
    assert float(explained_variance(target, target)) == 1.0
    assert float(explained_variance(torch.full((3,), 2.0), target)) == 0.0
    assert math.isnan(float(explained_variance(target, torch.ones(3))))


def test_a_mean_of_nothing_is_zero() -> None:
    """Of a minibatch of rows that the env skipped, also where another rank has the rest of it."""
    x = torch.tensor([1.0, 2.0, 3.0])
    assert weighted_mean(x, torch.zeros(3)) == 0 and weighted_mean(x, torch.tensor([0.0, 1.0, 1.0])) == 2.5
