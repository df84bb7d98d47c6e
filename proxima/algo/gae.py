"""Generalised advantage estimation (Schulman et al. 2016), exact at time limits and for held actions."""

import torch
from torch import Tensor

from proxima.algo.recurrence import linear_recurrence


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    *,
    terminated: Tensor,
    ended: Tensor,
    discount: Tensor | float,
    lambda_: float,
) -> Tensor:
    """Advantages `[T, N]` of a rollout.

    `A_t = delta_t + Gamma_t lambda (1 - ended_t) A_{t+1}` with
    `delta_t = R_t + Gamma_t V(next_t) (1 - terminated_t) - V(s_t)`.

    Args:
        reward: `[T, N]`, the (discounted) sum over the env steps of the transition.
        value: `[T, N]`, V(s_t).
        next_value: `[T, N]`, V(s_{t+1}); where an episode was truncated, V of its final observation.
        terminated: `[T, N]` bool, the future is worth nothing.
        ended: `[T, N]` bool, terminated or truncated: nothing flows back across.
        discount: gamma, or `[T, N]` of gamma ** duration.
        lambda_: per transition.
    """
    delta = torch.where(terminated, reward, reward + discount * next_value) - value
    carry = torch.where(ended, 0.0, torch.as_tensor(discount * lambda_, dtype=delta.dtype, device=delta.device))
    return linear_recurrence(delta, carry, torch.zeros_like(delta[0]), reverse=True)


def next_values(
    value: Tensor, last_value: Tensor, final_value: Tensor, final_time: Tensor, final_env: Tensor
) -> Tensor:
    """V(s_{t+1}) of every transition `[T, N]`.

    Args:
        value: `[T, N]`, V(s_t).
        last_value: `[N]`, V of the observation after the rollout.
        final_value: `[K]`, V of the final observations of truncated episodes.
        final_time: `[K]`, the steps in which they were truncated.
        final_env: `[K]`, and their envs.
    """
    following = torch.cat((value[1:], last_value[None]))
    following[final_time, final_env] = final_value
    return following
