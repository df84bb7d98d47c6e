"""The interface of batched physics: N copies of one MuJoCo model, all of it as tensors on one device."""

from abc import ABC, abstractmethod
from typing import Any

import mujoco
import torch
from torch import Tensor


class Physics(ABC):
    """State and controls are live tensors: a write is seen by the next call."""

    model: mujoco.MjModel
    num_worlds: int
    device: torch.device
    dtype: torch.dtype
    """float64 in MuJoCo, float32 in MuJoCo Warp."""
    qpos: Tensor
    """`[N, nq]`."""
    qvel: Tensor
    """`[N, nv]`."""
    ctrl: Tensor
    """`[N, nu]`."""

    @abstractmethod
    def derived(self, name: str) -> Tensor:
        """A live `[N, ...]` tensor of an MjData field such as `sensordata`, as the last substep computed it.

        As after `mj_step`, it belongs to the state before that substep. A reset does not change it.
        """

    @abstractmethod
    def step(self, count: int, moving: Tensor | None = None) -> None:
        """Take `count` substeps in every world, or in those of `moving` `[N]`."""

    @abstractmethod
    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Restart the worlds in `mask` `[N]` from their rows of `qpos` `[N, nq]` and `qvel` `[N, nv]`."""

    @abstractmethod
    def per_world(self, name: str) -> Tensor:
        """A live `[N, ...]` tensor of a model field, such as `geom_friction`, which then differs between worlds.

        Only of the fields that the engine was built to vary. Call `model_changed` after writes to masses or places.
        """

    @abstractmethod
    def model_changed(self) -> None:
        """Recompute the constants that follow from model fields."""

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """A copy of everything that the next step depends on, model fields per world included."""

    @abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""

    def overflows(self) -> int | None:
        """In how many worlds contacts did not fit into memory, since the start; None if that cannot happen."""
        return None
