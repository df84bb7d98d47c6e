"""Generators in and out of a checkpoint."""

from torch import Generator, Tensor


def restore_generator(generator: Generator, state: Tensor, *, otherwise: int) -> bool:
    """Put a state back; one of another kind of device does not fit, and the generator is seeded instead.

    Returns whether it fitted.
    """
    fits = state.numel() == generator.get_state().numel()
    if fits:
        generator.set_state(state.cpu())
    else:
        generator.manual_seed(otherwise)
    return fits
