"""The PPO objective (Schulman et al. 2017) as a pure function of tensors."""

from typing import NamedTuple

import torch
from torch import Tensor


class LossTerms(NamedTuple):
    """Scalars of one minibatch; the first is what is minimised."""

    loss: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def ppo_loss(
    *,
    log_prob: Tensor,
    value: Tensor,
    entropy: Tensor,
    old_log_prob: Tensor,
    old_value: Tensor,
    advantage: Tensor,
    return_: Tensor,
    clip_range: float,
    clip_value_loss: bool,
    value_loss_coef: float,
    entropy_coef: float,
    normalize_advantage: bool,
    weight: Tensor | None = None,
) -> LossTerms:
    """Clipped surrogate, value loss and entropy bonus of a minibatch; every tensor is `[B]`.

    `weight` is 1 for a sample and 0 for padding; None counts all.
    """

    def mean(x: Tensor) -> Tensor:
        return x.mean() if weight is None else (x * weight).sum() / weight.sum()

    if normalize_advantage:
        # The population deviation: a minibatch of one sample has deviation 0, not NaN.
        centred = advantage - mean(advantage)
        advantage = centred / (mean(centred.square()).sqrt() + 1e-8)
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    surrogate = torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - clip_range, 1 + clip_range))
    policy_loss = -mean(surrogate)

    error = (value - return_).square()
    if clip_value_loss:
        near = old_value + (value - old_value).clamp(-clip_range, clip_range)
        error = torch.maximum(error, (near - return_).square())
    value_loss = 0.5 * mean(error)

    mean_entropy = mean(entropy)
    loss = policy_loss + value_loss_coef * value_loss - entropy_coef * mean_entropy
    # http://joschu.net/blog/kl-approx.html: unbiased, and never negative.
    approx_kl = mean(torch.expm1(log_ratio) - log_ratio)
    clip_fraction = mean(((ratio - 1.0).abs() > clip_range).float())
    return LossTerms(loss, policy_loss, value_loss, mean_entropy, approx_kl, clip_fraction)


def explained_variance(value: Tensor, return_: Tensor) -> Tensor:
    """1 - Var(return - value) / Var(return): 1 is a perfect critic, 0 one that knows only the mean."""
    var = return_.var(correction=0)
    return torch.where(var > 0, 1.0 - (return_ - value).var(correction=0) / var, torch.nan)
