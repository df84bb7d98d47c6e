"""From joint targets to torques, and from torques to activations, for all envs at once."""

import itertools
from collections.abc import Mapping, Sequence

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxima.config.muscle_settings import INPUT_SCALE, LEAK, MuscleSettings
from proxima.envs.muscle.body import Array, Joints, mass_places
from proxima.errors import UsageError


class StablePD:
    """PD control whose damping acts on the velocity at the end of the step (Tan, Liu and Turk 2011).

    `tau = Kp (target - q - h qd) - Kd (qd + h qdd)`, with the acceleration that these torques would cause:
    `qdd = (M + h Kd)^-1 (f - C + Kp (target - q - h qd) - Kd qd)`, f the constraint forces of the last step. As in
    MASS, the passive damping of the joints is not part of it.
    """

    def __init__(self, settings: MuscleSettings, model: mujoco.MjModel, joints: Joints) -> None:
        control, own = settings.control, [settings.joints.get(name) for name in joints.names]
        self.kp = np.array([control.kp if j is None or j.kp is None else j.kp for j in own])
        default = [control.kv if j is None or j.kv is None else j.kv for j in own]
        pairs = zip(default, self.kp, strict=True)
        self.kv = np.array([np.sqrt(2.0 * kp) if kv is None else kv for kv, kp in pairs])
        self._step, self._joints, self._root = model.opt.timestep, joints, joints.num_root
        self._at, self._dofs = _as_slice(joints.qpos), _as_slice(joints.dof)
        self._places, self._size = mass_places(model), model.nv
        self._mass = np.zeros((0, 0))
        damping = np.zeros(len(joints.independent))
        damping[self._root :] = self._step * self.kv
        self._damping = np.diag(damping)

    def torque(self, target: Array, qpos: Array, qvel: Array, *, mass: Array, bias: Array, constraint: Array) -> Array:
        """Torques `[N, J]` towards targets `[N, J]`; `mass` is MuJoCo's sparse M `[N, nM]`, forces are `[N, nv]`."""
        joints, h = self._joints, self._step
        q, qd = qpos[:, self._at], qvel[:, self._dofs]
        pull = self.kp * (target - q - h * qd) - self.kv * qd
        if len(self._mass) != len(mass):
            self._mass = np.zeros((len(mass), mass.shape[1] + 1))  # the last column stays zero
        self._mass[:, :-1] = mass
        dense = self._mass.take(self._places, 1).reshape(-1, self._size, self._size)
        force = constraint - bias
        if joints.are_tied:
            basis = joints.basis(qpos)
            turned = basis.transpose(0, 2, 1)
            dense, force = turned @ dense @ basis, (turned @ force[:, :, None])[:, :, 0]
        force[:, self._root :] += pull
        acceleration = np.linalg.solve(dense + self._damping, force[:, :, None])[:, self._root :, 0]
        return pull - h * self.kv * acceleration


def _as_slice(index: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """A slice where the indices are consecutive: taking columns by it copies nothing."""
    first, count = int(index[0]), len(index)
    return slice(first, first + count) if (index == first + np.arange(count)).all() else index


class Activations:
    """A frozen copy of the muscle network. In torch, whose threads follow the phase of training, unlike NumPy's."""

    def __init__(self, num_entries: int, num_joints: int, num_muscles: int, hidden_sizes: Sequence[int]) -> None:
        sizes = [num_entries + num_joints, *hidden_sizes, num_muscles]
        self.weights: dict[str, Tensor] = {}
        for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            self.weights |= {
                f"layers.{i}.weight": torch.zeros(outputs, inputs),
                f"layers.{i}.bias": torch.zeros(outputs),
            }
        self._layers = len(sizes) - 1
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights of a `MuscleNet`: `layers.N.weight` and `layers.N.bias`."""
        found, wanted = ({name: tuple(x.shape) for name, x in some.items()} for some in (weights, self.weights))
        if found != wanted:
            raise UsageError(f"weights {found} are not those of a muscle network with {wanted}.")
        self.weights = {name: x.detach().to("cpu", torch.float32, copy=True) for name, x in weights.items()}
        if not all(bool(x.isfinite().all()) for x in self.weights.values()):
            raise UsageError("the muscle network has weights that are NaN or infinite.")
        self._pairs = [
            (self.weights[f"layers.{i}.weight"].T, self.weights[f"layers.{i}.bias"]) for i in range(self._layers)
        ]

    @torch.no_grad()
    def __call__(self, entries: Array, torque: Array) -> NDArray[np.float32]:
        """Activations `[N, M]` for entries of A `[N, E]` and torques `[N, J]`."""
        if not self._pairs:
            raise UsageError(
                "the muscles have no network yet: train with algorithm PPO+muscle (--env-file chooses it), or hand the "
                "env the weights of muscle.pt by set_weights."
            )
        x = torch.from_numpy(np.concatenate((entries, torque), 1, dtype=np.float32, casting="same_kind"))
        x /= INPUT_SCALE
        for weight, bias in self._pairs[:-1]:
            x = torch.nn.functional.leaky_relu_(torch.addmm(bias, x, weight), LEAK)
        weight, bias = self._pairs[-1]
        return torch.addmm(bias, x, weight).tanh_().relu_().numpy()
