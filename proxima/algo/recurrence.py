"""First-order linear recurrences over time: what PPO's targets need of a loop over steps."""

import torch
from torch import Tensor


def linear_recurrence(term: Tensor, carry: Tensor, start: Tensor, *, reverse: bool = False) -> Tensor:
    """`y_t = term_t + carry_t y_{t-1}` from `y_{-1} = start`; in reverse, `y_t = term_t + carry_t y_{t+1}`.

    By doubling (Hillis and Steele 1986): log2(T) operations on whole tensors instead of T on rows.

    Args:
        term: `[T, N]`.
        carry: `[T, N]`.
        start: `[N]`.
        reverse: run from the last row to the first.
    """
    if reverse:
        return linear_recurrence(term.flip(0), carry.flip(0), start).flip(0)
    # Row t holds the sum, and the product of carries, of the `reach` rows that end with it.
    total = torch.cat((torch.addcmul(term[:1], carry[:1], start), term[1:]))
    carry, reach = carry.clone(), 1
    while reach < len(term):
        total[reach:] += carry[reach:] * total[:-reach]  # the product is a new tensor: nothing is read after its change
        carry[reach:] *= carry[:-reach].clone()
        reach *= 2
    return total
