"""Generalised advantage estimation (Schulman et al. 2016), exact at time limits and for held actions."""

import torch
from torch import Tensor


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
        terminated: `[T, N]` bool: no bootstrap.
        ended: `[T, N]` bool, terminated or truncated: later advantages do not count.
        discount: gamma, or gamma ** duration `[T, N]`.
        lambda_: per transition.
    """
    delta = torch.where(terminated, reward, reward + discount * next_value) - value
    carry = torch.where(ended, 0.0, torch.as_tensor(discount * lambda_, dtype=delta.dtype, device=delta.device))
    return linear_recurrence(delta, carry, torch.zeros_like(delta[0]), reverse=True)


def next_values(
    value: Tensor, last_value: Tensor, final_value: Tensor, final_time: Tensor, final_env: Tensor
) -> Tensor:
    """V(s_{t+1}) of every transition `[T, N]`, given V(s_t) `[T, N]`.

    `last_value` `[N]` is that of the observations after the rollout, `final_value` `[K]` that of the final
    observations of episodes that were truncated at `final_time` `[K]` in `final_env` `[K]`.
    """
    following = torch.cat((value[1:], last_value[None]))
    following[final_time, final_env] = final_value
    return following


def linear_recurrence(term: Tensor, carry: Tensor, start: Tensor, *, reverse: bool = False) -> Tensor:
    """`y_t = term_t + carry_t y_{t-1}` from `y_{-1} = start`; in reverse, `y_t = term_t + carry_t y_{t+1}`.

    `term` and `carry` are `[T, N]`, `start` is `[N]`. A parallel scan (Hillis and Steele 1986): log2(T) operations on
    all rows instead of T on one row.
    """
    if reverse:
        return linear_recurrence(term.flip(0), carry.flip(0), start).flip(0)
    # Row t holds the sum, and the product of carries, over the `reach` rows up to t.
    total = torch.cat((torch.addcmul(term[:1], carry[:1], start), term[1:]))
    carry, reach = carry.clone(), 1
    while reach < len(term):
        total[reach:] += carry[reach:] * total[:-reach]  # the product is a new tensor: no aliasing
        carry[reach:] *= carry[:-reach].clone()
        reach *= 2
    return total
