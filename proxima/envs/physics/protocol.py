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
    """float64 on the CPU, float32 on a GPU."""
    qpos: Tensor
    """`[N, nq]`."""
    qvel: Tensor
    """`[N, nv]`."""
    ctrl: Tensor
    """`[N, nu]`."""

    @abstractmethod
    def derived(self, name: str) -> Tensor:
        """A live `[N, ...]` tensor of an MjData field, such as `site_xpos` or `sensordata`.

        After `step` and `reset`, what depends on positions and velocities is current. Forces and accelerations are
        those of the last substep.
        """

    @abstractmethod
    def step(self, count: int) -> None:
        """Take `count` substeps in every world."""

    @abstractmethod
    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Restart the worlds in `mask` `[N]` from their rows of `qpos` `[N, nq]` and `qvel` `[N, nv]`."""

    @abstractmethod
    def per_world(self, name: str) -> Tensor:
        """A live `[N, ...]` tensor of a model field, such as `geom_friction`, which then differs between worlds.

        To be called before the first step. Call `model_changed` after writes to masses, inertias or positions.
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

    def close(self) -> None:
        """Free threads and memory. Calling it twice is harmless."""
        return
