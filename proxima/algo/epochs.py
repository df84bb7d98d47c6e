"""Optimizer steps by the dozen: eager, as native code with the loop inside, or as a CUDA graph that is replayed."""

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from proxima.algo.adam import AdamState
from proxima.algo.cuda_graph import GraphedEpoch, StepFunction
from proxima.compiling import report_failure

Tensors = dict[str, Tensor]
Take = Callable[[Tensors, Tensors, Tensor], tuple[Tensors, Tensors]]
"""From all observations and data, and an index, to the rows of it."""
# The native loop makes every state anew, which saves a call a step; above so many parameters, memory costs more.
_LARGEST_IN_A_LOOP = 2**17


class Epochs:
    """Runs a step, which is a pure function of tensors, on minibatch after minibatch, and changes the state in place.

    It is compiled on its first use; where that cannot be done, this is said once, and it goes on eager.
    """

    def __init__(
        self,
        step: StepFunction,
        *,
        num_metrics: int,
        device: torch.device,
        compiled: bool,
        take: Take | None = None,
        always_take: bool = True,
        build_apart: bool = False,
    ):
        """`take` gathers the rows of a minibatch, so that only what is done with them need be compiled.

        That is worth it for images, which compiled code gathers slowly; without `always_take`, for single steps and for
        large networks. A step is given None for the index of rows so taken. `build_apart` compiles the code that calls
        many kernels apart from them, which is quicker.
        """
        self.compiled = compiled
        """Whether it is, or is to be, compiled."""
        self._step, self._num_metrics, self._device = step, num_metrics, device
        self._take, self._always_take, self._build_apart = take, always_take, build_apart
        self._native: dict[str, Callable[..., Any]] = {}
        self._graphs: dict[tuple[torch.Size, ...], GraphedEpoch] = {}
        self._worked: set[torch.Size] = set()

    @torch.no_grad()
    def __call__(self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor) -> Tensor:
        """One step a row of `order` `[M, B]`; returns the sum of the steps' metrics."""
        run = self._try if self.compiled else self._eager
        after, total = run(state, learning_rate, obs, data, order)
        if after is not state:
            torch._foreach_copy_(list(state), list(after))
        return total

    def _try(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor
    ) -> tuple[AdamState, Tensor]:
        if order.shape in self._worked:
            return self._fast(state, learning_rate, obs, data, order)
        try:
            result = self._fast(state, learning_rate, obs, data, order)
        except Exception as error:  # the compiler and the toolchain raise whatever they like
            report_failure("learner", error)
            self.compiled = False
            return self._eager(state, learning_rate, obs, data, order)
        self._worked.add(order.shape)
        return result

    def _fast(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor
    ) -> tuple[AdamState, Tensor]:
        run: Callable[..., tuple[AdamState, Tensor]]
        if self._device.type != "cpu":
            run = self._replay
        elif self._take and (self._always_take or len(order) == 1 or state.param.numel() > _LARGEST_IN_A_LOOP):
            run = self._in_place
        else:
            run = self._compiled(self._loop)
        return run(state, learning_rate, obs, data, order)

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if function.__name__ not in self._native:
            self._native[function.__name__] = self._compile(function)
        return self._native[function.__name__]

    def _compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        options: dict[str, Any] | None = None
        if self._device.type == "cpu":
            options = {"cpp_wrapper": True, "cpp_wrapper_build_separate": self._build_apart}
            # All but tensors is the same in every call of this copy: to look at it takes longer than a small step.
            options["guard_filter_fn"] = torch.compiler.keep_tensor_guards_unsafe
        return torch.compile(_own_copy(function), fullgraph=True, dynamic=False, options=options)

    def _eager(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor
    ) -> tuple[AdamState, Tensor]:
        total = learning_rate.new_zeros(self._num_metrics)
        for index in order:
            state, metrics = self._step(state, learning_rate, obs, data, index)
            total = total + metrics
        return state, total

    def _loop(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor
    ) -> tuple[AdamState, Tensor]:
        """The same, written so that the loop becomes part of the compiled code."""
        steps = order.shape[0]

        def body(i: Tensor, total: Tensor, *fields: Tensor) -> tuple[Tensor, ...]:
            index = order.index_select(0, i.reshape(1)).reshape(-1)
            after, metrics = self._step(AdamState(*fields), learning_rate, obs, data, index)
            return i + 1, total + metrics, *(x.clone() for x in after)

        start = (torch.zeros((), dtype=torch.long), learning_rate.new_zeros(self._num_metrics), *state)
        _, total, *fields = torch.while_loop(lambda i, *_: i < steps, body, start)
        return AdamState(*fields), total

    def _in_place(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor
    ) -> tuple[AdamState, Tensor]:
        """A call a step, on rows that are taken before it: of the same shape, however many steps there are."""
        assert self._take is not None
        advance, total = self._compiled(self._advance), learning_rate.new_zeros(self._num_metrics)
        for index in order:
            advance(state, learning_rate, *self._take(obs, data, index), total)
        return state, total

    def _advance(self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, total: Tensor) -> None:
        """One step. Compiled, the new state is written where the old one was, and nothing is allocated for it."""
        after, metrics = self._step(state, learning_rate, obs, data, None)
        for ours, new in zip(state, after, strict=True):
            ours.copy_(new)
        total.add_(metrics)

    def _replay(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor
    ) -> tuple[AdamState, Tensor]:
        # A native loop would ask the device at every step whether to go on.
        shapes = tuple(x.shape for x in (*obs.values(), *data.values()))
        if shapes not in self._graphs:  # it holds a copy of them, for every size of the minibatches
            self._graphs[shapes] = GraphedEpoch(self._compiled(self._step), num_metrics=self._num_metrics)
        return self._graphs[shapes](state, learning_rate, obs, data, order)


def _own_copy(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same method with code of its own: the compiler keeps what it made by the code, not by the object it is of."""
    assert isinstance(method, MethodType)
    function = method.__func__
    code, defaults = function.__code__.replace(), function.__defaults__
    copy = FunctionType(code, function.__globals__, function.__name__, defaults, function.__closure__)
    return MethodType(copy, method.__self__)
