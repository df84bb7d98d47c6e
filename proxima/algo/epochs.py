"""Many optimizer steps in one call: eager, as native code with the loop inside, or as a CUDA graph that is replayed."""

from typing import Any

import torch
from torch import Tensor

from proxima.algo.adam import AdamState
from proxima.algo.cuda_graph import GraphedEpoch, StepFunction
from proxima.compiling import report_failure

Tensors = dict[str, Tensor]


class Epochs:
    """Runs a step, which is a pure function of tensors, once a row of an order; compiles it on its first use."""

    def __init__(self, step: StepFunction, *, num_metrics: int, device: torch.device, compiled: bool):
        self.compiled = compiled
        """Whether it is, or is to be, compiled."""
        self._step, self._num_metrics, self._device = step, num_metrics, device
        self._native: Any = None
        self._graphs: dict[torch.Size, GraphedEpoch] = {}
        self._worked: set[torch.Size] = set()

    def __call__(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor
    ) -> tuple[AdamState, Tensor]:
        """One step a row of `order` `[M, B]`; returns the last state and the sum of the steps' metrics.

        What cannot be compiled is said once, and goes on without.
        """
        if not self.compiled:
            return self._eager(state, learning_rate, obs, data, order)
        if order.shape in self._worked:
            return self._run(state, learning_rate, obs, data, order)
        try:
            result = self._run(state, learning_rate, obs, data, order)
        except Exception as error:  # the compiler and the toolchain raise whatever they like
            report_failure("learner", error)
            self.compiled = False
            return self._eager(state, learning_rate, obs, data, order)
        self._worked.add(order.shape)
        return result

    def _run(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor
    ) -> tuple[AdamState, Tensor]:
        if self._native is None:
            # The cache is the function's, so learners of earlier runs in this process would fill it.
            torch._dynamo.reset()
            on_cpu = self._device.type == "cpu"
            function: Any = self._loop if on_cpu else self._step
            options = {"cpp_wrapper": True} if on_cpu else None
            self._native = torch.compile(function, fullgraph=True, dynamic=False, options=options)
        if self._device.type == "cpu":
            return self._native(state, learning_rate, obs, data, order)
        # A native loop would ask the device at every step whether to go on.
        if order.shape not in self._graphs:
            self._graphs[order.shape] = GraphedEpoch(self._native, num_metrics=self._num_metrics)
        return self._graphs[order.shape](state, learning_rate, obs, data, order)

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
        if steps == 1:
            return self._step(state, learning_rate, obs, data, order[0])

        def body(i: Tensor, total: Tensor, *fields: Tensor) -> tuple[Tensor, ...]:
            index = order.index_select(0, i.reshape(1)).reshape(-1)
            after, metrics = self._step(AdamState(*fields), learning_rate, obs, data, index)
            return i + 1, total + metrics, *(x.clone() for x in after)

        start = (torch.zeros((), dtype=torch.long), learning_rate.new_zeros(self._num_metrics), *state)
        _, total, *fields = torch.while_loop(lambda i, *_: i < steps, body, start)
        return AdamState(*fields), total
