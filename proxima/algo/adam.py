"""Adam and AdamW on one flat parameter vector: a handful of operations however many layers there are."""

from typing import NamedTuple

import torch
from torch import Tensor

BETA1, BETA2 = 0.9, 0.999


class AdamState(NamedTuple):
    """All that an optimizer step changes, as tensors: a step is a function from one state to the next."""

    param: Tensor  # [P]
    mean: Tensor  # [P], running first moment of the gradient
    square: Tensor  # [P], running second moment
    steps: Tensor  # [], steps taken
    scales: Tensor  # [2], what undoes the bias of the two moments in the next step
    loss_scale: Tensor  # [], 1 but for fp16
    good_steps: Tensor  # [], finite fp16 steps since the scale last changed

    @classmethod
    def start(cls, param: Tensor, *, loss_scale: float = 1.0) -> "AdamState":
        """The state before the first step; `param` is used, not copied."""
        zeros, zero = torch.zeros_like(param), param.new_zeros(())
        return cls(param, zeros, zeros.clone(), zero, bias_scales(zero), zero + loss_scale, zero.clone())


def clip_by_norm(gradient: Tensor, max_norm: float | None) -> tuple[Tensor, Tensor]:
    """The gradient, no longer than `max_norm`, and its norm before."""
    norm = gradient.norm()
    if max_norm is None:
        return gradient, norm
    return gradient * (max_norm / (norm + 1e-6)).clamp(max=1.0), norm


def adam_step(
    state: AdamState, gradient: Tensor, learning_rate: Tensor, *, eps: float, weight_decay: float
) -> AdamState:
    """One step (Kingma and Ba 2015; decoupled decay as in Loshchilov and Hutter 2019)."""
    steps = state.steps + 1.0
    mean = torch.lerp(state.mean, gradient, 1.0 - BETA1)
    square = torch.lerp(state.square, gradient * gradient, 1.0 - BETA2)
    # The scales come with the state: computed here, compiled code would take two powers for every parameter.
    step = mean * state.scales[0] / (square.sqrt() * state.scales[1] + eps)
    if weight_decay:
        step = step + weight_decay * state.param
    param = state.param - learning_rate * step
    return AdamState(param, mean, square, steps, bias_scales(steps), state.loss_scale, state.good_steps)


def scaled_adam_step(
    state: AdamState, gradient: Tensor, learning_rate: Tensor, *, eps: float, weight_decay: float
) -> AdamState:
    """The same for fp16: a gradient that overflowed only halves the loss scale; 2,000 good ones double it.

    Without a branch on the host, so that nothing waits for the device.
    """
    finite = torch.isfinite(gradient).all()
    gradient = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
    after = adam_step(state, gradient, learning_rate, eps=eps, weight_decay=weight_decay)
    param, mean, square, steps, scales, *_ = (
        torch.where(finite, new, old) for new, old in zip(after, state, strict=True)
    )
    good_steps = torch.where(finite, state.good_steps + 1.0, 0.0)
    grow = good_steps >= 2000.0
    scale = torch.where(finite, torch.where(grow, state.loss_scale * 2.0, state.loss_scale), state.loss_scale * 0.5)
    scale, good_steps = scale.clamp(1.0, 2.0**24), torch.where(grow, 0.0, good_steps)
    return AdamState(param, mean, square, steps, scales, scale, good_steps)


def bias_scales(steps: Tensor) -> Tensor:
    """`AdamState.scales` after so many steps."""
    return torch.stack(((1.0 - BETA1 ** (steps + 1.0)).reciprocal(), (1.0 - BETA2 ** (steps + 1.0)).rsqrt()))
