"""An epoch on a GPU: one minibatch step, captured once as a CUDA graph and replayed."""

from collections.abc import Callable

import torch
from torch import Tensor

from proxima.algo.adam import AdamState

Tensors = dict[str, Tensor]
StepFunction = Callable[[AdamState, Tensor, Tensors, Tensors, Tensor | None], tuple[AdamState, Tensor]]


class GraphedEpoch:
    """One launch a minibatch, whatever the step is made of, and nothing that the host waits for.

    A graph is tied to the addresses it was captured with: the epoch's tensors are copied to its own, once an epoch.
    """

    def __init__(self, step: StepFunction, *, num_metrics: int):
        self._step, self._num_metrics = step, num_metrics
        self._inputs: list[Tensor] = []
        self._graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    @torch.no_grad()
    def __call__(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor
    ) -> tuple[AdamState, Tensor]:
        """One step a row of `order` `[M, B]`; returns the last state and the sum of the steps' metrics."""
        inputs = [*state, learning_rate, *obs.values(), *data.values()]
        if not self._inputs:
            self._inputs = [x.clone() for x in inputs]
            self._total = learning_rate.new_zeros(self._num_metrics)
            self._row = torch.zeros(1, dtype=torch.long, device=learning_rate.device)
        if order.shape not in self._graphs:
            self._graphs[order.shape] = self._capture(list(obs), list(data), order.clone())
        for ours, x in zip(self._inputs, inputs, strict=True):
            ours.copy_(x)
        graph, ours = self._graphs[order.shape]
        ours.copy_(order)
        self._total.zero_()
        self._row.zero_()
        for _ in range(len(order)):
            graph.replay()
        return AdamState(*(x.clone() for x in self._inputs[: len(state)])), self._total.clone()

    def _capture(self, keys: list[str], names: list[str], order: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):  # compiles, and lets the libraries allocate what they keep
                self._row.zero_()
                self._one(keys, names, order)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._one(keys, names, order)
        return graph, order

    def _one(self, keys: list[str], names: list[str], order: Tensor) -> None:
        count = len(AdamState._fields)
        fields, learning_rate, rest = self._inputs[:count], self._inputs[count], self._inputs[count + 1 :]
        obs, data = dict(zip(keys, rest, strict=False)), dict(zip(names, rest[len(keys) :], strict=True))
        index = order.index_select(0, self._row).reshape(-1)
        after, metrics = self._step(AdamState(*fields), learning_rate, obs, data, index)
        for field, new in zip(fields, after, strict=True):
            field.copy_(new)
        self._total.add_(metrics)
        self._row.add_(1)
