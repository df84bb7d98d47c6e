"""Batched physics on the CPU: `mujoco.batch`, on native threads, in float64."""

import warnings
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch, SimulationError
from torch import Tensor

from proxima.envs.physics.protocol import Physics
from proxima.errors import EnvFailure
from proxima.machine import available_cores


class CpuPhysics(Physics):
    """Deterministic: results do not depend on the number of threads."""

    def __init__(
        self, model: mujoco.MjModel, num_worlds: int, *, varying: Sequence[str] = (), num_threads: int | None = None
    ) -> None:
        self.model, self.num_worlds = model, num_worlds
        self.device, self.dtype = torch.device("cpu"), torch.float64
        self.num_threads = min(num_threads or available_cores(), num_worlds)
        # A simulation that fails is not restarted silently: its owner sees NaN, as on a GPU.
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        self._batch = Batch(model, num_worlds, self.num_threads, persistent=True)
        self._blank = np.array(self._batch.state[0])
        self._fields: dict[str, Tensor] = {}
        self._varying = {name: torch.from_numpy(self._batch.expand(name)) for name in varying}
        self.qpos, self.qvel, self.ctrl = (self.derived(name) for name in ("qpos", "qvel", "ctrl"))

    def derived(self, name: str) -> Tensor:
        """A live `[N, ...]` tensor of an MjData field."""
        if name not in self._fields:
            with warnings.catch_warnings():  # outputs are read-only for NumPy; nobody writes to them here
                warnings.simplefilter("ignore")
                self._fields[name] = torch.from_numpy(self._batch.bind(name))
        return self._fields[name]

    def step(self, count: int, moving: Tensor | None = None) -> None:
        """Take `count` substeps in every world, or in those of `moving` `[N]`."""
        ids = None if moving is None else moving.nonzero()[:, 0].numpy().astype(np.int32)
        try:
            self._batch.step(ids, nstep=count)
        except SimulationError as error:
            raise EnvFailure(f"MuJoCo cannot go on: {self._batch.error(int(error.ids[0]))}") from error

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Restart the worlds in `mask`."""
        ids = mask.nonzero()[:, 0].numpy().astype(np.int32)
        if len(ids):
            self._batch.state[ids] = self._blank
            self.qpos[ids], self.qvel[ids] = qpos[ids].to(self.dtype), qvel[ids].to(self.dtype)

    def per_world(self, name: str) -> Tensor:
        """A live `[N, ...]` tensor of a model field."""
        return self._varying[name]

    def model_changed(self) -> None:
        """Recompute the constants that follow from model fields."""
        self._batch.set_const()

    def get_state(self) -> dict[str, Any]:
        """The integration state of every world, what was derived from it, and the fields that differ between worlds."""
        return {
            "state": torch.from_numpy(np.array(self._batch.state)),
            "derived": {name: x.clone() for name, x in self._fields.items()},
            "model": {name: x.clone() for name, x in self._varying.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        for name, x in state["model"].items():
            self._varying[name].copy_(x)
        if state["model"]:
            self.model_changed()
        self._batch.state[:] = state["state"].numpy()
        for name, x in state["derived"].items():
            self.derived(name).copy_(x)
