"""Adam and AdamW on one flat parameter vector: a few operations, independent of the number of layers."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

BETA1, BETA2 = 0.9, 0.999


class FlatParameters:
    """Moves the trained parameters of a module into one vector, of which they become views."""

    def __init__(self, module: nn.Module):
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._shapes = {name: p.shape for name, p in trained.items()}
        self.vector = torch.cat([p.detach().flatten() for p in trained.values()])
        for p, view in zip(trained.values(), self.views(self.vector).values(), strict=True):
            p.data = view

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The parameters by name, as views of any vector of this size."""
        parts = vector.split([shape.numel() for shape in self._shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}


class AdamState(NamedTuple):
    """Everything that an optimizer step changes, as tensors; a step is a pure function of it."""

    param: Tensor  # [P]
    mean: Tensor  # [P], running first moment of the gradient
    square: Tensor  # [P], running second moment
    steps: Tensor  # [], steps taken
    scales: Tensor  # [2], bias corrections of the two moments for the next step
    loss_scale: Tensor  # [], 1 except with fp16
    good_steps: Tensor  # [], finite fp16 steps since the scale last changed

    @classmethod
    def start(cls, param: Tensor, *, loss_scale: float = 1.0) -> "AdamState":
        """The state before the first step; `param` is used, not copied."""
        zeros, zero = torch.zeros_like(param), param.new_zeros(())
        return cls(param, zeros, zeros.clone(), zero, bias_scales(zero), zero + loss_scale, zero.clone())


def clip_by_norm(gradient: Tensor, max_norm: float | None) -> tuple[Tensor, Tensor]:
    """The gradient clipped to norm `max_norm`, and its norm before clipping."""
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
    # The scales are part of the state: computed here, compiled code would take two powers per parameter.
    step = mean * state.scales[0] / (square.sqrt() * state.scales[1] + eps)
    if weight_decay:
        step = step + weight_decay * state.param
    param = state.param - learning_rate * step
    return AdamState(param, mean, square, steps, bias_scales(steps), state.loss_scale, state.good_steps)


def scaled_adam_step(
    state: AdamState, gradient: Tensor, learning_rate: Tensor, *, eps: float, weight_decay: float
) -> AdamState:
    """`adam_step` with a dynamic loss scale for fp16, without a branch on the host.

    If the gradient overflowed, the step is skipped and the scale halved; 2,000 finite steps double it.
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
    """`AdamState.scales` after `steps` steps."""
    return torch.stack(((1.0 - BETA1 ** (steps + 1.0)).reciprocal(), (1.0 - BETA2 ** (steps + 1.0)).rsqrt()))
