"""Physics of N copies of one MuJoCo model; tasks read and write `[N, ...]` arrays.

Not here: observations and rewards (`tasks.py`), and when an episode ends (`episodes.py`).
"""

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
FEW = 16
"""Up to this number of simulations, a serial loop is faster than waking the batch's threads."""


class Physics:
    """Runs `nstep` substeps of every simulation in one native call, bit-identical to `mj_step` on separate MjData.

    `qpos [N, nq]`, `qvel [N, nv]` and `ctrl [N, nu]` are live views of the state; `ctrl` is written before `step`.
    """

    def __init__(self, model: mujoco.MjModel, *, num_envs: int, num_threads: int, nstep: int) -> None:
        self._batch = Batch(model, num_envs, num_threads)
        self._num_envs, self._nstep = num_envs, nstep
        self._blank = np.zeros(self._batch.nstate)  # a state row after `mj_resetData`
        mujoco.mj_getState(model, mujoco.MjData(model), self._blank, STATE)
        self.qpos: Array = self._batch.bind("qpos")
        self.qvel: Array = self._batch.bind("qvel")
        self.ctrl: Array = self._batch.bind("ctrl")

    def bind(self, name: str) -> Array:
        """A live `[N, size]` array of an MjData field, each simulation's values flattened."""
        return self._batch.bind(name).reshape(self._num_envs, -1)

    def step(self, ids: Array | None = None) -> None:
        """Advance every simulation, or those of `ids` (int32, sorted), under the controls in `ctrl`."""
        try:
            self._batch.step(ids, nstep=self._nstep)
        except SimulationError as error:
            raise failure(error.ids, self._batch.error(int(error.ids[0]))) from error

    def reset(self, ids: Array, qpos: Array, qvel: Array) -> None:
        """Restart the simulations `ids` (sorted) from the given positions and velocities."""
        self._batch.state[ids] = self._blank
        self.qpos[ids] = qpos
        self.qvel[ids] = qvel
        try:
            for part in [ids] if len(ids) > FEW else ids[:, None]:
                self._batch.forward(part)
        except SimulationError as error:
            raise failure(error.ids, self._batch.error(int(error.ids[0]))) from error

    def get_state(self) -> Array:
        """A copy of every simulation's full integration state, `[N, nstate]`."""
        return np.array(self._batch.state)

    def set_state(self, state: Array) -> None:
        """Restore a state of `get_state`. Derived fields are not updated before the next step or reset."""
        self._batch.state[:] = state

    def close(self) -> None:
        """Nothing to do: the batch stops its threads when it is garbage-collected."""


class ContactForcePhysics(Physics):
    """`Physics` with `cfrc_ext`: `mj_step` and `mj_rnePostConstraint` on Python threads.

    Gymnasium calls `mj_rnePostConstraint` after each step, which `mujoco.batch` does not support. `mj_step` releases
    the GIL, and takes so long for these models that the overhead of Python is a few percent. The batch only stores the
    state rows; as in the batch, each thread has one MjData, which stays in the core's cache.
    """

    def __init__(self, model: mujoco.MjModel, *, num_envs: int, num_threads: int, nstep: int) -> None:
        super().__init__(model, num_envs=num_envs, num_threads=1, nstep=nstep)
        self._model = model
        self._rows = list(self._batch.state)
        self._data = [mujoco.MjData(model) for _ in range(num_threads)]
        self._derived: dict[str, Array] = {}
        self._copies: list[list[tuple[Array, Array]]] = [[] for _ in self._data]  # by thread: (ours [N, ...], MjData's)
        self._helpers = ThreadPoolExecutor(num_threads, thread_name_prefix="mujoco")
        self._failed: list[tuple[int, str]] = []

    def bind(self, name: str) -> Array:
        """A live `[N, size]` array of a derived MjData field, each simulation's values flattened."""
        if name not in self._derived:
            sources = [getattr(data, name) for data in self._data]  # views, valid as long as the MjData
            out = self._derived[name] = np.zeros((self._num_envs, *sources[0].shape))
            for copies, source in zip(self._copies, sources, strict=True):
                copies.append((out, source))
        return self._derived[name].reshape(self._num_envs, -1)

    def step(self, ids: Array | None = None) -> None:
        """Advance every simulation, or those of `ids` (int32, sorted), under the controls in `ctrl`."""
        model, nstep, rows = self._model, self._nstep, self._rows

        def advance(i: int, data: mujoco.MjData) -> None:
            mujoco.mj_setState(model, data, rows[i], STATE)
            mujoco.mj_step(model, data, nstep)
            mujoco.mj_rnePostConstraint(model, data)

        self._each(range(self._num_envs) if ids is None else ids.tolist(), advance)

    def reset(self, ids: Array, qpos: Array, qvel: Array) -> None:
        """Restart the simulations `ids` (sorted) from the given positions and velocities."""
        self.qpos[ids] = qpos
        self.qvel[ids] = qvel

        def restart(i: int, data: mujoco.MjData) -> None:
            mujoco.mj_resetData(self._model, data)
            data.qpos = self.qpos[i]
            data.qvel = self.qvel[i]
            mujoco.mj_forward(self._model, data)

        self._each(ids.tolist(), restart)

    def close(self) -> None:
        """Stop the threads. Calling it twice is harmless."""
        self._helpers.shutdown()

    def _each(self, ids: range | list[int], work: Callable[[int, Any], None]) -> None:
        """Do `work` for each of `ids`; every thread, including this one, takes the next id when it is free."""
        queue = iter(ids)
        others = range(1, min(len(self._data), len(ids)))
        helpers = [self._helpers.submit(self._drain, queue, work, thread) for thread in others]
        self._drain(queue, work, 0)
        for helper in helpers:
            helper.result()
        if self._failed:
            failed, self._failed = sorted(self._failed), []
            raise failure([i for i, _ in failed], failed[0][1])

    def _drain(self, queue: Iterator[int], work: Callable[[int, Any], None], thread: int) -> None:
        model, data, copies, rows = self._model, self._data[thread], self._copies[thread], self._rows
        for i in queue:
            try:
                work(i, data)
            except mujoco.FatalError as error:
                mujoco.mj_resetData(model, data)  # the error left MuJoCo's stack in use
                self._failed.append((i, str(error)))
                continue
            mujoco.mj_getState(model, data, rows[i], STATE)
            for ours, theirs in copies:
                ours[i] = theirs


def failure(ids: Array | list[int], message: str) -> EnvFailure:
    """The error for simulations in which MuJoCo raised a fatal error."""
    named = ", ".join(str(i) for i in ids[:8]) + (", ..." if len(ids) > 8 else "")
    return EnvFailure(f"MuJoCo cannot go on in env {named}: {' '.join(message.split())}")
