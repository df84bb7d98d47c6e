"""Learning rate schedules."""

import math


def scheduled(schedule: str, initial: float, progress: float) -> float:
    """The learning rate at `progress` (0 at the start, 1 at the end) of a schedule that is not adaptive."""
    if schedule == "linear":
        return initial * (1.0 - progress)
    if schedule == "cosine":
        # Down to 10%: with a cosine to zero, the last fifth of the run would hardly learn.
        return initial * (0.1 + 0.45 * (1.0 + math.cos(math.pi * progress)))
    return initial


def adapted(learning_rate: float, kl: float, desired_kl: float) -> float:
    """The adaptive schedule: divide by 1.5 if the KL is above twice the desired one, multiply if below half of it."""
    if kl > 2.0 * desired_kl:
        return min(learning_rate, max(1e-5, learning_rate / 1.5))
    if kl < 0.5 * desired_kl:
        return max(learning_rate, min(1e-2, learning_rate * 1.5))
    return learning_rate
