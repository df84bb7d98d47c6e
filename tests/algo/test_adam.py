"""The flat optimizer against PyTorch's own, and the loss scaling of fp16."""

import pytest
import torch

from proxima.algo.adam import AdamState, adam_step, clip_by_norm, scaled_adam_step

RATE = torch.tensor(0.1)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_equals_torch_adam(weight_decay: float) -> None:
    torch.manual_seed(0)
    start = torch.randn(50)
    parameter = torch.nn.Parameter(start.clone())
    theirs = torch.optim.AdamW([parameter], lr=1e-2, eps=1e-5, weight_decay=weight_decay)
    ours = AdamState.start(start.clone())
    for _ in range(30):
        gradient = torch.randn(50)
        parameter.grad = gradient.clone()
        theirs.step()
        ours = adam_step(ours, gradient, torch.tensor(1e-2), eps=1e-5, weight_decay=weight_decay)
    torch.testing.assert_close(ours.param, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_clipping_equals_torch() -> None:
    gradient = torch.randn(20) * 3
    parameter = torch.nn.Parameter(torch.zeros(20))
    parameter.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_([parameter], 0.5)
    clipped, ours = clip_by_norm(gradient, 0.5)
    torch.testing.assert_close(clipped, parameter.grad)
    torch.testing.assert_close(ours, norm)
    assert torch.equal(clip_by_norm(gradient, None)[0], gradient)
    small = gradient * 1e-3
    assert torch.equal(clip_by_norm(small, 0.5)[0], small)


def test_an_overflowed_gradient_changes_nothing_but_the_scale() -> None:
    state = AdamState.start(torch.ones(3), loss_scale=1024.0)
    state = scaled_adam_step(state, torch.tensor([1.0, torch.inf, 0.0]), RATE, eps=1e-5, weight_decay=0.0)
    assert state.param.tolist() == [1.0, 1.0, 1.0] and float(state.steps) == 0.0
    assert float(state.loss_scale) == 512.0
    state = scaled_adam_step(state, torch.ones(3), RATE, eps=1e-5, weight_decay=0.0)
    plain = adam_step(AdamState.start(torch.ones(3)), torch.ones(3), RATE, eps=1e-5, weight_decay=0.0)
    assert torch.equal(state.param, plain.param) and float(state.good_steps) == 1.0


def test_the_scale_doubles_after_two_thousand_good_steps() -> None:
    state = AdamState.start(torch.ones(1), loss_scale=8.0)._replace(good_steps=torch.tensor(1999.0))
    state = scaled_adam_step(state, torch.ones(1), RATE, eps=1e-5, weight_decay=0.0)
    assert float(state.loss_scale) == 16.0 and float(state.good_steps) == 0.0
