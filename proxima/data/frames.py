"""Frame stacks rebuilt from storage that holds each frame once, by index arithmetic.

An observation of `F` stacked frames is stored as its newest frame, one row per step. The older frames are the newest of
earlier rows; before the first row of the episode, its first frame is repeated.
"""

import torch
from torch import Tensor


def frame_rows(row: Tensor, start: Tensor, frames: int) -> Tensor:
    """Rows `[..., F]` of the frames of the observation in `row`, oldest first; its episode began in row `start`."""
    age = torch.arange(frames - 1, -1, -1, device=row.device)
    return torch.maximum(row[..., None] - age, start[..., None])


def gather_stacks(stored: Tensor, place: Tensor) -> Tensor:
    """Stacks `[B, F * C, H, W]` of the frames `[R, C, H, W]` at rows `place` `[B, F]`."""
    # One flat index_select copies complete frames.
    return stored.index_select(0, place.flatten()).unflatten(0, place.shape).flatten(1, 2)


def newest(stacks: Tensor, frames: int) -> Tensor:
    """The last frame `[..., C, H, W]` of stacks `[..., F * C, H, W]`, a view; the input itself if `frames` is 1."""
    return stacks if frames == 1 else stacks[..., -(stacks.shape[-3] // frames) :, :, :]
