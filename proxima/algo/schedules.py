"""Learning rate schedules."""

import math

import torch
from torch import Tensor


def scheduled(schedule: str, initial: float, progress: float) -> float:
    """The learning rate at `progress` (0 at the start, 1 at the end) of a schedule that is not adaptive."""
    if schedule == "linear":
        return initial * (1.0 - progress)
    if schedule == "cosine":
        # Down to 10%: with a cosine to zero, the last fifth of the run would hardly learn.
        return initial * (0.1 + 0.45 * (1.0 + math.cos(math.pi * progress)))
    return initial


def adapted(learning_rate: Tensor, kl: Tensor, desired_kl: float) -> Tensor:
    """The adaptive schedule: divide by 1.5 if the KL is above twice the desired one, multiply if below half of it.

    Scalars on the device, in float64: no branch on the host, which would wait for the device in every epoch.
    """
    rate, kl = learning_rate.double(), kl.double()
    lower = torch.minimum(rate, (rate / 1.5).clamp(min=1e-5))
    higher = torch.maximum(rate, (rate * 1.5).clamp(max=1e-2))
    return torch.where(kl > 2.0 * desired_kl, lower, torch.where(kl < 0.5 * desired_kl, higher, rate))
