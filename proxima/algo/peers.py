"""The other ranks of a run, as a learner sees them: sums over all ranks, and which minibatches are its own.

A run on several ranks learns what one rank with all envs would learn, up to rounding: each rank has a part of every
minibatch, and whatever is a mean over samples is a mean over those of all ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from proxima.data.batch import minibatch_indices

Sum = Callable[[Tensor], Tensor]
"""The sum of a tensor over all ranks, in place; the same bits on every rank."""


@dataclass(frozen=True)
class Peers:
    """The ranks of a run; by default a single one."""

    num_envs: tuple[int, ...]
    """Of each rank."""
    rank: int = 0
    sum: Sum | None = None
    """None for a process without ranks: nothing is exchanged then."""

    @property
    def own_envs(self) -> int:
        """Envs of this rank."""
        return self.num_envs[self.rank]

    def total(self, x: Tensor) -> Tensor:
        """The sum over all ranks of a new tensor, which may be changed."""
        return x if self.sum is None else self.sum(x)

    def mean(self, x: Tensor, count: Tensor | float) -> Tensor:
        """The mean over all ranks of means `x` over `count` samples each."""
        if self.sum is None:
            return x
        count = torch.as_tensor(count, dtype=x.dtype, device=x.device)
        sums = self.sum(torch.cat(((x * count).reshape(-1), count.reshape(1))))
        return (sums[:-1] / sums[-1]).view(x.shape)

    def var_mean(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Population variance and mean [] of the numbers of all ranks."""
        var, mean = torch.var_mean(x, correction=0)
        if self.sum is None:
            return var, mean
        everywhere = self.mean(mean, x.numel())
        return self.mean(var + (mean - everywhere).square(), x.numel()), everywhere

    def minibatches(self, sizes: Sequence[int], count: int, generator: Generator) -> Iterator[Tensor]:
        """This rank's parts of `count` minibatches of the indices of all ranks, which have `sizes` of them.

        The orders of all ranks are drawn with one generator, so that its state stays the same everywhere.
        """
        orders = [list(minibatch_indices(size, count, generator)) for size in sizes]
        yield from orders[self.rank]
