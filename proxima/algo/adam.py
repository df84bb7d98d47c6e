"""Adam and AdamW on one flat parameter vector: a handful of operations however many layers there are."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

BETA1, BETA2 = 0.9, 0.999


@dataclass(slots=True)
class AdamState:
    """All that an optimizer step reads and writes, as tensors, so that the step compiles and captures whole."""

    param: Tensor  # [P]
    mean: Tensor  # [P], running first moment of the gradient
    square: Tensor  # [P], running second moment
    count: Tensor  # [], steps taken
    learning_rate: Tensor  # []
    loss_scale: Tensor  # [], 1 but for fp16
    good_steps: Tensor  # [], finite fp16 steps since the scale last changed

    @classmethod
    def start(cls, param: Tensor, *, learning_rate: float, loss_scale: float = 1.0) -> "AdamState":
        """The state before the first step; `param` is used, not copied."""

        def scalar(value: float) -> Tensor:
            return torch.tensor(value, dtype=torch.float32, device=param.device)

        return cls(
            param,
            torch.zeros_like(param, requires_grad=False),
            torch.zeros_like(param, requires_grad=False),
            scalar(0.0),
            scalar(learning_rate),
            scalar(loss_scale),
            scalar(0.0),
        )

    def tensors(self) -> dict[str, Tensor]:
        """By name, for a checkpoint; the parameters belong to the policy and are left out."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "param"}


def clip_by_norm(gradient: Tensor, max_norm: float | None) -> tuple[Tensor, Tensor]:
    """The gradient, no longer than `max_norm`, and its norm before."""
    norm = gradient.norm()
    if max_norm is None:
        return gradient, norm
    return gradient * (max_norm / (norm + 1e-6)).clamp(max=1.0), norm


def adam_step(state: AdamState, gradient: Tensor, *, eps: float, weight_decay: float) -> None:
    """One step in place (Kingma and Ba 2015; decoupled decay as in Loshchilov and Hutter 2019)."""
    state.count.add_(1.0)
    state.mean.lerp_(gradient, 1.0 - BETA1)
    state.square.mul_(BETA2).addcmul_(gradient, gradient, value=1.0 - BETA2)
    correction1, correction2 = 1.0 - BETA1**state.count, 1.0 - BETA2**state.count
    step = (state.mean / correction1) / ((state.square / correction2).sqrt() + eps)
    if weight_decay:
        step = step + weight_decay * state.param
    state.param.sub_(state.learning_rate * step)


def scaled_adam_step(state: AdamState, gradient: Tensor, *, eps: float, weight_decay: float) -> None:
    """The same for fp16: a gradient that overflowed only halves the loss scale; 2,000 good ones double it.

    Without a branch on the host, so that nothing waits for the device.
    """
    finite = torch.isfinite(gradient).all()
    before = [x.clone() for x in (state.param, state.mean, state.square, state.count)]
    adam_step(state, torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0), eps=eps, weight_decay=weight_decay)
    for now, old in zip((state.param, state.mean, state.square, state.count), before, strict=True):
        now.copy_(torch.where(finite, now, old))
    state.good_steps.copy_(torch.where(finite, state.good_steps + 1.0, 0.0))
    grow = state.good_steps >= 2000.0
    scale = torch.where(finite, torch.where(grow, state.loss_scale * 2.0, state.loss_scale), state.loss_scale * 0.5)
    state.loss_scale.copy_(scale.clamp(1.0, 2.0**24))
    state.good_steps.mul_(~grow)
