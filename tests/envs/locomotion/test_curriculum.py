"""Levels after an episode, by tables."""

import pytest
import torch

from proxima.envs.locomotion.curriculum import BySuccess, by_distance, followed
from proxima.envs.locomotion.settings import Ground


@pytest.mark.parametrize(
    ("level", "walked", "commanded", "fell", "after"),
    [
        (1, 5.0, 10.0, False, 2),  # more than half a tile of 8 m
        (1, 4.0, 10.0, False, 0),  # not more, and less than half of what was commanded
        (1, 3.0, 5.0, False, 1),  # enough of it
        (1, 5.0, 100.0, False, 2),  # far is far, whatever was commanded
        (0, 0.0, 10.0, False, 0),  # there is nothing below
        (2, 5.0, 5.0, False, 7),  # past the top: anywhere, here 7
        (2, 0.0, 0.0, False, 2),  # nothing was commanded
        (1, 5.0, 8.0, True, 1),  # it fell down the stairs
        (1, 3.0, 1.0, True, 0),  # a fall
    ],
)
def test_levels_by_distance(level: int, walked: float, commanded: float, fell: bool, after: int) -> None:
    ground = Ground(levels=3)
    args = (
        torch.tensor([level]),
        torch.tensor([walked]),
        torch.tensor([commanded]),
        torch.tensor([fell]),
        torch.tensor([7]),
    )
    assert by_distance(*args, ground).tolist() == [after]


def test_levels_by_success() -> None:
    ground = Ground(levels=3, episodes=4, raise_at=0.75, lower_at=0.25)
    curriculum, kind = BySuccess(2, ground), torch.tensor([0, 0, 0, 0, 1])
    everyone = torch.ones(5, dtype=torch.bool)

    def record(*success: bool) -> list[int]:
        curriculum.record(kind, curriculum.table[0][kind], everyone, torch.tensor(success))
        return curriculum.table[0].tolist()

    assert record(True, True, True, False, True) == [1, 0]  # 3 of 4; the other kind has one episode so far
    assert record(True, True, False, False, True) == [1, 0]  # between the limits
    assert record(True, True, True, True, True) == [2, 0]
    assert record(True, True, True, True, True) == [2, 1]  # the top; and 4 episodes of the other kind
    assert record(False, False, False, False, False) == [1, 1]
    assert record(False, False, False, False, False) == [0, 1]
    assert record(False, False, False, False, False) == [0, 1]
    assert record(False, False, False, False, False) == [0, 0]
    curriculum.record(kind, curriculum.table[0][kind], ~everyone, everyone)
    assert curriculum.table[1:].tolist() == [[0, 0], [0, 0]]  # nothing ended
    curriculum.table[0] = 2
    curriculum.record(kind, torch.tensor([0, 1, 1, 2, 0]), everyone, everyone)
    assert curriculum.table[1:].tolist() == [[1, 0], [1, 0]]  # only what happens on the highest level counts


def test_starts_by_success_are_on_the_highest_level_and_below() -> None:
    curriculum = BySuccess(1, Ground())
    curriculum.table[0] = 3
    level = curriculum.levels(
        torch.zeros(8, dtype=torch.int64), torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.49, 0.5, 0.9])
    )
    assert level.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_commands_that_are_followed_exactly() -> None:
    ideal, command = torch.zeros(2, 3, dtype=torch.float64), torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 1.0]]).double()
    for _ in range(1000):
        ideal = followed(ideal, command, 2 * torch.pi / 1000)
    assert torch.allclose(ideal[0], torch.tensor([2 * torch.pi, 0.0, 0.0]).double())
    assert float(ideal[1, :2].norm()) < 1e-9  # a circle
