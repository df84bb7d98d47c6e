"""The masked last layer: exact zeros for invalid choices, everything else as without a mask."""

import pytest
import torch
from torch import nn

from proxima.algo.distributions import LOWEST
from proxima.nets.masked_linear import masked_linear

SIZES = (3, 4)


def layer() -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(6, sum(SIZES)), torch.randn(50, 6)


def test_valid_choices_keep_their_bits() -> None:
    linear, features = layer()
    plain = masked_linear(linear, features, None, SIZES)
    assert torch.equal(plain, linear(features))
    mask = torch.rand(50, 7) < 0.6
    mask[:, 0] = mask[:, 3] = True
    out = masked_linear(linear, features, mask, SIZES)
    assert torch.equal(out[mask], plain[mask]) and bool((out[~mask] == LOWEST).all())


def test_a_column_that_allows_nothing_is_not_masked() -> None:
    linear, features = layer()
    mask = torch.tensor([[False, False, False, True, False, True, False]]).expand(50, -1)
    out = masked_linear(linear, features, mask, SIZES)
    assert bool((out[:, :3] > LOWEST).all()) and bool((out[:, [4, 6]] == LOWEST).all())


def test_invalid_choices_pass_no_gradient_on() -> None:
    linear, features = layer()
    mask = torch.tensor([[True, False, True, True, True, False, True]]).expand(50, -1)
    out = masked_linear(linear, features, mask, SIZES)
    for logits in (column.log_softmax(-1) for column in out.split(SIZES, -1)):
        (-(logits.exp() * logits).sum() + logits[:, 0].sum()).backward(retain_graph=True)
    assert linear.weight.grad is not None and linear.bias.grad is not None
    assert linear.weight.grad[[1, 5]].abs().max() == 0.0 and linear.bias.grad[[1, 5]].abs().max() == 0.0
    assert bool(linear.weight.grad.isfinite().all()) and linear.weight.grad[0].abs().max() > 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reduced_precision_has_exact_zeros_too(dtype: torch.dtype) -> None:
    linear, features = layer()
    mask = torch.tensor([[True, False, True, True, True, False, True]]).expand(50, -1)
    with torch.autocast("cpu", dtype):
        out = masked_linear(linear, features, mask, SIZES)
    assert out.dtype == torch.float32 and bool((out[~mask] == LOWEST).all()) and bool((out[mask] > LOWEST).all())


@pytest.mark.parametrize("masked", [False, True])
def test_the_last_layer_is_in_full_precision_under_autocast(masked: bool) -> None:
    linear, features = layer()
    mask = torch.ones(50, 7, dtype=torch.bool) if masked else None
    exact = masked_linear(linear, features, mask, SIZES)
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(linear(features).float(), exact)  # autocast does round
        assert torch.equal(masked_linear(linear, features, mask, SIZES), exact)
