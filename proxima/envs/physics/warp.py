"""Batched physics on a GPU: MuJoCo Warp, in float32, every substep a CUDA graph. On the CPU, slowly, for tests."""

from collections.abc import Callable, Sequence
from typing import Any

import mujoco
import torch
from torch import Tensor

from proxima.cuda_graphs import recording
from proxima.envs.physics.protocol import Physics
from proxima.errors import UsageError

try:
    import mujoco_warp
    import warp
except ImportError as _error:
    raise UsageError(
        f'physics on a GPU needs MuJoCo Warp ({_error}): pip install "proxima-rl[gpu]", or use --device cpu.'
    ) from None

_STATE = ("qpos", "qvel", "ctrl", "qacc_warmstart", "time")
_Overflow = mujoco_warp.OverflowType
# Without the limits of the solver's iterations, which are no mistake.
_NO_ROOM = int(_Overflow.ALL & ~(_Overflow.ITERATIONS | _Overflow.LS_ITERATIONS))
# What `set_const` computes from masses and actuators: it differs between worlds if these do.
_CONSTANTS = ("body_subtreemass", "body_invweight0", "dof_invweight0", "actuator_acc0")


def capture(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Launches of Warp as a CUDA graph: what runs it on torch's stream. The kernels must have been loaded."""
    with warp.ScopedDevice(str(device)), warp.ScopedCapture() as captured:
        work()

    def launch() -> None:
        warp.capture_launch(captured.graph, stream=warp.stream_from_torch(torch.cuda.current_stream(device)))

    return launch


def launch_or_record(launch: Callable[[], None]) -> None:
    """Launch work of Warp now, or in every replay of the tape that is being recorded."""
    if (tape := recording()) is not None:
        tape.outside(launch)
    else:
        launch()


class WarpPhysics(Physics):
    """Tensors share the memory of Warp's arrays. Not deterministic to the last bit, unless it is asked to be."""

    def __init__(
        self,
        model: mujoco.MjModel,
        num_worlds: int,
        *,
        device: torch.device | str,
        varying: Sequence[str] = (),
        max_contacts: int = 32,
        max_constraints: int = 96,
        deterministic: bool = False,
    ) -> None:
        """Memory is for `max_contacts` per world, on average over the worlds, and `max_constraints` in every world."""
        self.model, self.num_worlds = model, num_worlds
        self.device, self.dtype = torch.device(device), torch.float32
        warp.config.log_level = warp.LOG_WARNING
        model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)  # Warp never restarts a simulation
        with warp.ScopedDevice(str(self.device)):
            sizes = dict.fromkeys((*varying, *(_CONSTANTS if varying else ())), num_worlds)
            self._model = mujoco_warp.put_model(model, batch_sizes=sizes)
            self._model.opt.warn_overflow = 0  # it would print from the kernel in every step; see `problems`
            self._model.opt.deterministic = deterministic
            self._data = mujoco_warp.put_data(
                model, mujoco.MjData(model), nworld=num_worlds, nconmax=max_contacts, njmax=max_constraints
            )
        self._varying = tuple(varying)
        self._tensors: dict[str, Tensor] = {}
        self._graphs: dict[int, Callable[[], None]] = {}
        self.qpos, self.qvel, self.ctrl = (self.derived(name) for name in ("qpos", "qvel", "ctrl"))

    def derived(self, name: str) -> Tensor:
        """A live `[N, ...]` tensor of an MjData field."""
        return self._tensor(self._data, name)

    def per_world(self, name: str) -> Tensor:
        """A live `[N, ...]` tensor of a model field."""
        assert name in self._varying
        return self._tensor(self._model, name)

    def _tensor(self, owner: Any, name: str) -> Tensor:
        if name not in self._tensors:
            self._tensors[name] = warp.to_torch(getattr(owner, name))
        return self._tensors[name]

    def step(self, count: int, moving: Tensor | None = None) -> None:
        """Take `count` substeps in every world, or in those of `moving` `[N]`."""
        if moving is not None:
            before = {name: self.derived(name).clone() for name in {*_STATE, *self._tensors} - {*self._varying}}
            self.step(count)
            for name, x in before.items():
                rows = moving.view(-1, *[1] * (x.ndim - 1))
                self.derived(name).copy_(torch.where(rows, self.derived(name), x))
            return
        launch_or_record(self._launch(count))

    def _launch(self, count: int) -> Callable[[], None]:
        if self.device.type == "cpu":
            return lambda: self._substeps(count)
        if count not in self._graphs:
            self._graphs[count] = self._capture(count)
        return self._graphs[count]

    def _substeps(self, count: int) -> None:
        with warp.ScopedDevice(str(self.device)):
            for _ in range(count):
                mujoco_warp.step(self._model, self._data)

    def _capture(self, count: int) -> Callable[[], None]:
        """A CUDA graph of `count` substeps; compiles and loads the kernels in a step that is undone."""
        before = {name: self.derived(name).clone() for name in (*_STATE, *self._tensors)}
        self._substeps(1)
        launch = capture(lambda: self._substeps(count), self.device)
        for name, x in before.items():
            self.derived(name).copy_(x)
        torch.cuda.synchronize(self.device)
        return launch

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Restart the worlds in `mask`; without synchronisation."""
        rows = mask[:, None]
        self.qpos.copy_(torch.where(rows, qpos, self.qpos))
        self.qvel.copy_(torch.where(rows, qvel, self.qvel))
        for name in ("ctrl", "qacc_warmstart"):
            self.derived(name).masked_fill_(rows, 0.0)
        self.derived("time").masked_fill_(mask, 0.0)

    def model_changed(self) -> None:
        """Recompute the constants that follow from model fields."""
        with warp.ScopedDevice(str(self.device)):
            mujoco_warp.set_const(self._model, self._data)

    def get_state(self) -> dict[str, Any]:
        """State and fields, copied."""
        fields = set(self._tensors) - set(self._varying)
        return {
            "state": {name: self.derived(name).clone() for name in (*_STATE, *sorted(fields - set(_STATE)))},
            "model": {name: self.per_world(name).clone() for name in self._varying},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        for name, x in state["model"].items():
            self.per_world(name).copy_(x)
        if state["model"]:
            self.model_changed()
        for name, x in state["state"].items():
            self.derived(name).copy_(x)

    def overflows(self) -> int | None:
        """In how many worlds contacts or constraints did not fit, since the start; reads from the GPU."""
        return int((warp.to_torch(self._data.overflow) & _NO_ROOM != 0).sum())
