"""Masked distributions and Q-values against numbers computed by hand."""

import math

import pytest
import torch
from torch import Tensor

from proxima.algo.distributions import Categorical, EpsilonGreedy, MultiCategorical, masked, valid_choices
from proxima.algo.losses import ppo_loss
from proxima.config.sections import PPOOptions
from proxima.data.batch import Minibatch


def logs(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def categorical(logits: Tensor, *mask: bool) -> Categorical:
    return Categorical(masked(logits, torch.tensor([mask])).log_softmax(-1))


def entropy(*probabilities: float) -> float:
    return -sum(p * math.log(p) for p in probabilities)


def test_the_probabilities_of_valid_choices_are_renormalised() -> None:
    distribution = categorical(logs(0.1, 0.2, 0.3, 0.4), True, False, True, False)
    assert distribution.logits.exp().tolist()[0] == pytest.approx([0.25, 0.0, 0.75, 0.0])
    assert distribution.logits.exp()[0, 1] == 0.0  # exactly
    assert float(distribution.log_prob(torch.tensor([2]))) == pytest.approx(math.log(0.75))
    assert float(distribution.entropy()) == pytest.approx(entropy(0.25, 0.75))
    assert distribution.mode().tolist() == [2]


def test_columns_are_masked_separately() -> None:
    one = categorical(logs(0.2, 0.3, 0.5), True, True, False)
    two = categorical(logs(0.25, 0.25, 0.25, 0.25), False, True, True, True)
    joint = MultiCategorical([one, two])
    assert float(joint.log_prob(torch.tensor([[1, 3]]))) == pytest.approx(math.log(0.6) + math.log(1 / 3))
    assert float(joint.entropy()) == pytest.approx(entropy(0.4, 0.6) + math.log(3))


def test_a_single_valid_choice_has_no_entropy_and_no_gradient() -> None:
    logits = torch.tensor([[0.3, -1.0, 2.0]], requires_grad=True)
    distribution = Categorical(masked(logits, torch.tensor([[False, True, False]])).log_softmax(-1))
    assert float(distribution.entropy().detach()) == 0.0
    (distribution.entropy() + distribution.log_prob(torch.tensor([1]))).sum().backward()
    assert logits.grad is not None and logits.grad.tolist() == [[0.0, 0.0, 0.0]]


def test_gradients_equal_those_of_the_valid_choices_alone() -> None:
    logits = torch.tensor([[0.3, -1.0, 2.0, 0.7]], requires_grad=True)
    few = torch.tensor([[0.3, 2.0]], requires_grad=True)
    whole = Categorical(masked(logits, torch.tensor([[True, False, True, False]])).log_softmax(-1))
    part = Categorical(few.log_softmax(-1))
    (whole.entropy() + 3 * whole.log_prob(torch.tensor([2]))).sum().backward()
    (part.entropy() + 3 * part.log_prob(torch.tensor([1]))).sum().backward()
    assert logits.grad is not None and few.grad is not None
    assert logits.grad[0, [1, 3]].tolist() == [0.0, 0.0]
    torch.testing.assert_close(logits.grad[0, [0, 2]], few.grad[0])


def test_the_kl_estimate_averages_to_the_kl_of_the_valid_choices() -> None:
    """Weighted by the old probabilities of all valid actions, the estimator is the exact KL divergence."""
    mask = (True, False, True, True)
    old, new = categorical(logs(0.1, 0.2, 0.3, 0.4), *mask), categorical(logs(0.4, 0.4, 0.1, 0.1), *mask)
    p, q = (1 / 8, 3 / 8, 4 / 8), (4 / 6, 1 / 6, 1 / 6)
    exact = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    action, zeros = torch.tensor([0, 2, 3]), torch.zeros(3)
    before, after = (Categorical(d.logits.expand(3, 4)).log_prob(action) for d in (old, new))
    batch = Minibatch({}, None, None, action, before, zeros, zeros, zeros, weight=torch.tensor(p))
    terms = ppo_loss(after, zeros, zeros, batch, PPOOptions())
    assert float(terms.approx_kl) == pytest.approx(exact, rel=1e-5)


def test_samples_are_valid_and_have_the_right_frequencies() -> None:
    distribution = Categorical(
        masked(logs(0.1, 0.2, 0.3, 0.4), torch.tensor([[True, False, True, False]])).log_softmax(-1).expand(20_000, 4)
    )
    noise = torch.randn(20_000, 4, generator=torch.Generator().manual_seed(0))
    counts = distribution.sample(noise).bincount(minlength=4)
    assert counts[1] == counts[3] == 0
    assert float(counts[2]) / 20_000 == pytest.approx(0.75, abs=0.01)


def test_a_row_that_allows_nothing_counts_as_one_without_a_mask() -> None:
    mask = torch.tensor([[False, False, False], [False, True, False]])
    assert valid_choices(mask).tolist() == [[True, True, True], [False, True, False]]


def greedy(epsilon: float, *mask: bool, rows: int = 1) -> EpsilonGreedy:
    valid = torch.tensor([mask]).expand(rows, -1)
    q = torch.tensor([[1.0, 5.0, 3.0, 4.0]]).expand(rows, -1)
    return EpsilonGreedy(masked(q, valid), torch.tensor(epsilon), valid)


def test_epsilon_greedy_explores_valid_choices_only() -> None:
    assert greedy(0.0, True, False, True, False).mode().tolist() == [2]
    rows = 20_000
    noise = torch.randn(rows, 2, generator=torch.Generator().manual_seed(0))
    counts = greedy(0.6, True, False, True, False, rows=rows).sample(noise).bincount(minlength=4)
    assert counts[1] == counts[3] == 0
    assert float(counts[0]) / rows == pytest.approx(0.3, abs=0.01)


def test_epsilon_greedy_probabilities_are_those_of_valid_choices() -> None:
    distribution = greedy(0.6, True, False, True, True)
    probabilities = [float(distribution.log_prob(torch.tensor([a])).exp()) for a in range(4)]
    assert probabilities == pytest.approx([0.2, 0.0, 0.2, 0.6])
    assert float(distribution.entropy()) == pytest.approx(entropy(0.2, 0.2, 0.6))


def test_extreme_noise_picks_a_valid_choice() -> None:
    noise = torch.tensor([[-10.0, -10.0], [-10.0, 10.0], [-10.0, 0.0]])
    assert greedy(1.0, False, True, False, True, rows=3).sample(noise).tolist() == [1, 3, 3]


def test_an_all_true_mask_changes_no_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    q, noise = torch.randn(1000, 4, generator=generator), torch.randn(1000, 2, generator=generator)
    everything = torch.ones(1000, 4, dtype=torch.bool)
    plain = EpsilonGreedy(q, torch.tensor(0.5))
    same = EpsilonGreedy(masked(q, everything), torch.tensor(0.5), everything)
    assert torch.equal(plain.sample(noise), same.sample(noise))
    action = plain.sample(noise)
    assert torch.equal(plain.log_prob(action), same.log_prob(action)) and torch.equal(plain.entropy(), same.entropy())
    assert torch.equal(masked(q, everything), q)
