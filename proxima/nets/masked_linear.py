"""The last layers of policies: in full precision, and with invalid choices masked."""

import torch
from torch import Tensor, nn

from proxima.algo.distributions import LOWEST, valid_choices


def full_precision_linear(linear: nn.Linear, features: Tensor) -> Tensor:
    """Outputs `[B, O]` in float32, also where autocast is on.

    In bf16, a value or Q would be rounded by up to 0.2 %. The layer is small beside those before it.
    """
    with torch.autocast(features.device.type, enabled=False):
        return linear(features.float())


def masked_linear(linear: nn.Linear, features: Tensor, mask: Tensor | None, sizes: tuple[int, ...]) -> Tensor:
    """Outputs `[B, sum(sizes)]` in float32 for features `[B, F]`; `LOWEST` where the mask is false.

    A column of `sizes` choices that allows nothing, as in a final observation, counts as not masked.
    """
    if mask is None:
        return full_precision_linear(linear, features)
    valid = torch.cat([valid_choices(column) for column in mask.split(sizes, -1)], -1)
    # As part of the bias, a mask does not change the code that is compiled for what follows, nor the order of its sums:
    # one that allows everything changes no bit.
    with torch.autocast(features.device.type, enabled=False):
        return torch.addmm(linear.bias + torch.where(valid, 0.0, LOWEST), features.float(), linear.weight.t())
