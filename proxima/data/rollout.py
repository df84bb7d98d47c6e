"""Storage of one iteration's experience, `[T, N]`, filled in place and reused."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor


class Rollout:
    """What `T` steps of `N` envs gave. Observations are raw; row T is the one after the last step."""

    def __init__(
        self,
        *,
        num_steps: int,
        num_envs: int,
        obs: dict[str, Tensor],
        action: Tensor,
        device: torch.device,
    ):
        """`obs` and `action` are examples `[N, ...]` that give shapes and dtypes; all but bytes is kept as float32."""
        self.num_steps, self.num_envs = num_steps, num_envs
        self.obs = {
            key: torch.zeros(num_steps + 1, *x.shape, dtype=_storage_dtype(x.dtype), device=device)
            for key, x in obs.items()
        }
        self.action = torch.zeros(num_steps, *action.shape, dtype=action.dtype, device=device)
        self.reward = torch.zeros(num_steps, num_envs, device=device)
        self.terminated = torch.zeros(num_steps, num_envs, dtype=torch.bool, device=device)
        self.truncated = torch.zeros(num_steps, num_envs, dtype=torch.bool, device=device)
        self.clear()

    def clear(self) -> None:
        """Make ready for new experience: nothing ended yet, nothing held."""
        self.duration: Tensor | None = None
        """`[T, N]` int64, env steps of each transition; None where all of them are one."""
        self._final_obs: dict[str, list[Tensor]] = {key: [] for key in self.obs}
        self._final_index: list[Tensor] = []
        self.terminated.zero_()
        self.truncated.zero_()

    def add_final(self, step: int, rows: Tensor, final_obs: dict[str, Tensor]) -> None:
        """Keep the last observations of the episodes that were truncated in `rows` at `step`."""
        self._final_index.append(step * self.num_envs + rows)
        for key, kept in self._final_obs.items():
            kept.append(final_obs[key][rows].to(self.obs[key]))

    @property
    def ended(self) -> Tensor:
        """`[T, N]` bool."""
        return self.terminated | self.truncated

    def discount(self, gamma: float) -> Tensor | float:
        """Gamma, or `[T, N]` of gamma ** duration where actions were held."""
        return gamma if self.duration is None else gamma ** self.duration.to(self.reward.dtype)

    @property
    def size(self) -> int:
        """Number of transitions."""
        return self.num_steps * self.num_envs

    @property
    def final_index(self) -> Tensor:
        """`[K]`, where in the flattened rollout the truncated episodes ended."""
        if not self._final_index:
            return torch.zeros(0, dtype=torch.long, device=self.reward.device)
        return torch.cat(self._final_index).to(self.reward.device)

    def bootstrap_obs(self) -> dict[str, Tensor]:
        """`[N + K, ...]`: the observations after the rollout, then the final ones of truncated episodes."""
        return {key: torch.cat((x[-1], *self._final_obs[key])) for key, x in self.obs.items()}

    def flat_obs(self) -> dict[str, Tensor]:
        """`[T * N, ...]` of the acted-on observations, a view."""
        return {key: x[:-1].flatten(0, 1) for key, x in self.obs.items()}


def minibatch_indices(size: int, count: int, generator: Generator) -> Iterator[Tensor]:
    """Every index of `range(size)` once, shuffled, in `count` minibatches whose sizes differ by at most one.

    Yields tensors `[M, B]` of M minibatches each: one where the sizes are all the same, else two.
    """
    order = torch.randperm(size, generator=generator, device=generator.device)
    least, larger = divmod(size, count)
    split = larger * (least + 1)
    if larger:
        yield order[:split].view(larger, least + 1)
    yield order[split:].view(count - larger, least)


def as_stored(obs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Observations as they are stored and as policies take them: bytes stay, all else is float32."""
    return {key: x.to(_storage_dtype(x.dtype)) for key, x in obs.items()}


def _storage_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.uint8 if dtype == torch.uint8 else torch.float32
