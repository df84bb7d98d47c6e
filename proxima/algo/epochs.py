"""Consecutive optimizer steps: eager, as one compiled loop, or as a replayed CUDA graph."""

from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from proxima.algo.adam import AdamState
from proxima.compiling import report_failure
from proxima.errors import ProximaError

Gather = Callable[[Any, Tensor], list[Any]]
"""(all data, index `[B]` of a minibatch) -> its parts, one per accumulated gradient."""
Step = Callable[[AdamState, Tensor, Sequence[Any]], tuple[AdamState, Tensor]]
"""(state, learning rate, parts of a minibatch) -> (next state, metrics of the step)."""


class Exchange(NamedTuple):
    """A step in two halves, with an exchange between processes in the middle, which cannot be compiled."""

    sums: Callable[[AdamState, Sequence[Any]], Tensor]
    """(state, parts of a minibatch) -> a vector that is summed over all processes."""
    exchange: Callable[[Tensor], Tensor]
    """Sums a vector over all processes, in place."""
    finish: Callable[[AdamState, Tensor, Tensor], tuple[AdamState, Tensor]]
    """(state, learning rate, the summed vector) -> (next state, metrics of the step)."""


# The compiled loop saves a call per step but allocates a new state each time: too slow above this many parameters.
_LARGEST_IN_A_LOOP = 2**17
# Guards that a compiled step checks in every call: its tensors, and the Python values that are constants in its code.
_KEPT_GUARDS = {"TENSOR_MATCH", "CONSTANT_MATCH", "EQUALS_MATCH"}


class Epochs:
    """Runs a step, a pure function of tensors, on one minibatch after another, and updates the state in place.

    It is compiled on first use; if that fails, a warning is logged once and it continues eagerly.
    """

    def __init__(
        self,
        step: Step,
        gather: Gather,
        *,
        take: Gather,
        num_metrics: int,
        device: torch.device,
        compiled: bool,
        note: Callable[[], None] = lambda: None,
        exchange: Exchange | None = None,
        gather_outside: str = "never",
        build_apart: bool = False,
    ):
        """`note` is called once after the first compilation. With `exchange`, its halves are run in place of `step`.

        `gather_outside` and `build_apart` are about compilation on a CPU.

        With `gather_outside` "always", minibatches are built by `take`, outside of compiled code, which is slow at
        gathering images; with "if few", only for single steps and for large networks. `build_apart` compiles kernels
        and the code that calls them separately, which is faster with many kernels.
        """
        self.compiled = compiled
        """Whether it is, or will be, compiled; may be set to False."""
        self._step, self._gather, self._take = step, gather, take
        self._num_metrics, self._device, self._note = num_metrics, device, note
        self._gather_outside, self._build_apart = gather_outside, build_apart
        self._exchange = exchange
        self._native: dict[str, Callable[..., Any]] = {}
        self._graphs: dict[tuple[torch.Size, ...], GraphedEpoch] = {}
        self._worked: set[torch.Size] = set()

    @torch.no_grad()
    def __call__(self, state: AdamState, learning_rate: Tensor, data: Any, order: Tensor) -> Tensor:
        """One step for every row of `order` `[M, B]`; returns the sum of the steps' metrics."""
        run = self._try if self.compiled else self._eager
        after, total = run(state, learning_rate, data, order)
        if after is not state:
            torch._foreach_copy_(list(state), list(after))
        return total

    def _try(self, state: AdamState, learning_rate: Tensor, data: Any, order: Tensor) -> tuple[AdamState, Tensor]:
        if order.shape in self._worked:
            return self._fast(state, learning_rate, data, order)
        try:
            result = self._fast(state, learning_rate, data, order)
        except ProximaError:  # another rank is lost
            raise
        except Exception as error:  # the compiler and the toolchain raise all kinds of exceptions
            report_failure("learner", error)
            self.compiled = False
            return self._eager(state, learning_rate, data, order)
        if not self._worked:
            self._note()
        self._worked.add(order.shape)
        return result

    def _fast(self, state: AdamState, learning_rate: Tensor, data: Any, order: Tensor) -> tuple[AdamState, Tensor]:
        is_few = len(order) == 1 or state.param.numel() > _LARGEST_IN_A_LOOP
        if self._device.type != "cpu":
            return self._replay(state, learning_rate, data, order)
        if self._exchange is not None:
            return self._in_halves(state, learning_rate, data, order)
        if self._gather_outside == "always" or (self._gather_outside == "if few" and is_few):
            return self._in_place(state, learning_rate, data, order)
        return self._compiled(self._loop)(state, learning_rate, data, order)

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if function.__name__ not in self._native:
            self._native[function.__name__] = self._compile(function)
        return self._native[function.__name__]

    def _compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        options: dict[str, Any] | None = None
        if self._device.type == "cpu":
            options = {"cpp_wrapper": True, "cpp_wrapper_build_separate": self._build_apart}
            # Modules and options are the same objects in every call: to check them all takes longer than a small step.
            options["guard_filter_fn"] = _keep_values
        return torch.compile(_own_copy(function), fullgraph=True, dynamic=False, options=options)

    def _eager(self, state: AdamState, learning_rate: Tensor, data: Any, order: Tensor) -> tuple[AdamState, Tensor]:
        total, halves = learning_rate.new_zeros(self._num_metrics), self._exchange
        for index in order:
            parts = self._take(data, index)
            if halves is None:
                state, metrics = self._step(state, learning_rate, parts)
            else:
                sums = halves.exchange(halves.sums(state, parts))
                state, metrics = halves.finish(state, learning_rate, sums)
            total = total + metrics
        return state, total

    def _in_halves(self, state: AdamState, learning_rate: Tensor, data: Any, order: Tensor) -> tuple[AdamState, Tensor]:
        """With both halves of the step compiled."""
        assert self._exchange is not None
        outside, total = self._gather_outside == "always", learning_rate.new_zeros(self._num_metrics)
        sums, finish = self._compiled(self._sums_of_parts if outside else self._sums), self._compiled(self._finish)
        if order.shape not in self._worked:  # if compilation fails, it must be before the first exchange
            trial, index = AdamState(*(x.clone() for x in state)), order[0]
            vector = sums(trial, self._take(data, index)) if outside else sums(trial, data, index)
            finish(trial, learning_rate, vector, total.clone())
        for index in order:
            vector = sums(state, self._take(data, index)) if outside else sums(state, data, index)
            finish(state, learning_rate, self._exchange.exchange(vector), total)
        return state, total

    def _sums(self, state: AdamState, data: Any, index: Tensor) -> Tensor:
        return self._sums_of_parts(state, self._gather(data, index))

    def _sums_of_parts(self, state: AdamState, parts: Sequence[Any]) -> Tensor:
        assert self._exchange is not None
        return self._exchange.sums(state, parts)

    def _finish(self, state: AdamState, learning_rate: Tensor, sums: Tensor, total: Tensor) -> None:
        """The second half of a step, in place."""
        assert self._exchange is not None
        after, metrics = self._exchange.finish(state, learning_rate, sums)
        for ours, new in zip(state, after, strict=True):
            ours.copy_(new)
        total.add_(metrics)

    def _loop(self, state: AdamState, learning_rate: Tensor, data: Any, order: Tensor) -> tuple[AdamState, Tensor]:
        """Like `_eager`, with the loop as part of the compiled code."""
        steps = order.shape[0]

        def body(i: Tensor, total: Tensor, *fields: Tensor) -> tuple[Tensor, ...]:
            index = order.index_select(0, i.reshape(1)).reshape(-1)
            after, metrics = self._step(AdamState(*fields), learning_rate, self._gather(data, index))
            return i + 1, total + metrics, *(x.clone() for x in after)

        start = (torch.zeros((), dtype=torch.long), learning_rate.new_zeros(self._num_metrics), *state)
        _, total, *fields = torch.while_loop(lambda i, *_: i < steps, body, start)
        return AdamState(*fields), total

    def _in_place(self, state: AdamState, learning_rate: Tensor, data: Any, order: Tensor) -> tuple[AdamState, Tensor]:
        total = learning_rate.new_zeros(self._num_metrics)
        update = self._compiled(self._update)
        for index in order:
            update(state, learning_rate, self._take(data, index), total)
        return state, total

    def _update(self, state: AdamState, learning_rate: Tensor, parts: Sequence[Any], total: Tensor) -> None:
        """One step in place: compiled, no new state is allocated."""
        after, metrics = self._step(state, learning_rate, parts)
        for ours, new in zip(state, after, strict=True):
            ours.copy_(new)
        total.add_(metrics)

    def _on_index(self, state: AdamState, learning_rate: Tensor, data: Any, index: Tensor) -> tuple[AdamState, Tensor]:
        return self._step(state, learning_rate, self._gather(data, index))

    def _replay(self, state: AdamState, learning_rate: Tensor, data: Any, order: Tensor) -> tuple[AdamState, Tensor]:
        # A CUDA graph, because a compiled loop would synchronise with the device in every step.
        shapes = tuple(x.shape for x in tree_leaves(data) if isinstance(x, Tensor))
        if shapes not in self._graphs:  # one copy of the data, for all sizes of minibatches
            if self._exchange is None:
                stages: list[Callable[..., Any]] = [self._compiled(self._on_index)]
            else:
                stages = [self._compiled(self._sums), self._compiled(self._finish)]
            exchange = None if self._exchange is None else self._exchange.exchange
            self._graphs[shapes] = GraphedEpoch(stages, num_metrics=self._num_metrics, exchange=exchange)
        return self._graphs[shapes](state, learning_rate, data, order)


class GraphedEpoch:
    """A step captured as a CUDA graph: one launch per minibatch, without host synchronisation.

    A graph reads from fixed addresses: the inputs are copied into its own tensors once per epoch. With an exchange
    between processes, the two halves of the step are a graph each.
    """

    def __init__(
        self,
        stages: Sequence[Callable[..., Any]],
        *,
        num_metrics: int,
        exchange: Callable[[Tensor], Tensor] | None = None,
    ):
        """One stage: `step(state, learning_rate, data, index)` returns the next state and the metrics of the step.

        With `exchange`: `sums(state, data, index)`, and `finish(state, learning_rate, sums, total)` in place.
        """
        self._stages, self._exchange, self._num_metrics = stages, exchange, num_metrics
        self._inputs: list[Any] = []
        self._graphs: dict[torch.Size, tuple[list[torch.cuda.CUDAGraph], Tensor]] = {}
        self._sums: Tensor | None = None
        """What is exchanged: one tensor for minibatches of all sizes."""

    @torch.no_grad()
    def __call__(self, state: AdamState, learning_rate: Tensor, data: Any, order: Tensor) -> tuple[AdamState, Tensor]:
        """One step for every row of `order` `[M, B]`; returns the last state and the sum of the steps' metrics."""
        inputs, form = tree_flatten((state, learning_rate, data))
        if not self._inputs:
            self._inputs = [x.clone() if isinstance(x, Tensor) else x for x in inputs]
            self._total = learning_rate.new_zeros(self._num_metrics)
            self._row = torch.zeros(1, dtype=torch.long, device=learning_rate.device)
        if order.shape not in self._graphs:
            self._graphs[order.shape] = self._capture(form, order.clone())
        for ours, x in zip(self._inputs, inputs, strict=True):
            if isinstance(x, Tensor):
                ours.copy_(x)
        graphs, ours = self._graphs[order.shape]
        ours.copy_(order)
        self._total.zero_()
        self._row.zero_()
        for _ in range(len(order)):
            graphs[0].replay()
            if self._exchange is not None and self._sums is not None:
                self._exchange(self._sums)
                graphs[1].replay()
        return AdamState(*(x.clone() for x in self._inputs[: len(state)])), self._total.clone()

    def _capture(self, form: TreeSpec, order: Tensor) -> tuple[list[torch.cuda.CUDAGraph], Tensor]:
        halves = [self._one] if self._exchange is None else [self._first_half, self._second_half]
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(3):  # warm-up: compiles, and lets the libraries allocate their workspaces
                self._row.zero_()
                for half in halves:
                    half(form, order)
        torch.cuda.current_stream().wait_stream(side_stream)
        graphs = []
        for half in halves:
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                half(form, order)
        return graphs, order

    def _one(self, form: TreeSpec, order: Tensor) -> None:
        state, learning_rate, data = tree_unflatten(self._inputs, form)
        index = order.index_select(0, self._row).reshape(-1)
        after, metrics = self._stages[0](state, learning_rate, data, index)
        for field, new in zip(state, after, strict=True):
            field.copy_(new)
        self._total.add_(metrics)
        self._row.add_(1)

    def _first_half(self, form: TreeSpec, order: Tensor) -> None:
        state, _, data = tree_unflatten(self._inputs, form)
        index = order.index_select(0, self._row).reshape(-1)
        sums = self._stages[0](state, data, index)
        if self._sums is None:  # in the warm-up
            self._sums = torch.zeros_like(sums)
        self._sums.copy_(sums)
        self._row.add_(1)

    def _second_half(self, form: TreeSpec, order: Tensor) -> None:
        state, learning_rate, _ = tree_unflatten(self._inputs, form)
        self._stages[1](state, learning_rate, self._sums, self._total)


def _keep_values(guards: Sequence[Any]) -> list[bool]:
    return [guard.guard_type in _KEPT_GUARDS for guard in guards]


def _own_copy(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method with its own code object: the compiler caches by code object, and instances must not share that."""
    assert isinstance(method, MethodType)
    function = method.__func__
    code, defaults = function.__code__.replace(), function.__defaults__
    copy = FunctionType(code, function.__globals__, function.__name__, defaults, function.__closure__)
    return MethodType(copy, method.__self__)
