"""Physics of N copies of one MuJoCo model, so that a task sees only whole `[N, ...]` arrays.

Not here: what is observed or rewarded (the task files), and when an episode ends (`env.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError
from numpy.typing import NDArray

from proxima.errors import EnvFailure

Array = NDArray[Any]
STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)


class Physics(ABC):
    """`nstep` substeps of every simulation at once, bit for bit as `mj_step` on one MjData each would give."""

    qpos: Array  # [N, nq]
    qvel: Array  # [N, nv]
    ctrl: Array  # [N, nu], float64: written before `step`

    @abstractmethod
    def bind(self, name: str) -> Array:
        """A live `[N, size]` array of an MjData field, each simulation's values flattened."""

    @abstractmethod
    def step(self) -> None:
        """Advance every simulation under the controls in `ctrl`."""

    @abstractmethod
    def reset(self, ids: Array, qpos: Array, qvel: Array) -> None:
        """Start the simulations `ids` (sorted) afresh from the given positions and velocities."""

    @abstractmethod
    def get_state(self) -> Array:
        """A copy of every simulation's full integration state, `[N, nstate]`."""

    @abstractmethod
    def set_state(self, state: Array) -> None:
        """Put a state of `get_state` back. Derived fields are current again only after the next call."""

    @abstractmethod
    def close(self) -> None:
        """Stop the threads. Calling it twice is harmless."""


class BatchPhysics(Physics):
    """All simulations in one native call of `mujoco.batch`."""

    def __init__(self, model: mujoco.MjModel, *, num_envs: int, num_threads: int, nstep: int) -> None:
        self._batch = Batch(model, num_envs, num_threads)
        self._num_envs, self._nstep = num_envs, nstep
        self.qpos, self.qvel, self.ctrl = (self._batch.bind(name) for name in ("qpos", "qvel", "ctrl"))

    def bind(self, name: str) -> Array:
        """A live `[N, size]` array of an MjData field, each simulation's values flattened."""
        return self._batch.bind(name).reshape(self._num_envs, -1)

    def step(self) -> None:
        """Advance every simulation under the controls in `ctrl`."""
        try:
            self._batch.step(nstep=self._nstep)
        except SimulationError as error:
            raise failure(error.ids, self._batch.error(int(error.ids[0]))) from error

    def reset(self, ids: Array, qpos: Array, qvel: Array) -> None:
        """Start the simulations `ids` (sorted) afresh from the given positions and velocities."""
        try:
            self._batch.reset(ids, stage=mujoco.mjtStage.mjSTAGE_NONE)
            self.qpos[ids] = qpos
            self.qvel[ids] = qvel
            self._batch.forward(ids)
        except SimulationError as error:
            raise failure(error.ids, self._batch.error(int(error.ids[0]))) from error

    def get_state(self) -> Array:
        """A copy of every simulation's full integration state, `[N, nstate]`."""
        return np.array(self._batch.state)

    def set_state(self, state: Array) -> None:
        """Put a state of `get_state` back. Derived fields are current again only after the next call."""
        self._batch.state[:] = state

    def close(self) -> None:
        """Nothing to do: the batch stops its threads when it is collected."""


class ContactForcePhysics(Physics):
    """As `BatchPhysics`, and with `cfrc_ext`: one MjData a simulation, on Python threads.

    Gymnasium calls `mj_rnePostConstraint` after each step, which `mujoco.batch` does not offer. `mj_step` gives up the
    interpreter lock, and takes long enough for the models concerned that what remains in Python costs a few percent.
    """

    def __init__(self, model: mujoco.MjModel, *, num_envs: int, num_threads: int, nstep: int) -> None:
        self._model, self._nstep = model, nstep
        self._data = [mujoco.MjData(model) for _ in range(num_envs)]
        self._copies: list[list[tuple[Array, Array]]] = [[] for _ in range(num_envs)]  # (ours, MjData's) per field
        self._helpers = ThreadPoolExecutor(max_workers=max(1, num_threads - 1), thread_name_prefix="mujoco")
        self._num_helpers = num_threads - 1  # the calling thread works as well
        self._failed: list[tuple[int, str]] = []
        self.qpos, self.qvel, self.ctrl = (self.bind(name) for name in ("qpos", "qvel", "ctrl"))

    def bind(self, name: str) -> Array:
        """A live `[N, size]` array of an MjData field, each simulation's values flattened."""
        fields = [getattr(data, name).reshape(-1) for data in self._data]  # views, valid as long as the MjData
        out = np.array(fields)
        for copies, ours, theirs in zip(self._copies, out, fields, strict=True):
            copies.append((ours, theirs))
        return out

    def step(self) -> None:
        """Advance every simulation under the controls in `ctrl`."""
        model, nstep = self._model, self._nstep

        def advance(i: int) -> None:
            data = self._data[i]
            data.ctrl = self.ctrl[i]
            mujoco.mj_step(model, data, nstep)
            mujoco.mj_rnePostConstraint(model, data)
            for ours, theirs in self._copies[i]:
                np.copyto(ours, theirs)

        self._each(range(len(self._data)), advance)

    def reset(self, ids: Array, qpos: Array, qvel: Array) -> None:
        """Start the simulations `ids` (sorted) afresh from the given positions and velocities."""
        self.qpos[ids] = qpos
        self.qvel[ids] = qvel

        def restart(i: int) -> None:
            data = self._data[i]
            mujoco.mj_resetData(self._model, data)
            data.qpos = self.qpos[i]
            data.qvel = self.qvel[i]
            mujoco.mj_forward(self._model, data)
            for ours, theirs in self._copies[i]:
                np.copyto(ours, theirs)

        self._each(ids.tolist(), restart)

    def get_state(self) -> Array:
        """A copy of every simulation's full integration state, `[N, nstate]`."""
        state = np.empty((len(self._data), mujoco.mj_stateSize(self._model, STATE)))
        for data, row in zip(self._data, state, strict=True):
            mujoco.mj_getState(self._model, data, row, STATE)
        return state

    def set_state(self, state: Array) -> None:
        """Put a state of `get_state` back. Derived fields are current again only after the next call."""
        for data, row in zip(self._data, state, strict=True):
            mujoco.mj_setState(self._model, data, row, STATE)

    def close(self) -> None:
        """Stop the threads. Calling it twice is harmless."""
        self._helpers.shutdown()

    def _each(self, ids: range | list[int], work: Callable[[int], None]) -> None:
        """Do `work` for each of `ids`; the threads take the next one from a shared iterator as they become free."""
        queue = iter(ids)
        helpers = [self._helpers.submit(self._drain, queue, work) for _ in range(min(self._num_helpers, len(ids) - 1))]
        self._drain(queue, work)
        for helper in helpers:
            helper.result()
        if self._failed:
            failed, self._failed = sorted(self._failed), []
            raise failure([i for i, _ in failed], failed[0][1])

    def _drain(self, queue: Iterator[int], work: Callable[[int], None]) -> None:
        for i in queue:
            try:
                work(i)
            except mujoco.FatalError as error:
                self._failed.append((i, str(error)))


def failure(ids: Array | list[int], message: str) -> EnvFailure:
    """The error for simulations in which MuJoCo itself gave up."""
    named = ", ".join(str(i) for i in ids[:8]) + (", ..." if len(ids) > 8 else "")
    return EnvFailure(f"MuJoCo cannot go on in env {named}: {' '.join(message.split())}")
