"""Running statistics of observations and returns, as module buffers: checkpoints and exports include them."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from proxima.algo.gae import linear_recurrence
from proxima.algo.peers import Sum


class RunningMoments(nn.Module):
    """Mean and variance of a stream of batches (Chan et al. 1983), in float64."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...] = ()):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, batch: Tensor, sum_ranks: Sum | None = None) -> None:
        """Add a batch `[*, *shape]`; with `sum_ranks` the batches of all ranks."""
        flat = batch.reshape(-1, *self.mean.shape).double()
        var, mean = torch.var_mean(flat, 0, correction=0)
        size: Tensor | int = len(flat)
        if sum_ranks is not None:
            own = mean
            *sums, size = sum_ranks(torch.cat(((len(flat) * own).reshape(-1), own.new_tensor([len(flat)]))))
            mean = torch.stack(sums).view(own.shape) / size
            var = sum_ranks(len(flat) * (var + (own - mean).square())) / size
        count = self.count + size
        delta = mean - self.mean
        share = size / count
        # The initial variance has no weight while count is 0.
        self.var.copy_(self.var * (1 - share) + var * share + delta * delta * share * (1 - share))
        self.mean.add_(delta * share)
        self.count.copy_(count)


class ObsNormalizer(nn.Module):
    """`(x - mean) / std`, clipped, for every key that is not an image; the identity before the first update."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], *, clip: float):
        super().__init__()
        self.clip = clip
        # A module name must not contain a dot; an observation key may.
        self._names = {key: f"key_{i}" for i, key in enumerate(shapes)}
        self.moments = nn.ModuleDict({self._names[key]: RunningMoments(shape) for key, shape in shapes.items()})
        for key, shape in shapes.items():
            # float32 copies for the forward pass, which needs no float64 arithmetic then.
            self.register_buffer(f"{self._names[key]}_shift", torch.zeros(shape))
            self.register_buffer(f"{self._names[key]}_scale", torch.ones(shape))

    def forward(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Normalise the keys that have statistics; other keys are unchanged."""
        return {key: self._normalize(key, x) if key in self._names else x for key, x in obs.items()}

    def _normalize(self, key: str, x: Tensor) -> Tensor:
        name = self._names[key]
        return ((x - getattr(self, f"{name}_shift")) * getattr(self, f"{name}_scale")).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, obs: dict[str, Tensor], sum_ranks: Sum | None = None) -> None:
        """Add unnormalised observations `[*, *shape]` to the statistics; with `sum_ranks` those of all ranks."""
        for key, name in self._names.items():
            moments = self.moments[name]
            assert isinstance(moments, RunningMoments)
            moments.update(obs[key], sum_ranks)
            getattr(self, f"{name}_shift").copy_(moments.mean)
            getattr(self, f"{name}_scale").copy_((moments.var + 1e-8).rsqrt())

    @torch.no_grad()
    def copy_known(self, other: "ObsNormalizer") -> list[str]:
        """Copy the statistics of the keys that the other one has in the same shape; returns the keys without."""
        own, theirs, missing = self.state_dict(), other.state_dict(), []
        for key, name in self._names.items():
            there = other._names.get(key, "")
            pairs = {f"moments.{name}.{part}": f"moments.{there}.{part}" for part in ("mean", "var", "count")} | {
                f"{name}_{part}": f"{there}_{part}" for part in ("shift", "scale")
            }
            if all(to in theirs and theirs[to].shape == own[of].shape for of, to in pairs.items()):
                for of, to in pairs.items():
                    own[of].copy_(theirs[to])
            else:
                missing.append(key)
        return missing


class RewardNormalizer(nn.Module):
    """Divides rewards by the running std of the discounted return."""

    running: Tensor
    carry: Tensor

    def __init__(self, num_envs: int, *, clip: float):
        super().__init__()
        self.clip = clip
        self.moments = RunningMoments()
        # The running return of each env, and its discount in the next transition (0 after the end of an episode).
        self.register_buffer("running", torch.zeros(num_envs, dtype=torch.float64))
        self.register_buffer("carry", torch.zeros(num_envs, dtype=torch.float64))

    def forward(self, reward: Tensor) -> Tensor:
        """The rewards, scaled and clipped."""
        return (reward.double() / self.scale).clamp(-self.clip, self.clip).to(reward.dtype)

    @torch.no_grad()
    def update(
        self,
        reward: Tensor,
        *,
        ended: Tensor,
        discount: Tensor | float,
        skipped: Tensor | None = None,
        sum_ranks: Sum | None = None,
    ) -> None:
        """Add the rewards `[T, N]` of a rollout to the statistics, but for `skipped` rows.

        `discount` is gamma, or gamma ** duration `[T, N]`. `G_t = R_t + Gamma_{t-1} G_{t-1}`, where `Gamma_{t-1}` is
        the discount over the time that transition t - 1 took.
        """
        reward64, keep = reward.double(), (~ended).double()
        carry = torch.cat((self.carry[None], keep * discount))
        returns = linear_recurrence(reward64, carry[:-1], self.running)
        self.running.copy_(returns[-1])
        self.carry.copy_(carry[-1])
        self.moments.update(returns if skipped is None else returns[~skipped], sum_ranks)

    @torch.no_grad()
    def adopt(self, state: Mapping[str, Tensor] | None) -> list[str]:
        """Use the statistics of another run, given its normaliser's state; returns what stays fresh without one."""
        if state is None:
            return ["statistics of the reward"]
        self.moments.load_state_dict({name: state[f"moments.{name}"] for name in self.moments.state_dict()})
        return []

    @property
    def scale(self) -> Tensor:
        """[], the divisor of rewards."""
        return (self.moments.var + 1e-8).sqrt()
