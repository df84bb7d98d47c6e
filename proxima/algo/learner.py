"""Base class of learners: flat parameters, Adam, learning rate, compiled epochs, gradient reduction, state.

A subclass defines the minibatch (`gather`) and the `loss`. The minibatch step (gather, forward, loss, gradient,
clipping, Adam) is one pure function of tensors on one flat parameter vector, which `epochs.py` runs eagerly, compiles
together with its loop, or captures as a CUDA graph.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, grad_and_value

from proxima.algo.adam import AdamState, FlatParameters, adam_step, bias_scales, clip_by_norm, scaled_adam_step
from proxima.algo.epochs import Epochs, Exchange
from proxima.algo.extra_loss import ExtraLoss
from proxima.algo.peers import Peers
from proxima.algo.schedules import scheduled
from proxima.compiling import compiled_note, report_failure, write_note
from proxima.config import Config
from proxima.data.batch import SequenceLayout
from proxima.errors import NonFiniteError, UsageError

Weights = dict[str, Tensor]
"""Parameters by name, as views of one vector."""
_AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_FIRST_FP16_SCALE = 2.0**16
# Compiled recurrent steps are unrolled: to compile more than this takes many minutes.
_LONGEST_UNROLLED = 128
# Optimizer steps. Compilation takes 10 to 20 seconds, or about 7 from PyTorch's cache, and saves about 1 ms per step.
_COMPILATION_PAYS_AFTER, _CACHED_COMPILATION_PAYS_AFTER = 20_000, 8_000


class Learner(ABC):
    """Trains one network on minibatches."""

    loss_terms: tuple[str, ...]
    """Names of the metrics that `loss` returns."""
    extra: ExtraLoss | None = None
    """The user's own term of the loss."""

    def __init__(
        self,
        network: nn.Module,
        config: Config,
        *,
        device: torch.device,
        seed: int,
        num_updates: int,
        peers: Peers | None = None,
        **compilation: Any,
    ):
        """`num_updates`: optimizer steps of the run, which decide whether compilation pays.

        `peers`: the ranks, of which this is one.
        `compilation`: the arguments `gather_outside` and `build_apart` of `Epochs`.
        """
        self.network, self.config, self.device = network, config, device
        self.generator = Generator(device).manual_seed(seed)
        self.flat = FlatParameters(network)
        self._fp16 = config.optimizer.precision == "fp16"
        self.state = AdamState.start(self.flat.vector, loss_scale=_FIRST_FP16_SCALE if self._fp16 else 1.0)
        self.learning_rate = self.flat.vector.new_tensor(config.optimizer.learning_rate)
        self.schedule_ended = False
        """Whether the learning rate was set by hand, which ends a linear or cosine schedule."""
        self.peers = peers or Peers((config.env.num_envs,))
        self.limit_gradient: Callable[[Tensor], Tensor] | None = None
        """Applied to the gradient `[P]` of every step before its norm is clipped."""
        self.step_metrics = (*self.loss_terms, "gradient_norm")
        self.epochs = Epochs(
            self._step,
            self._gather_parts,
            take=self._take_parts,
            num_metrics=len(self.step_metrics),
            device=device,
            compiled=self._compilation_pays(num_updates),
            note=lambda: write_note(self._compiled_note()),
            exchange=None if self.peers.sum is None else Exchange(self._sums, self.peers.sum, self._finish),
            **compilation,
        )

    def _compilation_pays(self, num_updates: int) -> bool:
        """Whether to compile: as configured, or if the run is long enough; less so if the code is in the cache."""
        wish, length = self.config.run.compile, self.config.sequence_length
        if length > _LONGEST_UNROLLED:
            if wish == "on":
                why = f"bptt_length is {length}, and above {_LONGEST_UNROLLED} it would take minutes"
                report_failure("learner", UsageError(why))
            return False
        if wish != "auto":
            return wish == "on"
        if length > 1:  # tracing of unrolled layers takes most of the time, cached or not
            return num_updates >= 2 * _COMPILATION_PAYS_AFTER
        may_be_cached = self.device.type == "cpu" and num_updates >= _CACHED_COMPILATION_PAYS_AFTER
        return num_updates >= _COMPILATION_PAYS_AFTER or (may_be_cached and self._compiled_note().exists())

    def _compiled_note(self) -> Path:
        sections = self.config.to_dict()
        own = ("policy", "algorithm", "ppo", "dqn", "muscle", "distill", "optimizer", "normalize")
        known = {name: sections[name] for name in own}
        return compiled_note(
            type(self).__name__,
            self.device.type,
            self.config.env.num_envs,
            repr(getattr(self.network, "spec", self.network)),
            known,
        )

    # Defined by subclasses -------------------------------------------------------------------------------------------

    @abstractmethod
    def loss(self, weights: Weights, minibatch: Any) -> tuple[Tensor, Tensor]:
        """The loss [] of a minibatch, and its `loss_terms` `[K]`, detached: a pure function of tensors.

        It is compiled: a Python number that it reads becomes a constant, and a change of it recompiles. Use a tensor
        for what changes often.
        """

    @abstractmethod
    def gather(self, data: Any, index: Tensor) -> Any:
        """The minibatch of `index` `[B]`, the argument of `loss`: a tuple or dictionary of tensors."""

    def take(self, data: Any, index: Tensor) -> Any:
        """Like `gather`, outside of compiled code, where a faster way may exist."""
        return self.gather(data, index)

    def complete(self, weights: Weights, minibatch: Any) -> Any:
        """The minibatch with tensors added that depend on the weights without gradient, such as targets."""
        return minibatch

    def count(self, minibatch: Any) -> Tensor | int:
        """Number of samples of a minibatch, its weight in accumulated gradients. Override it without `action`."""
        return len(minibatch.action)

    # One optimizer step ----------------------------------------------------------------------------------------------

    def run_epoch(self, data: Any, order: Tensor) -> Tensor:
        """One optimizer step for every row of `order` `[M, B]`; returns the sum of the steps' metrics."""
        return self.epochs(self.state, self.learning_rate, data, order)

    def apply(self, weights: Weights, *inputs: Any) -> Any:
        """The network's `forward` with these weights, in the configured precision."""
        with self.autocast():
            # A shared trunk is one module: tying its weights by name would swap them twice and restore them wrongly.
            return functional_call(self.network, weights, inputs, tie_weights=False)

    def autocast(self) -> torch.autocast:
        """The autocast context of the configured precision."""
        precision = self.config.optimizer.precision
        return torch.autocast(self.device.type, _AUTOCAST[precision], enabled=precision != "fp32")

    def _gather_parts(self, data: Any, index: Tensor) -> list[Any]:
        """The minibatch in `gradient_accumulation` parts."""
        return [self.gather(data, part) for part in index.tensor_split(self.config.optimizer.gradient_accumulation)]

    def _take_parts(self, data: Any, index: Tensor) -> list[Any]:
        return [self.take(data, part) for part in index.tensor_split(self.config.optimizer.gradient_accumulation)]

    def minibatches(self, layout: SequenceLayout) -> Iterator[Tensor]:
        """This rank's parts of the minibatches of an epoch, `[M, B]` sequences; two stacks if their sizes differ."""
        sizes = [layout._replace(num_envs=count).num_sequences for count in self.peers.num_envs]
        return self.peers.minibatches(sizes, self.config.num_updates, self.generator)

    def _step(self, state: AdamState, learning_rate: Tensor, parts: Sequence[Any]) -> tuple[AdamState, Tensor]:
        """One optimizer step with the mean gradient of the parts, and its metrics."""
        gradient, terms, _ = self._mean_gradient(state, parts)
        return self._apply(state, learning_rate, gradient, terms)

    def _sums(self, state: AdamState, parts: Sequence[Any]) -> Tensor:
        """`[P + K + 1]`: gradient and loss terms, as sums over the samples of the parts, and their number."""
        gradient, terms, count = self._mean_gradient(state, parts)
        count = torch.as_tensor(count, dtype=gradient.dtype, device=gradient.device)
        return torch.cat((gradient * count, terms * count, count[None]))

    def _finish(self, state: AdamState, learning_rate: Tensor, sums: Tensor) -> tuple[AdamState, Tensor]:
        """The optimizer step, given the `_sums` over all ranks."""
        gradient, terms = (sums[:-1] / sums[-1].clamp(min=1.0)).split([state.param.numel(), len(self.loss_terms)])
        return self._apply(state, learning_rate, gradient, terms)

    def _mean_gradient(self, state: AdamState, parts: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor | int]:
        """Gradient `[P]` and loss terms `[K]`, means over the samples of the parts, and the number of samples."""
        counts = [self.count(part) for part in parts]
        total = count = sum(counts)
        if isinstance(total, Tensor):
            total = total.clamp(min=1.0)  # of rows that the env skipped, none is left
        gradient, terms = self._gradient(state, parts[0])
        if len(parts) > 1:
            gradient, terms = gradient * (counts[0] / total), terms * (counts[0] / total)
            for part, own in zip(parts[1:], counts[1:], strict=True):
                part_gradient, part_terms = self._gradient(state, part)
                gradient, terms = gradient + own / total * part_gradient, terms + own / total * part_terms
        return gradient, terms, count

    def _apply(
        self, state: AdamState, learning_rate: Tensor, gradient: Tensor, terms: Tensor
    ) -> tuple[AdamState, Tensor]:
        """The optimizer step with a gradient `[P]`, and its metrics."""
        options = self.config.optimizer
        if self._fp16:
            gradient = gradient / state.loss_scale
        if self.limit_gradient is not None:
            gradient = self.limit_gradient(gradient)
        gradient, norm = clip_by_norm(gradient, options.max_grad_norm)
        step = scaled_adam_step if self._fp16 else adam_step
        state = step(state, gradient, learning_rate, eps=options.adam_eps, weight_decay=options.weight_decay)
        return state, torch.cat((terms, norm[None]))

    def _gradient(self, state: AdamState, minibatch: Any) -> tuple[Tensor, Tensor]:
        """Gradient `[P]` of the loss (scaled with fp16), and the loss terms `[K]`."""
        minibatch = self.complete(self.flat.views(state.param), minibatch)

        def loss(param: Tensor) -> tuple[Tensor, Tensor]:
            value, terms = self.loss(self.flat.views(param), minibatch)
            return value * state.loss_scale if self._fp16 else value, terms

        if torch.compiler.is_compiling():  # the form that can be part of a compiled graph
            gradient, (_, terms) = grad_and_value(loss, has_aux=True)(state.param)
            return gradient, terms
        param = state.param.detach().requires_grad_()
        with torch.enable_grad():
            value, terms = loss(param)
            return torch.autograd.grad(value, param)[0], terms

    # Progress and checks ---------------------------------------------------------------------------------------------

    def set_progress(self, progress: float) -> None:
        """Set the learning rate for this fraction of the run."""
        optimizer = self.config.optimizer
        if self.extra is not None:
            self.extra.progress.fill_(progress)
        if optimizer.lr_schedule != "adaptive" and not self.schedule_ended:
            self.learning_rate.fill_(scheduled(optimizer.lr_schedule, optimizer.learning_rate, progress))

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use this learning rate from now on; an adaptive schedule goes on from it, any other ends."""
        self.learning_rate.fill_(learning_rate)
        self.schedule_ended = True

    def to_host(self, x: Tensor) -> Any:
        """The numbers of a tensor. With several ranks, Python handles signals while it waits: one may never answer."""
        if self.peers.sum is not None and x.is_cuda:
            done = torch.cuda.Event()
            done.record()
            while not done.query():
                time.sleep(1e-4)
        return x.tolist()

    def weights_are_finite(self) -> Tensor:
        """A bool [] on the device."""
        return torch.isfinite(self.state.param).all()

    def check_finite(self, updates: Mapping[str, Mapping[str, float]], *, weights: bool | None = None) -> None:
        """Raise a NonFiniteError if a weight, or a metric of one of the `updates` (by name), is infinite or NaN.

        `weights`: `weights_are_finite`, if it was copied to the host with other numbers.
        """
        for where, metrics in updates.items():
            for name, value in metrics.items():
                # An fp16 gradient may overflow: its step is then skipped and the loss scale lowered.
                if not math.isfinite(value) and not (self._fp16 and name == "gradient_norm"):
                    raise NonFiniteError(
                        f"the {name} became {value} in {where}: try a lower learning_rate or max_grad_norm, or check "
                        "the env's rewards."
                    )
        if not (bool(self.weights_are_finite()) if weights is None else weights):
            raise NonFiniteError("the update made a weight infinite or NaN: try a lower learning_rate.")

    # State -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """A copy of all that a resume needs, except the weights, which are the network's."""
        return {
            "optimizer": {name: x.clone() for name, x in self._optimizer_tensors().items()},
            "generator": {"state": self.generator.get_state()},
            **({"schedule": {"ended": torch.tensor(True)}} if self.schedule_ended else {}),
        }

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> bool:
        """Load what `state_dict` returned; False if the generator's state is of another device and does not fit."""
        for name, x in self._optimizer_tensors().items():
            x.copy_(state["optimizer"][name])
        self.state.scales.copy_(bias_scales(self.state.steps))
        self.schedule_ended = "schedule" in state
        return restore_generator(self.generator, state["generator"]["state"], otherwise=int(self.state.steps))

    def weights_changed(self, other: Mapping[str, Any]) -> list[str]:
        """Called when a run starts with weights of another one, whose learner's state is `other` (empty if unknown).

        Returns what of it, besides the optimizer, starts fresh.
        """
        return []

    def follow_changes(self, before: Config) -> None:
        """Apply options that a resume changed, where the loaded state is from the options `before`."""
        old, new = before.optimizer, self.config.optimizer
        if (old.learning_rate, old.lr_schedule) != (new.learning_rate, new.lr_schedule):
            self.learning_rate.fill_(new.learning_rate)
            self.schedule_ended = False
        if old.precision != new.precision:
            self.state.loss_scale.fill_(_FIRST_FP16_SCALE if self._fp16 else 1.0)

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """Without the parameters, which are the network's, and the scales, which follow from the number of steps."""
        tensors = self.state._asdict() | {"learning_rate": self.learning_rate}
        return {name: x for name, x in tensors.items() if name not in ("param", "scales")}


def restore_generator(generator: Generator, state: Tensor, *, otherwise: int) -> bool:
    """Set a generator's state; if it is of another device and does not fit, seed the generator and return False."""
    fits = state.numel() == generator.get_state().numel()
    if fits:
        generator.set_state(state.cpu())
    else:
        generator.manual_seed(otherwise)
    return fits
