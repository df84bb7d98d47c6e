"""Many steps at once, however they are run."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from proxima.algo import epochs as epochs_module
from proxima.algo.adam import AdamState
from proxima.algo.epochs import Epochs
from proxima.compiling import log

RATE = torch.tensor(0.1)
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def gather(data: dict[str, Tensor], index: Tensor) -> list[dict[str, Tensor]]:
    return [{name: x.index_select(0, index) for name, x in data.items()}]


def step(state: AdamState, learning_rate: Tensor, parts: Sequence[dict[str, Tensor]]) -> tuple[AdamState, Tensor]:
    """The order of the steps matters."""
    rows = parts[0]["x"] * parts[0]["y"]
    return state._replace(param=0.5 * state.param + learning_rate * rows.sum(), steps=state.steps + 1), rows[:2]


def make(one: Any = step, **options: Any) -> Epochs:
    return Epochs(one, gather, take=gather, num_metrics=2, **({"device": CPU} | options))


def run(epochs: Epochs, order: Tensor) -> tuple[AdamState, Tensor]:
    state = AdamState.start(torch.ones(3))
    param, rows = state.param, torch.arange(float(order.numel()))
    total = epochs(state, RATE, {"x": rows, "y": rows + 1}, order)
    assert state.param is param
    return state, total


@pytest.mark.slow
@pytest.mark.parametrize("largest", [0, 3])
@pytest.mark.parametrize("count", [1, 4])
def test_rows_one_after_the_other_give_the_same_in_every_way(
    count: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs_module, "_LARGEST_IN_A_LOOP", largest)
    order = torch.arange(3 * count).view(count, 3)
    eager, total = run(make(compiled=False), order)
    epochs = make(compiled=True, gather_outside="if few")
    compiled, same = run(epochs, order)
    assert epochs.compiled, "the compiler did not work"
    assert list(epochs._native) == ["_loop" if largest and count > 1 else "_update"]
    torch.testing.assert_close((*eager, total), (*compiled, same))


@pytest.mark.slow
def test_rows_in_any_order_are_taken_by_the_loop() -> None:
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0)).view(4, 3)
    eager, total = run(make(compiled=False), order)
    epochs = make(compiled=True)
    compiled, same = run(epochs, order)
    assert list(epochs._native) == ["_loop"]
    torch.testing.assert_close((*eager, total), (*compiled, same))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4])
def test_learners_beside_each_other_keep_to_their_own_code(count: int) -> None:
    """Of the same shapes, and called in turn."""
    order = torch.arange(3 * count).view(count, 3)

    def other(*inputs: Any) -> tuple[AdamState, Tensor]:
        after, metrics = step(*inputs)
        return after._replace(param=after.param - 1.0), metrics

    steps = (step, other)
    eager = [run(make(one, compiled=False), order)[0].param for one in steps]
    learners = [make(one, compiled=True, gather_outside="if few") for one in steps]
    for _ in range(2):
        for learner, expected in zip(learners, eager, strict=True):
            torch.testing.assert_close(run(learner, order)[0].param, expected)
    assert all(learner.compiled for learner in learners), "the compiler did not work"


def test_minibatches_of_two_sizes_share_the_tensors_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def graphed(stages: list[Any], *, num_metrics: int, exchange: Any) -> Any:
        (compiled,) = stages
        made.append(compiled)

        def run(state: AdamState, learning_rate: Tensor, data: Any, order: Tensor) -> tuple[AdamState, Tensor]:
            total = torch.zeros(num_metrics)
            for index in order:
                state, metrics = compiled(state, learning_rate, data, index)
                total = total + metrics
            return state, total

        return run

    monkeypatch.setattr(epochs_module, "GraphedEpoch", graphed)
    epochs = make(device=GPU, compiled=True)
    monkeypatch.setattr(epochs, "_compile", lambda function: function)
    state, rows = AdamState.start(torch.ones(3)), torch.arange(10.0)
    for order in (torch.arange(6).view(2, 3), torch.arange(6, 10).view(2, 2)):
        epochs(state, RATE, {"x": rows, "y": rows}, order)
    assert len(made) == 1 and int(state.steps) == 4
    epochs(state, RATE, {"x": rows[:3], "y": rows[:3]}, torch.arange(3).view(1, 3))
    assert len(made) == 2 and epochs.compiled


def test_what_fails_leaves_the_state_to_the_eager_steps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no such op\nmore")

    epochs = make(compiled=True)
    monkeypatch.setattr(epochs, "_compile", broken)
    order = torch.arange(6).view(2, 3)
    state, total = run(epochs, order)
    expected, same = run(make(compiled=False), order)
    assert torch.equal(state.param, expected.param) and torch.equal(total, same) and not epochs.compiled
    assert [r.message for r in caplog.records if r.name == log.name] == [
        "The learner is not compiled (no such op): the run continues, but slower."
    ]
