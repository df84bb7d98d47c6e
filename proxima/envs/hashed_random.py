"""Random numbers without a generator: a hash of seed, episode and step, for worlds that step all envs at once."""

import torch
from torch import Tensor

_MASK = 2**32 - 1


def hashed_uniform(hashed_seeds: Tensor, episode: Tensor, step: Tensor, count: int, first: int = 0) -> Tensor:
    """`[N, count]` float32, uniform in [0, 1), of seeds (after `hash32`), episodes and steps `[N]`, all int64.

    The columns from `first` on, of as many as one likes.
    """
    key = hash32(hash32(hashed_seeds + episode) + step)
    column = torch.arange(first + 1, first + count + 1, device=hashed_seeds.device)
    return (hash32(key[:, None] + 0x9E3779B9 * column) >> 8).float() * 2.0**-24


def hash32(x: Tensor) -> Tensor:
    """32-bit hash of an integer, in int64."""
    for factor, shift in ((0x7FEB352D, 16), (0x846CA68B, 15)):
        x = x & _MASK
        x = (x ^ (x >> shift)) * factor
    x = x & _MASK
    return x ^ (x >> 16)
