"""Stacks of images out of storage that keeps each frame once, by index arithmetic alone.

An observation of `F` frames is stored as its newest frame, one row a step. The others are the newest of earlier rows,
but none from before the episode's first, which stands in for them.
"""

import torch
from torch import Tensor


def frame_rows(row: Tensor, start: Tensor, frames: int) -> Tensor:
    """Rows `[..., F]` of the frames of the observation of `row`, oldest first, whose episode began in row `start`."""
    age = torch.arange(frames - 1, -1, -1, device=row.device)
    return torch.maximum(row[..., None] - age, start[..., None])


def gather_frames(stored: Tensor, rows: Tensor, env: Tensor) -> Tensor:
    """Stacks `[B, F * C, H, W]` out of frames `[R, N, C, H, W]`: those of `rows` `[B, F]` of env `[B]`."""
    return gather_stacks(stored.flatten(0, 1), rows * stored.shape[1] + env[:, None])


def gather_stacks(stored: Tensor, place: Tensor) -> Tensor:
    """The same out of frames `[R, C, H, W]`, by their places `[B, F]`."""
    # Rows of one flat tensor: whole frames are copied at a time.
    return stored.index_select(0, place.flatten()).unflatten(0, place.shape).flatten(1, 2)


def newest(stacks: Tensor, frames: int) -> Tensor:
    """`[..., C, H, W]`, a view: the last frame of stacks `[..., F * C, H, W]`; what is no stack, as it is."""
    return stacks if frames == 1 else stacks[..., -(stacks.shape[-3] // frames) :, :, :]
