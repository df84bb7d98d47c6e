"""An epoch on a GPU: one minibatch step, captured as a CUDA graph and replayed for every minibatch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from proxima.algo.adam import AdamState

StepFunction = Callable[[AdamState, Tensor, Any, Tensor], tuple[AdamState, Tensor]]
"""(state, learning rate, all data, index of a minibatch) -> (next state, metrics of the step)."""


class GraphedEpoch:
    """One launch per minibatch, without host synchronisation.

    A graph reads from fixed addresses: the inputs are copied into its own tensors once per epoch.
    """

    def __init__(self, step: StepFunction, *, num_metrics: int):
        self._step, self._num_metrics = step, num_metrics
        self._inputs: list[Any] = []
        self._graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

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
        graph, ours = self._graphs[order.shape]
        ours.copy_(order)
        self._total.zero_()
        self._row.zero_()
        for _ in range(len(order)):
            graph.replay()
        return AdamState(*(x.clone() for x in self._inputs[: len(state)])), self._total.clone()

    def _capture(self, form: TreeSpec, order: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(3):  # warm-up: compiles, and lets the libraries allocate their workspaces
                self._row.zero_()
                self._one(form, order)
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._one(form, order)
        return graph, order

    def _one(self, form: TreeSpec, order: Tensor) -> None:
        state, learning_rate, data = tree_unflatten(self._inputs, form)
        index = order.index_select(0, self._row).reshape(-1)
        after, metrics = self._step(state, learning_rate, data, index)
        for field, new in zip(state, after, strict=True):
            field.copy_(new)
        self._total.add_(metrics)
        self._row.add_(1)
