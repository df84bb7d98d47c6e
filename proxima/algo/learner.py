"""What every learner is: flat parameters, Adam, the learning rate, compiled epochs, gradient reduction, state.

A subclass says what a minibatch is (`gather`) and what is minimised (`loss`); all else is here. The whole minibatch
step (gather, forward, loss, gradient, clipping, Adam) is one pure function of tensors on one flat parameter vector,
which `epochs.py` runs eagerly, compiles with the loop around it, or captures as a CUDA graph.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor
from torch.func import functional_call, grad_and_value

from proxima.algo.adam import AdamState, adam_step, bias_scales, clip_by_norm, scaled_adam_step
from proxima.algo.epochs import Epochs
from proxima.algo.flat import FlatParameters
from proxima.algo.schedules import scheduled
from proxima.config import Config
from proxima.data.generators import restore_generator
from proxima.errors import NonFiniteError

if TYPE_CHECKING:
    from proxima.nets.policy import Policy

Weights = dict[str, Tensor]
"""Parameters by name, views of one vector."""
_AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_FIRST_FP16_SCALE = 2.0**16


class Learner(ABC):
    """Improves the weights of one policy, minibatch by minibatch."""

    loss_terms: tuple[str, ...]
    """Names of the numbers that `loss` reports; they and the gradient's norm are `step_metrics`."""

    def __init__(
        self,
        policy: "Policy",
        config: Config,
        *,
        device: torch.device,
        seed: int,
        compiled: bool,
        gather_outside: str = "never",
        build_apart: bool = False,
    ):
        """`gather_outside` and `build_apart` are options of the compiled step: see `Epochs`."""
        self.policy, self.config, self.device = policy, config, device
        self.generator = Generator(device).manual_seed(seed)
        self.flat = FlatParameters(policy)
        self._fp16 = config.optimizer.precision == "fp16"
        self.state = AdamState.start(self.flat.vector, loss_scale=_FIRST_FP16_SCALE if self._fp16 else 1.0)
        self.learning_rate = self.flat.vector.new_tensor(config.optimizer.learning_rate)
        self.reduce_gradient: Callable[[Tensor], Tensor] | None = None
        """Applied to the gradient `[P]` of every step before clipping: the mean over the ranks of a cluster, say."""
        self.step_metrics = (*self.loss_terms, "gradient_norm")
        self._epochs = Epochs(
            self._step,
            self._gather_parts,
            take=self._take_parts,
            num_metrics=len(self.step_metrics),
            device=device,
            compiled=compiled,
            gather_outside=gather_outside,
            build_apart=build_apart,
        )

    # What a subclass says ------------------------------------------------------------------------------------------

    @abstractmethod
    def loss(self, weights: Weights, minibatch: Any) -> tuple[Tensor, Tensor]:
        """The loss [] of a minibatch, and its `loss_terms` `[K]`, detached: a pure function of tensors.

        It is compiled. A Python number that it reads is part of the compiled code, which is made anew when the number
        changes; what changes often is a tensor.
        """

    @abstractmethod
    def gather(self, data: Any, index: Tensor) -> Any:
        """The minibatch of `index` `[B]`, as `loss` takes it: a tuple or dictionary of tensors."""

    def take(self, data: Any, index: Tensor) -> Any:
        """The same outside of compiled code, where there may be a quicker way."""
        return self.gather(data, index)

    def complete(self, weights: Weights, minibatch: Any) -> Any:
        """The minibatch with what depends on the weights and takes no gradient, such as targets."""
        return minibatch

    def count(self, minibatch: Any) -> Tensor | int:
        """Samples of a minibatch, by which accumulated gradients are averaged."""
        return len(minibatch.action)

    # One optimizer step --------------------------------------------------------------------------------------------

    def run_epoch(self, data: Any, order: Tensor) -> Tensor:
        """One optimizer step for every row of `order` `[M, B]`; the sum of the steps' metrics."""
        return self._epochs(self.state, self.learning_rate, data, order)

    def apply(self, weights: Weights, *inputs: Any) -> Any:
        """The policy's `forward` with these weights, in the precision of the options."""
        with self.autocast():
            # A shared trunk is one module: tying its weights by name would swap them twice and restore them wrongly.
            return functional_call(self.policy, weights, inputs, tie_weights=False)

    def autocast(self) -> torch.autocast:
        """The context in which networks compute."""
        precision = self.config.optimizer.precision
        return torch.autocast(self.device.type, _AUTOCAST[precision], enabled=precision != "fp32")

    def _gather_parts(self, data: Any, index: Tensor) -> list[Any]:
        """The minibatch, in as many parts as gradients are accumulated over."""
        return [self.gather(data, part) for part in index.tensor_split(self.config.optimizer.gradient_accumulation)]

    def _take_parts(self, data: Any, index: Tensor) -> list[Any]:
        return [self.take(data, part) for part in index.tensor_split(self.config.optimizer.gradient_accumulation)]

    def _step(self, state: AdamState, learning_rate: Tensor, parts: Sequence[Any]) -> tuple[AdamState, Tensor]:
        """One optimizer step along the mean gradient of the parts, and its metrics."""
        options = self.config.optimizer
        counts = [self.count(part) for part in parts]
        total = sum(counts)
        gradient, terms = self._gradient(state, parts[0])
        if len(parts) > 1:
            gradient, terms = gradient * (counts[0] / total), terms * (counts[0] / total)
            for part, count in zip(parts[1:], counts[1:], strict=True):
                part_gradient, part_terms = self._gradient(state, part)
                gradient, terms = gradient + count / total * part_gradient, terms + count / total * part_terms
        if self._fp16:
            gradient = gradient / state.loss_scale
        if self.reduce_gradient is not None:
            gradient = self.reduce_gradient(gradient)
        gradient, norm = clip_by_norm(gradient, options.max_grad_norm)
        step = scaled_adam_step if self._fp16 else adam_step
        state = step(state, gradient, learning_rate, eps=options.adam_eps, weight_decay=options.weight_decay)
        return state, torch.cat((terms, norm[None]))

    def _gradient(self, state: AdamState, minibatch: Any) -> tuple[Tensor, Tensor]:
        """Gradient `[P]` of the (for fp16 scaled) loss, and the loss terms `[K]`."""
        minibatch = self.complete(self.flat.views(state.param), minibatch)

        def loss(param: Tensor) -> tuple[Tensor, Tensor]:
            value, terms = self.loss(self.flat.views(param), minibatch)
            return value * state.loss_scale if self._fp16 else value, terms

        if torch.compiler.is_compiling():  # the form that a compiled graph may hold inside
            gradient, (_, terms) = grad_and_value(loss, has_aux=True)(state.param)
            return gradient, terms
        param = state.param.detach().requires_grad_()
        with torch.enable_grad():
            value, terms = loss(param)
            return torch.autograd.grad(value, param)[0], terms

    # Progress and compilation ----------------------------------------------------------------------------------------

    def set_progress(self, progress: float) -> None:
        """Set what follows a schedule for this share of the run."""
        optimizer = self.config.optimizer
        if optimizer.lr_schedule != "adaptive":
            self.learning_rate.fill_(scheduled(optimizer.lr_schedule, optimizer.learning_rate, progress))

    @property
    def compiled(self) -> bool:
        """Whether the step is, or is to be, compiled."""
        return self._epochs.compiled

    def give_up_compiling(self) -> None:
        """Go on eager."""
        self._epochs.compiled = False

    def check_finite(self, metrics: Mapping[str, float], where: str) -> None:
        """Raise a NonFiniteError where a metric or a weight is infinite or NaN."""
        for name, value in metrics.items():
            # An fp16 gradient may overflow: its step is then left out and the loss scale lowered.
            if not math.isfinite(value) and not (self._fp16 and name == "gradient_norm"):
                raise NonFiniteError(
                    f"the {name} became {value} in {where}: try a lower learning_rate or max_grad_norm, or check the "
                    "env's rewards."
                )

    def check_weights(self) -> None:
        """Raise a NonFiniteError where a weight is infinite or NaN."""
        if not bool(torch.isfinite(self.state.param).all()):
            raise NonFiniteError("the update made a weight infinite or NaN: try a lower learning_rate.")

    # State -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """A copy of all that a resume needs, besides the weights, which are the policy's."""
        return {
            "optimizer": {name: x.clone() for name, x in self._optimizer_tensors().items()},
            "generator": {"state": self.generator.get_state()},
        }

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> bool:
        """Put back what `state_dict` gave. Returns whether the generator could be: one of another device cannot."""
        for name, x in self._optimizer_tensors().items():
            x.copy_(state["optimizer"][name])
        self.state.scales.copy_(bias_scales(self.state.steps))
        return restore_generator(self.generator, state["generator"]["state"], otherwise=int(self.state.steps))

    def follow_changes(self, before: Config) -> None:
        """Let options that a resume changed take the place of what the optimizer remembers of the old ones."""
        old, new = before.optimizer, self.config.optimizer
        if (old.learning_rate, old.lr_schedule) != (new.learning_rate, new.lr_schedule):
            self.learning_rate.fill_(new.learning_rate)
        if old.precision != new.precision:
            self.state.loss_scale.fill_(_FIRST_FP16_SCALE if self._fp16 else 1.0)

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """Not the parameters, which are the policy's, nor what follows from the number of steps."""
        tensors = self.state._asdict() | {"learning_rate": self.learning_rate}
        return {name: x for name, x in tensors.items() if name not in ("param", "scales")}
