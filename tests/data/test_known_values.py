"""Values that are kept: those of the right transition, and only as long as they hold."""

import torch

from proxima.data.known_values import KnownValues


def q_of(number: torch.Tensor) -> torch.Tensor:
    return torch.stack((number.float(), -number.float()), 1)


def known(size: int, *numbers: int) -> KnownValues:
    values = KnownValues(size, 2)
    for number in numbers:
        values.put(torch.tensor([number]), q_of(torch.tensor([number])))
    return values


def test_what_was_put_is_known() -> None:
    values = known(5, 0, 3)
    number = torch.tensor([3, 1, 0, 3, 4])
    assert values.missing(number).tolist() == [1, 4]
    assert torch.equal(values.get(torch.tensor([3, 0, 3])), q_of(torch.tensor([3, 0, 3])))


def test_a_newer_one_in_its_place_is_another() -> None:
    values = known(5, 3, 8)
    assert values.missing(torch.tensor([3, 8, 13])).tolist() == [0, 2]
    assert torch.equal(values.get(torch.tensor([8])), q_of(torch.tensor([8])))


def test_nothing_is_known_of_a_network_that_changed() -> None:
    values = known(5, 0, 3)
    values.forget()
    assert values.missing(torch.tensor([0, 3])).tolist() == [0, 1]


def test_the_state_fits_other_sizes() -> None:
    state = known(8, 3, 4, 10, 9).get_state()  # 10 and 9 in the places of 2 and 1
    for size, lost in ((8, []), (100, []), (3, [3, 4]), (2, [3, 4])):
        values = known(size, 0)
        values.set_state({name: x.clone() for name, x in state.items()})
        number = torch.tensor([0, 3, 4, 9, 10])
        missing = number[values.missing(number)].tolist()
        assert missing == [0, *lost]
        kept = torch.tensor([n for n in (3, 4, 9, 10) if n not in lost])
        assert torch.equal(values.get(kept), q_of(kept))
