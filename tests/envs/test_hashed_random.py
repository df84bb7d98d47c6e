"""Random numbers that are a hash of seed, episode and step."""

import torch
from torch import Tensor

from proxima.envs.hashed_random import hash32, hashed_uniform


def drawn(seeds: Tensor, episode: int = 0, step: int = 0, count: int = 3) -> Tensor:
    return hashed_uniform(hash32(seeds), torch.full_like(seeds, episode), torch.full_like(seeds, step), count)


def test_numbers_are_uniform_and_uncorrelated() -> None:
    x = drawn(torch.arange(20_000), count=4).double()
    assert x.min() >= 0.0 and x.max() < 1.0
    for column in x.T:
        counts = torch.histc(column, 10, 0.0, 1.0)
        assert float((counts - 2000).abs().max()) < 200  # five times the std of a count, 42
    correlation = torch.corrcoef(x.T) - torch.eye(4)
    neighbours = torch.corrcoef(torch.stack((x[:-1, 0], x[1:, 0])))[0, 1]
    assert float(correlation.abs().max()) < 0.035 and abs(float(neighbours)) < 0.035  # the std is 0.007


def test_they_depend_on_seed_episode_and_step_alone() -> None:
    seeds = torch.tensor([3, 4, 5])
    base = drawn(seeds)
    assert torch.equal(base, drawn(seeds)) and torch.equal(base[1:2], drawn(seeds[1:2]))
    assert torch.equal(base[:, :2], drawn(seeds, count=2))
    others = [drawn(seeds, episode=1), drawn(seeds, step=1), drawn(seeds + 3)]
    assert all(not (base == other).any() for other in others)
    assert len(base.unique()) == base.numel()
