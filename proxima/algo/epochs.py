"""Optimizer steps by the dozen: eager, as native code with the loop inside, or as a CUDA graph that is replayed."""

from typing import Any

import torch
from torch import Tensor

from proxima.algo.adam import AdamState
from proxima.algo.cuda_graph import GraphedEpoch, StepFunction
from proxima.compiling import report_failure

Tensors = dict[str, Tensor]
# The native loop makes every state anew, which saves a call a step; above so many parameters, memory costs more.
_LARGEST_IN_A_LOOP = 2**17


class Epochs:
    """Runs a step, which is a pure function of tensors, on minibatch after minibatch, and changes the state in place.

    It is compiled on its first use; where that cannot be done, this is said once, and it goes on eager.
    """

    def __init__(self, step: StepFunction, *, num_metrics: int, device: torch.device, compiled: bool):
        self.compiled = compiled
        """Whether it is, or is to be, compiled."""
        self._step, self._num_metrics, self._device = step, num_metrics, device
        self._native: dict[str, Any] = {}
        self._graphs: dict[torch.Size, GraphedEpoch] = {}
        self._worked: set[torch.Size] = set()

    @torch.no_grad()
    def __call__(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor, total: Tensor
    ) -> None:
        """One step for each of the `M` minibatches of `order` `[M, B]`, which counts through the rows `[M * B, ...]`.

        `total` takes the sum of the steps' metrics.
        """
        if not self.compiled:
            return self._one_by_one(self._advance, state, learning_rate, obs, data, order, total)
        if order.shape in self._worked:
            return self._run(state, learning_rate, obs, data, order, total)
        try:
            self._run(state, learning_rate, obs, data, order, total)
        except Exception as error:  # the compiler and the toolchain raise whatever they like
            report_failure("learner", error)
            self.compiled = False
            return self._one_by_one(self._advance, state, learning_rate, obs, data, order, total)
        self._worked.add(order.shape)

    def _run(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor, total: Tensor
    ) -> None:
        loops = state.param.numel() <= _LARGEST_IN_A_LOOP and len(order) > 1
        if self._device.type != "cpu":
            self._replay(state, learning_rate, obs, data, order, total)
        elif loops:
            self._compiled(self._loop)(state, learning_rate, obs, data, order, total)
        else:
            self._one_by_one(self._compiled(self._advance), state, learning_rate, obs, data, order, total)

    def _compiled(self, function: Any) -> Any:
        if function.__name__ not in self._native:
            if not self._native:  # the cache is the function's, so learners of earlier runs would fill it
                torch._dynamo.reset()
            options: dict[str, Any] | None = {"cpp_wrapper": True} if self._device.type == "cpu" else None
            compiled = torch.compile(function, fullgraph=True, dynamic=False, options=options)
            self._native[function.__name__] = compiled
        return self._native[function.__name__]

    def _replay(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor, total: Tensor
    ) -> None:
        # A native loop would ask the device at every step whether to go on.
        if order.shape not in self._graphs:
            self._graphs[order.shape] = GraphedEpoch(self._compiled(self._step), num_metrics=self._num_metrics)
        after, metrics = self._graphs[order.shape](state, learning_rate, obs, data, order)
        _put(state, after)
        total.add_(metrics)

    def _one_by_one(
        self,
        advance: Any,
        state: AdamState,
        learning_rate: Tensor,
        obs: Tensors,
        data: Tensors,
        order: Tensor,
        total: Tensor,
    ) -> None:
        """A call a step, on views of its rows: of the same shape, however many steps there are."""
        count, size = order.shape
        for first in range(0, count * size, size):
            rows = ({name: x[first : first + size] for name, x in tensors.items()} for tensors in (obs, data))
            advance(state, learning_rate, *rows, order[0], total)

    def _advance(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, index: Tensor, total: Tensor
    ) -> None:
        """One step. Compiled, the new state is written where the old one was, and nothing is allocated for it."""
        after, metrics = self._step(state, learning_rate, obs, data, index)
        _put(state, after)
        total.add_(metrics)

    def _loop(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor, total: Tensor
    ) -> None:
        """All steps, written so that the loop becomes part of the compiled code."""
        steps = order.shape[0]

        def body(i: Tensor, total: Tensor, *fields: Tensor) -> tuple[Tensor, ...]:
            index = order.index_select(0, i.reshape(1)).reshape(-1)
            after, metrics = self._step(AdamState(*fields), learning_rate, obs, data, index)
            return i + 1, total + metrics, *(x.clone() for x in after)

        start = (torch.zeros((), dtype=torch.long), torch.zeros_like(total), *state)
        _, metrics, *fields = torch.while_loop(lambda i, *_: i < steps, body, start)
        _put(state, AdamState(*fields))
        total.add_(metrics)


def _put(state: AdamState, after: AdamState) -> None:
    for ours, new in zip(state, after, strict=True):
        ours.copy_(new)
