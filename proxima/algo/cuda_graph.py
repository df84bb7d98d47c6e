"""An epoch on a GPU: one minibatch step, captured once as a CUDA graph and replayed."""

from collections.abc import Callable

import torch
from torch import Tensor

from proxima.algo.adam import AdamState

StepFunction = Callable[[AdamState, Tensor, dict[str, Tensor], list[Tensor], Tensor], tuple[AdamState, Tensor]]


class GraphedEpoch:
    """One launch a minibatch, whatever the step is made of, and nothing that the host waits for.

    A graph is tied to the addresses it was captured with: the epoch's tensors are copied to its own, once an epoch.
    """

    def __init__(self, step: StepFunction, *, num_metrics: int):
        self._step, self._num_metrics = step, num_metrics
        self._captured: dict[torch.Size, _Captured] = {}

    def __call__(
        self, state: AdamState, learning_rate: Tensor, obs: dict[str, Tensor], data: list[Tensor], order: Tensor
    ) -> tuple[AdamState, Tensor]:
        """One step a row of `order` `[M, B]`; returns the last state and the sum of the steps' metrics."""
        inputs = [*state, learning_rate, *obs.values(), *data, order]
        captured = self._captured.get(order.shape)
        if captured is None:
            captured = self._captured[order.shape] = _Captured(self._step, inputs, list(obs), self._num_metrics)
        return captured.run(inputs)


class _Captured:
    """The graph of a step on minibatches of one size, with the tensors that it reads and writes."""

    def __init__(self, step: StepFunction, inputs: list[Tensor], keys: list[str], num_metrics: int):
        self._step, self._keys = step, keys
        self._inputs = [x.clone() for x in inputs]
        self._fields = len(AdamState._fields)
        self._total = inputs[0].new_zeros(num_metrics)
        self._row = torch.zeros(1, dtype=torch.long, device=inputs[0].device)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):  # compiles, and lets the libraries allocate what they keep
                self._row.zero_()
                self._one()
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._one()

    def _one(self) -> None:
        fields = self._inputs[: self._fields]
        learning_rate, *rest, order = self._inputs[self._fields :]
        obs, data = dict(zip(self._keys, rest, strict=False)), rest[len(self._keys) :]
        index = order.index_select(0, self._row).reshape(-1)
        after, metrics = self._step(AdamState(*fields), learning_rate, obs, data, index)
        for field, new in zip(fields, after, strict=True):
            field.copy_(new)
        self._total.add_(metrics)
        self._row.add_(1)

    @torch.no_grad()
    def run(self, inputs: list[Tensor]) -> tuple[AdamState, Tensor]:
        for ours, x in zip(self._inputs, inputs, strict=True):
            ours.copy_(x)
        self._total.zero_()
        self._row.zero_()
        for _ in range(len(inputs[-1])):
            self._graph.replay()
        return AdamState(*(x.clone() for x in self._inputs[: self._fields])), self._total.clone()
