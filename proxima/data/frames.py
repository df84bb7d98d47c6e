"""Stacks of images whose frames are stored once: where each frame of a stack lies, and the stack itself.

An observation of `F` frames is stored as its newest frame, one row a step. The others are the newest of earlier rows,
but none from before the episode's first, which stands in for them.
"""

import torch
from torch import Tensor


def stack_rows(row: Tensor, first: Tensor, frames: int) -> Tensor:
    """`[..., F]`: the rows of a stack whose newest frame is in `row` and whose episode began in row `first`."""
    age = torch.arange(frames - 1, -1, -1, device=row.device)
    return torch.maximum(row[..., None] - age, first[..., None])


def gather_stacks(stored: Tensor, index: Tensor) -> Tensor:
    """`[B, F * C, H, W]` out of frames `[R, C, H, W]`, oldest first, by their places `[B, F]`."""
    return stored[index].flatten(1, 2)


def newest(stacks: Tensor, frames: int) -> Tensor:
    """`[..., C, H, W]`, a view: the last frame of stacks `[..., F * C, H, W]`."""
    channels = stacks.shape[-3] // frames
    return stacks[..., -channels:, :, :]
