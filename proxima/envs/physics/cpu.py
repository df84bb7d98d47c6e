"""Batched physics on the CPU: `mujoco.batch`, on native threads, in float64."""

import warnings
from typing import Any

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch, SimulationError
from torch import Tensor

from proxima.envs.physics.protocol import Physics
from proxima.errors import EnvFailure
from proxima.machine import available_cores

_CURRENT = int(mujoco.mjtStage.mjSTAGE_VEL)


class CpuPhysics(Physics):
    """Deterministic: results do not depend on the number of threads."""

    def __init__(self, model: mujoco.MjModel, num_worlds: int, *, num_threads: int | None = None) -> None:
        self.model, self.num_worlds = model, num_worlds
        self.device, self.dtype = torch.device("cpu"), torch.float64
        self.num_threads = min(num_threads or available_cores(), num_worlds)
        # Persistent: what is computed after a step, to be current, is used by the next one.
        self._batch = Batch(model, num_worlds, self.num_threads, persistent=True)
        self._blank = np.array(self._batch.state[0])
        self._fields: dict[str, Tensor] = {}
        self._expanded: dict[str, Tensor] = {}
        self.qpos, self.qvel, self.ctrl = (self.derived(name) for name in ("qpos", "qvel", "ctrl"))

    def derived(self, name: str) -> Tensor:
        """A live `[N, ...]` tensor of an MjData field."""
        if name not in self._fields:
            with warnings.catch_warnings():  # outputs are read-only for NumPy; nobody writes to them here
                warnings.simplefilter("ignore")
                self._fields[name] = torch.from_numpy(self._batch.bind(name))
        return self._fields[name]

    def step(self, count: int) -> None:
        """Take `count` substeps in every world."""
        try:
            self._batch.step(None, nstep=count, stage=_CURRENT)
        except SimulationError as error:
            raise EnvFailure(f"MuJoCo cannot go on: {self._batch.error(int(error.ids[0]))}") from error

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Restart the worlds in `mask`."""
        ids = mask.nonzero()[:, 0].numpy().astype(np.int32)
        if not len(ids):
            return
        self._batch.state[ids] = self._blank
        self.qpos[ids], self.qvel[ids] = qpos[ids].to(self.dtype), qvel[ids].to(self.dtype)
        self._batch.forward(ids, stage=_CURRENT)

    def per_world(self, name: str) -> Tensor:
        """A live `[N, ...]` tensor of a model field."""
        if name not in self._expanded:
            self._expanded[name] = torch.from_numpy(self._batch.expand(name))
        return self._expanded[name]

    def model_changed(self) -> None:
        """Recompute the constants that follow from model fields."""
        self._batch.set_const()

    def get_state(self) -> dict[str, Any]:
        """The integration state of every world, and the model fields that differ between worlds."""
        fields = {name: x.clone() for name, x in self._expanded.items()}
        return {"state": torch.from_numpy(np.array(self._batch.state)), "model": fields}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        for name, x in state["model"].items():
            self.per_world(name).copy_(x)
        if state["model"]:
            self.model_changed()
        self._batch.state[:] = state["state"].numpy()
        self._batch.forward(None, stage=_CURRENT)
