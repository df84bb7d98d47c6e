"""What the minibatch steps of all learners share: precision, gradient, clipping and Adam, and what is saved of them."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.func import grad_and_value

from proxima.algo.adam import AdamState, adam_step, bias_scales, clip_by_norm, scaled_adam_step
from proxima.config.sections import OptimizerOptions
from proxima.errors import NonFiniteError

_AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def first_loss_scale(precision: str) -> float:
    """What a loss is multiplied with before the first step."""
    return 2.0**16 if precision == "fp16" else 1.0


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context in which networks compute."""
    return torch.autocast(device.type, _AUTOCAST[precision], enabled=precision != "fp32")


def gradient_of(loss: Callable[[Tensor], tuple[Tensor, Tensor]], param: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient `[P]` of the first that `loss` returns, and the second."""
    if torch.compiler.is_compiling():  # the form that a compiled graph may hold inside
        gradient, (_, terms) = grad_and_value(loss, has_aux=True)(param)
        return gradient, terms
    param = param.detach().requires_grad_()
    with torch.enable_grad():
        value, terms = loss(param)
        return torch.autograd.grad(value, param)[0], terms


def optimizer_step(
    state: AdamState, gradient: Tensor, learning_rate: Tensor, options: OptimizerOptions
) -> tuple[AdamState, Tensor]:
    """One step along the gradient of the loss, which for fp16 is scaled; and the gradient's norm before clipping."""
    fp16 = options.precision == "fp16"
    if fp16:
        gradient = gradient / state.loss_scale
    clipped, norm = clip_by_norm(gradient, options.max_grad_norm)
    apply = scaled_adam_step if fp16 else adam_step
    return apply(state, clipped, learning_rate, eps=options.adam_eps, weight_decay=options.weight_decay), norm


def optimizer_state(state: AdamState, learning_rate: Tensor) -> dict[str, Tensor]:
    """A copy of what a checkpoint keeps."""
    return {name: x.clone() for name, x in _kept(state, learning_rate).items()}


def load_optimizer_state(state: AdamState, learning_rate: Tensor, saved: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_state` gave."""
    for name, x in _kept(state, learning_rate).items():
        x.copy_(saved[name])
    state.scales.copy_(bias_scales(state.steps))


def _kept(state: AdamState, learning_rate: Tensor) -> dict[str, Tensor]:
    """Not the policy's parameters, nor what follows from the steps."""
    tensors = state._asdict() | {"learning_rate": learning_rate}
    return {name: x for name, x in tensors.items() if name not in ("param", "scales")}


def check_metrics(metrics: Mapping[str, float], where: str) -> None:
    """Name the first that is infinite or NaN."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NonFiniteError(
                f"the {name} became {value} in {where}: try a lower learning_rate or max_grad_norm, or check the env's "
                "rewards."
            )


def check_weights(param: Tensor) -> None:
    """Raise if one is infinite or NaN."""
    if not bool(torch.isfinite(param).all()):
        raise NonFiniteError("the update made a weight infinite or NaN: try a lower learning_rate.")
