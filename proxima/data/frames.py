"""Stacks of frames out of storage that keeps each frame once, by index arithmetic alone."""

import torch
from torch import Tensor


def frame_rows(row: Tensor, start: Tensor, frames: int) -> Tensor:
    """Rows `[..., frames]` of the frames that make up the observation of `row`, oldest first.

    Where the episode began in row `start`, less than `frames` ago, its first frame stands in for those before it.
    """
    back = torch.arange(frames - 1, -1, -1, device=row.device)
    return torch.maximum(row[..., None] - back, start[..., None])


def gather_frames(stored: Tensor, rows: Tensor, env: Tensor) -> Tensor:
    """Stacks `[B, frames * C, H, W]` out of frames `[R, N, C, H, W]`: those of `rows` `[B, frames]` of env `[B]`."""
    place = rows * stored.shape[1] + env[:, None]
    # Rows of one flat tensor: whole frames are copied at a time.
    stack = stored.flatten(0, 1).index_select(0, place.flatten())
    return stack.unflatten(0, rows.shape).flatten(1, 2)
