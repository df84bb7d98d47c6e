"""The last layer of a policy whose invalid choices are masked."""

import torch
from torch import Tensor, nn

from proxima.algo.distributions import LOWEST, masked, valid_choices


def masked_linear(linear: nn.Linear, features: Tensor, mask: Tensor | None, sizes: tuple[int, ...]) -> Tensor:
    """Outputs `[B, sum(sizes)]` in float32 for features `[B, F]`; `LOWEST` where the mask is false.

    A column of `sizes` choices that allows nothing, as in a final observation, counts as not masked.
    """
    if mask is None:
        return linear(features).float()
    valid = torch.cat([valid_choices(column) for column in mask.split(sizes, -1)], -1)
    if torch.is_autocast_enabled(features.device.type):  # to a dtype that may not have such low numbers
        return masked(linear(features).float(), valid)
    # As part of the bias, a mask does not change the code that is compiled for what follows, nor the order of its sums:
    # one that allows everything changes no bit.
    return torch.addmm(linear.bias + torch.where(valid, 0.0, LOWEST), features, linear.weight.t())
