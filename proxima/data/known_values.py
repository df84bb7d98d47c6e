"""Values of transitions that need not be computed again."""

import torch
from torch import Tensor


class KnownValues:
    """What a network said of transitions that were drawn before, for as long as the network stays as it is.

    Transitions have numbers that are never used again; as many as `size` are kept, by their number modulo `size`, so
    that in a ring of that size a newer one takes the place of the one it overwrote.
    """

    def __init__(self, size: int, actions: int):
        self._size = size
        self._number = torch.full((size,), -1)
        self._q = torch.zeros(size, actions)

    def missing(self, number: Tensor) -> Tensor:
        """Which of the transitions `[B]` are not known, `[M]`."""
        return (self._number[number % self._size] != number).nonzero().squeeze(-1)

    def put(self, number: Tensor, q: Tensor) -> None:
        """Keep the values `[M, A]` of transitions `[M]`."""
        place = number % self._size
        self._number[place] = number
        self._q[place] = q

    def get(self, number: Tensor) -> Tensor:
        """The values `[B, A]` of transitions `[B]` that are known."""
        return self._q[number % self._size]

    def forget(self) -> None:
        """The network has changed."""
        self._number.fill_(-1)

    def get_state(self) -> dict[str, Tensor]:
        """A copy of all that is known."""
        known = self._number >= 0
        return {"number": self._number[known], "q": self._q[known]}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `get_state` gave, which may be of another size."""
        self.forget()
        number, q = state["number"], state["q"]
        if len(number):
            newest = number > number.max() - self._size  # no two of which have the same place
            self.put(number[newest], q[newest])
