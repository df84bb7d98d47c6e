"""A cache of the target network's values."""

import torch
from torch import Tensor


class KnownValues:
    """Values of transitions by their unique number, valid until the network changes.

    The entry of a transition is its number modulo `size`: with the size of the replay buffer, a new transition takes
    the entry of the one that it overwrote.
    """

    def __init__(self, size: int, actions: int):
        self._size = size
        self._number = torch.full((size,), -1)
        self._q = torch.zeros(size, actions)

    def missing(self, number: Tensor) -> Tensor:
        """Indices `[M]` of the transitions `[B]` that are not in the cache."""
        return (self._number[number % self._size] != number).nonzero().squeeze(-1)

    def put(self, number: Tensor, q: Tensor) -> None:
        """Store the values `[M, A]` of transitions `[M]`."""
        place = number % self._size
        self._number[place] = number
        self._q[place] = q

    def get(self, number: Tensor) -> Tensor:
        """The values `[B, A]` of transitions `[B]`, all of which must be in the cache."""
        return self._q[number % self._size]

    def forget(self) -> None:
        """Empty the cache, because the network has changed."""
        self._number.fill_(-1)

    def get_state(self) -> dict[str, Tensor]:
        """A copy of all entries."""
        known = self._number >= 0
        return {"number": self._number[known], "q": self._q[known]}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Load what `get_state` returned, possibly of a cache of another size."""
        self.forget()
        number, q = state["number"], state["q"]
        if len(number):
            newest = number > number.max() - self._size  # no two of them share an entry
            self.put(number[newest], q[newest])
