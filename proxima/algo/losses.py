"""The PPO objective (Schulman et al. 2017) as a pure function of tensors."""

from typing import NamedTuple

import torch
from torch import Tensor

from proxima.algo.peers import Peers
from proxima.config.sections import PPOOptions
from proxima.data.batch import Minibatch


class LossTerms(NamedTuple):
    """Scalars of one minibatch; the first is minimised."""

    loss: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def ppo_loss(
    log_prob: Tensor, value: Tensor, entropy: Tensor, batch: Minibatch, options: PPOOptions, *, is_complete: bool = True
) -> LossTerms:
    """Clipped surrogate, value loss and entropy bonus of a minibatch, given the new policy's outputs `[B]`.

    Unless it `is_complete`, its advantages are normalised already: other ranks have the rest of the minibatch.
    """
    weight, advantage, clip = batch.weight, batch.advantage, options.clip_range

    def mean(x: Tensor) -> Tensor:
        return weighted_mean(x, weight)

    if is_complete and options.normalize_advantage == "minibatch":
        # The population std: 0 for a minibatch of one sample, where the sample std would be NaN.
        centred = advantage - mean(advantage)
        advantage = centred / (mean(centred.square()).sqrt() + 1e-8)
    log_ratio = log_prob - batch.old_log_prob
    ratio = log_ratio.exp()
    surrogate = torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - clip, 1 + clip))
    policy_loss = -mean(surrogate)

    error = (value - batch.return_).square()
    if options.clip_value_loss:
        clipped = batch.old_value + (value - batch.old_value).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - batch.return_).square())
    value_loss = 0.5 * mean(error)

    mean_entropy = mean(entropy)
    loss = policy_loss + options.value_loss_coef * value_loss - options.entropy_coef * mean_entropy
    measured = weight if batch.measured is None else batch.measured
    # http://joschu.net/blog/kl-approx.html: unbiased, and never negative.
    approx_kl = weighted_mean(torch.expm1(log_ratio) - log_ratio, measured)
    clip_fraction = weighted_mean(((ratio - 1.0).abs() > clip).float(), measured)
    return LossTerms(loss, policy_loss, value_loss, mean_entropy, approx_kl, clip_fraction)


def weighted_mean(x: Tensor, weight: Tensor | None) -> Tensor:
    """The mean of `x` `[B]` with weights `[B]` of 0 or 1; None: all 1. It is 0 if all weights are."""
    return x.mean() if weight is None else (x * weight).sum() / weight.sum().clamp(min=1.0)


def explained_variance(value: Tensor, return_: Tensor, peers: Peers | None = None) -> Tensor:
    """1 - Var(return - value) / Var(return): 1 for a perfect critic, 0 for one that predicts the mean.

    With `peers`, of the samples of all ranks.
    """
    if peers is None or peers.sum is None:
        var, left = return_.var(correction=0), (return_ - value).var(correction=0)
    else:
        (var, _), (left, _) = peers.var_mean(return_), peers.var_mean(return_ - value)
    return torch.where(var > 0, 1.0 - left / var, torch.nan)
