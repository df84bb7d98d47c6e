"""Checks of what envs return: NaN, infinity, and masks that allow no action, once per rollout.

In every step a GPU would have to wait.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from proxima.errors import EnvFailure, NonFiniteError, ProximaError
from proxima.masks import ACTION_MASK

if TYPE_CHECKING:
    from proxima.training.source import Source


class RolloutChecks:
    """Checks of the rollouts of a source; errors name the env and the step."""

    def __init__(self, source: "Source"):
        self._source = source

    def check(self, steps: int) -> None:
        """Check the first `steps` steps as stored: a number too large for float32 counts as infinite."""
        rollout = self._source.rollout
        reward, stuck = rollout.reward[:steps], self._stuck(steps)
        if _are_finite([reward, stuck, *(x[: steps + 1] for x in rollout.obs.values())]):
            return
        for t, env in _non_finite(stuck)[:1].tolist():
            what, advice = f"an {ACTION_MASK} that allows no action", "at least one must be valid until an episode ends"
            self._raise(t - 1, env, what, advice, EnvFailure)
        bad = [(int(t), int(env), f"a reward of {float(reward[t, env])}") for t, env in _non_finite(reward)[:1]]
        for key, x in rollout.obs.items():
            seen = x[: steps + 1]
            for t, env, *place in _non_finite(seen)[:1].tolist():
                bad.append((t - 1, env, f"an observation {key!r} with {float(seen[(t, env, *place)])}"))
        if bad:
            self._raise(*min(bad))

    def _stuck(self, steps: int) -> Tensor:
        """`[steps + 1, N]`, infinite where the mask allows no choice in one of the action's columns."""
        spec, rollout = self._source.policy.spec, self._source.rollout
        if not spec.has_masks:
            return rollout.reward[:0]
        columns = rollout.obs[ACTION_MASK][: steps + 1].split(spec.action.sizes, -1)
        return torch.stack([column.amax(-1) for column in columns]).amin(0).float().reciprocal()

    def check_obs(self, times: Tensor, envs: Tensor, obs: dict[str, Tensor]) -> None:
        """Check observations `[K, ...]` after the steps `times` `[K]` of `envs` `[K]`."""
        if _are_finite(list(obs.values())):
            return
        for key, x in obs.items():
            for row, *place in _non_finite(x).tolist():
                what = f"an observation {key!r} with {float(x[(row, *place)])}"
                self._raise(int(times[row]), int(envs[row]), what)

    def _raise(
        self,
        t: int,
        env: int,
        what: str,
        advice: str = "check the env, or scale its output",
        kind: type[ProximaError] = NonFiniteError,
    ) -> None:
        source, share = self._source, self._source.share
        duration, taken = source.rollout.duration, (t + 1) * share.total
        step = source.policy_steps // share.total + t + 1
        where = f"step {step} of that env"
        if duration is not None:
            where, taken = f"policy {where}", int(duration[: t + 1].sum()) * share.total // share.count
        number = share.first + env
        raise kind(f"env {number} gave {what} at global step {source.global_step + taken} ({where}): {advice}.")


def _are_finite(tensors: list[Tensor]) -> bool:
    """Whether there is no NaN and no infinity, as finite sums show, which are read at once; False may be wrong."""
    sums = [x.sum().float() for x in tensors if x.is_floating_point()]
    return not sums or math.isfinite(float(torch.stack(sums).sum()))


def _non_finite(x: Tensor) -> Tensor:
    """Indices `[K, axes]` of NaNs and infinities."""
    return (~torch.isfinite(x)).nonzero()
