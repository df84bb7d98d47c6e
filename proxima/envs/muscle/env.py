"""The vector env of a muscle-driven body: 30 actions a second move joint targets, 480 torques a second follow them.

In hierarchical mode the env holds a frozen copy of the muscle network, which turns the torques into activations. For
the network's learner, `Step.aux` has one tuple per step, of one random substep: the muscles' moments, and the torque
asked of them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from mujoco import mjtStage
from mujoco.batch import Batch, SimulationError
from numpy.typing import NDArray
from torch import Tensor

from proxima.config.muscle_settings import parse_settings
from proxima.envs.contract import Obs
from proxima.envs.episodes import EpisodicVecEnv
from proxima.envs.hashed_random import hash32, hashed_uniform
from proxima.envs.muscle.body import Array, Joints, MuscleMap, load_model
from proxima.envs.muscle.control import Activations, StablePD
from proxima.envs.muscle.gait import make_reference
from proxima.errors import EnvFailure, UsageError
from proxima.machine import available_cores

MUSCLE = "muscle"
"""Name of the network for `set_weights`, and of its learner."""
_CURRENT = int(mjtStage.mjSTAGE_VEL)
_DERIVED = ("M", "qfrc_bias", "qfrc_constraint", "xpos", "actuator_length", "actuator_velocity", "actuator_moment")


class MuscleVecEnv(EpisodicVecEnv):
    """`num_envs` copies of a body that follows a reference motion, stepped on native threads.

    Args:
        num_threads: None is every core that this process may use, at most `num_envs`.
        device: Ignored: the physics is on the CPU.
        max_episode_steps: The time limit in control steps; None is that of the settings.
        num_envs: Number of envs.
        spread_episodes: See `EpisodicVecEnv`.
        **settings: What an env file says (`config.muscle_settings.MuscleSettings`), as nested mappings.
    """

    uses_numpy = True
    has_threads = True

    def __init__(
        self,
        *,
        num_envs: int = 1,
        num_threads: int | None = None,
        device: torch.device | str = "cpu",
        max_episode_steps: int | None = None,
        spread_episodes: bool = False,
        **settings: Any,
    ) -> None:
        self.settings = parse_settings(settings)
        limit = max_episode_steps or self.settings.max_episode_steps
        super().__init__(num_envs=num_envs, max_episode_steps=limit, spread_episodes=spread_episodes)
        control = self.settings.control
        self.step_seconds = 1.0 / control.rate
        self.is_hierarchical = control.mode == "hierarchical"
        step = 1.0 / control.simulation_rate
        self.model = load_model(self.settings.model, timestep=step, muscles=self.is_hierarchical)
        self.joints = Joints(self.model)
        self.reference = make_reference(self.settings, self.model, self.joints)
        self.num_threads = min(num_threads or available_cores(), num_envs)
        # Persistent: positions and velocities that are computed after a step are used by the next one.
        self._batch = Batch(self.model, num_envs, self.num_threads, persistent=True)
        self.qpos, self.qvel = self._batch.bind("qpos"), self._batch.bind("qvel")
        self.ctrl = self._batch.bind("ctrl") if self.is_hierarchical else self._batch.bind("qfrc_applied")
        used = _DERIVED if self.is_hierarchical else _DERIVED[:4]
        self._now = {name: self._batch.bind(name).reshape(num_envs, -1) for name in used}
        self._blank = np.array(self._batch.state[0])
        self._pd = StablePD(self.settings, self.model, self.joints)
        self._constraint = np.zeros((num_envs, self.model.nv))
        """Constraint forces of the last substep; a call that only computes positions does not keep them."""
        num_joints = len(self.joints.names)
        self.map, self.network = None, None
        if self.is_hierarchical:
            self.map = MuscleMap(self.model, self.joints)
            sizes = (len(self.map.joint), num_joints, self.map.num_muscles, self.settings.hidden_sizes)
            self.network = Activations(*sizes)
            self._entries = np.zeros((num_envs, len(self.map.joint)), np.float32)
            self._demand = np.zeros((num_envs, num_joints), np.float32)
            self._last: tuple[Array, Array] = (np.zeros(self._entries.shape), np.zeros(self._demand.shape))
        self.torque = np.zeros((num_envs, num_joints))
        """Desired torques of the last substep."""
        self._effort = np.zeros(num_envs)
        """Mean squared activation of the last step."""
        self._seeds = torch.zeros(num_envs, dtype=torch.int64)
        self._episode = torch.zeros(num_envs, dtype=torch.int64)
        self._phase = np.zeros(num_envs)
        self._feet = [self.model.body(name).id for name in self.settings.feet]
        self._root_z = 2 if self.joints.is_free else 1
        self._ground = 0.0 if self.joints.is_free else float(self.model.body_pos[self.joints.root_body, 2])
        up = np.array([0.0, 0.0, 1.0])
        self._upright: Array = _rotation(self.model.qpos0[None, 3:7])[0].T @ up if self._free else up
        self._obs, self._spare_obs = (np.zeros((num_envs, self._observation_size())) for _ in range(2))
        self._obs_tensor, self._spare_tensor = ({"obs": torch.from_numpy(x)} for x in (self._obs, self._spare_obs))
        infinite = np.inf
        self.observation_space = spaces.Dict({"obs": spaces.Box(-infinite, infinite, self._obs.shape[1:], np.float64)})
        self.action_space = spaces.Box(-infinite, infinite, (num_joints,), np.float32)

    @property
    def _free(self) -> bool:
        return self.joints.is_free

    # Networks --------------------------------------------------------------------------------------------------------

    def network_shape(self, name: str) -> dict[str, Any]:
        """What the muscle network and its learner need to know: places of A's entries `[E]`, and sizes."""
        if name != MUSCLE or self.map is None:
            raise UsageError(f"{self.settings.model} in {self.settings.control.mode} mode has no network {name!r}.")
        return {
            "joint": self.map.joint.tolist(),
            "muscle": self.map.muscle.tolist(),
            "num_joints": len(self.joints.names),
            "num_muscles": self.map.num_muscles,
            "hidden_sizes": list(self.settings.hidden_sizes),
        }

    def set_weights(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Use these weights of the muscle network from the next step on."""
        self.network_shape(name)
        assert self.network is not None
        self.network.set_weights(weights)

    def random_tuples(self, count: int, seed: int) -> dict[str, Tensor]:
        """Inputs and targets for a warm start `[count, ...]`: random states, and torques of random activations.

        The envs' states are used up: call it before `reset`.
        """
        assert self.map is not None
        rng, found = np.random.default_rng(seed), []
        for start in range(0, count, self.num_envs):
            ids = np.arange(min(self.num_envs, count - start), dtype=np.int32)
            self._batch.state[ids] = self._blank
            joints = self.joints
            self.qpos[np.ix_(ids, joints.qpos)] = rng.uniform(joints.low, joints.high, (len(ids), len(joints.qpos)))
            self.qvel[ids] = rng.normal(0.0, 2.0, (len(ids), self.model.nv))
            self._follow(ids)
            self._compute(ids)
            entries, _ = self._muscles()
            activation = rng.uniform(0.0, 1.0, (len(ids), self.map.num_muscles)) ** 2
            torque = (entries[ids] * activation[:, self.map.muscle]) @ self.map.sum_by_joint
            found.append((entries[ids], torque))
        columns = [torch.from_numpy(np.concatenate(x)).float() for x in zip(*found, strict=True)]
        return dict(zip(("muscle_entries", "muscle_torque"), columns, strict=True))

    # Episodes --------------------------------------------------------------------------------------------------------

    def _seed(self, seed: int | None) -> None:
        """Random numbers are a hash of seed, episode and step; without a seed, all seeds are 0."""
        if seed is not None:
            self._seeds = seed + torch.arange(self.num_envs)
            self._episode.fill_(-1)

    def _random(self, count: int) -> Array:
        """`[N, count]`, uniform in [0, 1)."""
        step = torch.from_numpy(np.asarray(self.episode_length))
        return hashed_uniform(hash32(self._seeds), self._episode, step, count).double().numpy()

    def _start(self, started: NDArray[np.bool_]) -> None:
        ids = _ids(started)
        self._episode += torch.from_numpy(started)
        start = self._random(1)[:, 0] if self.settings.reference.random_start else np.zeros(self.num_envs)
        self._phase[ids] = start[ids]
        reference, joints, phase = self.reference, self.joints, start[ids]
        self._batch.state[ids] = self._blank
        self.qpos[ids, self._root_z] = reference.at(reference.height, phase) - self._ground
        self.qpos[np.ix_(ids, joints.qpos)] = reference.at(reference.joints, phase)
        self.qvel[np.ix_(ids, joints.dof)] = reference.at(reference.velocity, phase)
        self.qvel[ids, self._root_z] = reference.at(reference.rise, phase)
        across = reference.forward * reference.speed
        if self._free:
            self.qvel[ids, :2] = across
        else:
            self.qvel[ids, 0] = across[0]
        self._follow(ids)
        self._constraint[ids] = 0.0
        self._compute(ids)

    def _follow(self, ids: NDArray[np.int32]) -> None:
        """Move the tied joints of these envs to where the others are."""
        if self.joints.are_tied:
            qpos, qvel = self.qpos[ids], self.qvel[ids]
            self.joints.follow(qpos, qvel)
            self.qpos[ids], self.qvel[ids] = qpos, qvel

    def _compute(self, ids: NDArray[np.int32] | None = None) -> None:
        """Make the derived fields those of the current state."""
        try:
            self._batch.forward(ids, stage=_CURRENT)
        except SimulationError as error:
            raise EnvFailure(f"MuJoCo cannot go on: {self._batch.error(int(error.ids[0]))}") from error

    def _advance(self, action: Tensor, moving: NDArray[np.bool_] | None) -> tuple[Array, NDArray[np.bool_] | None]:
        ids, rows = (None, slice(None)) if moving is None else (_ids(moving), moving)
        settings, reference = self.settings, self.reference
        duration = 1.0 / settings.control.rate
        phase = (self._phase + duration / reference.period) % 1.0
        self._phase = phase if moving is None else np.where(moving, phase, self._phase)
        target = reference.at(reference.joints, self._phase)
        target = target + settings.control.action_scale * action.numpy(force=True).astype(np.float64)
        before = self._across()
        effort = np.zeros(self.num_envs)
        chosen = (self._random(1)[:, 0] * settings.substeps).astype(np.int64)
        if moving is not None:
            chosen[~moving] = -1
        for substep in range(settings.substeps):
            effort += self._apply(target, kept=(chosen == substep).nonzero()[0])
            try:
                self._batch.step(ids, nstep=1, stage=_CURRENT)
            except SimulationError as error:
                raise EnvFailure(f"MuJoCo cannot go on: {self._batch.error(int(error.ids[0]))}") from error
            self._constraint[rows] = self._now["qfrc_constraint"][rows]
        self._effort = effort / (settings.substeps * max(1, self.model.nu))
        speed = (self._across() - before) / duration
        return np.nan_to_num(self._reward(speed)), self._fallen()

    def _apply(self, target: Array, *, kept: NDArray[np.int64]) -> Array:
        """Set the controls of one substep; returns the sum of squared activations `[N]`; stores tuples of `kept`."""
        now = self._now
        self.torque = self._pd.torque(
            target, self.qpos, self.qvel, mass=now["M"], bias=now["qfrc_bias"], constraint=self._constraint
        )
        if self.map is None or self.network is None:
            limit = self.settings.control.torque_limit
            torque = self.torque if limit is None else np.clip(self.torque, -limit, limit)
            self.ctrl[:, self.joints.dof] = torque
            return np.zeros(self.num_envs)
        entries, passive = self._last = self._muscles()
        demand = self.torque - passive
        activation = self.network(entries, demand)
        self.ctrl[:] = activation
        if len(kept):
            # Zeros of a diverged body: nothing can be learned from it.
            sane = np.isfinite(demand[kept].sum(1) + entries[kept].sum(1))[:, None]
            self._entries[kept] = np.where(sane, entries[kept], 0.0)
            self._demand[kept] = np.where(sane, demand[kept], 0.0)
        return np.square(activation).sum(1)

    def _muscles(self) -> tuple[Array, Array]:
        """Entries of A `[N, E]` and p `[N, J]` of the current state."""
        assert self.map is not None
        now = self._now
        return self.map(now["actuator_length"], now["actuator_velocity"], now["actuator_moment"], self.qpos)

    def _aux(self) -> dict[str, Tensor]:
        if self.map is None:
            return {}
        return {"muscle_entries": torch.from_numpy(self._entries), "muscle_torque": torch.from_numpy(self._demand)}

    # Task ------------------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> Array:
        """`[N]`, in the gait cycle, in [0, 1)."""
        return self._phase

    def delivered(self) -> Array:
        """`[N, J]`, torques of the driven joints in the last substep, of the muscles or as applied in direct mode."""
        if self.map is None:
            return self.ctrl[:, self.joints.dof]
        entries, passive = self._last
        return (entries * self.ctrl.take(self.map.muscle, 1)) @ self.map.sum_by_joint + passive

    @property
    def activation(self) -> Array:
        """`[N, M]`, of the last substep."""
        return self.ctrl

    def _across(self) -> Array:
        """How far each root has moved in the direction of the walk."""
        return self.qpos[:, :2] @ self.reference.forward if self._free else self.qpos[:, 0] * self.reference.forward[0]

    def _height(self) -> Array:
        return self.qpos[:, self._root_z] + self._ground

    def _tilt(self) -> Array:
        """Angle between the root and upright, rad."""
        if not self._free:
            return np.abs(self.qpos[:, 2])
        return np.arccos(np.clip((_rotation(self.qpos[:, 3:7]) @ self._upright)[:, 2], -1.0, 1.0))

    def _reward(self, speed: Array) -> Array:
        weight, reference, phase, joints = self.settings.reward, self.reference, self._phase, self.joints
        pose = self.qpos[:, joints.qpos] - reference.at(reference.joints, phase)
        velocity = self.qvel[:, joints.dof] - reference.at(reference.velocity, phase)
        body = self._now["xpos"].reshape(self.num_envs, -1, 3)
        feet = body[:, self._feet] - body[:, [joints.root_body]] - reference.at(reference.feet, phase)
        height = self._height() - reference.at(reference.height, phase)
        root = height**2 + self._tilt() ** 2 + 0.1 * (speed - reference.speed) ** 2
        factors = (
            (weight.pose, (pose**2).sum(1)),
            (weight.velocity, (velocity**2).sum(1)),
            (weight.end_effector, (feet**2).sum((1, 2))),
            (weight.root, root),
            (weight.metabolic, self._effort),
        )
        reward = np.ones(self.num_envs)
        for k, error in factors:
            if k:
                reward *= 0.1 + 0.9 * np.exp(-k * error)
        return reward

    def _fallen(self) -> NDArray[np.bool_]:
        """Too low or too tilted; NaN counts as fallen."""
        limits, reference = self.settings.termination, self.reference
        lowest = limits.height * reference.at(reference.height, self._phase)
        return ~((self._height() >= lowest) & (self._tilt() <= limits.tilt))

    def _observation_size(self) -> int:
        return (12 if self._free else 5) + 2 * len(self.joints.names) + 2

    def _observe(self, started: NDArray[np.bool_] | None = None) -> Obs:
        if started is not None:
            self._obs, self._spare_obs = self._spare_obs, self._obs
            self._obs_tensor, self._spare_tensor = self._spare_tensor, self._obs_tensor
        turn, joints = 2.0 * np.pi * self._phase[:, None], self.joints
        if self._free:
            rotation = _rotation(self.qpos[:, 3:7])
            ahead = np.append(self.reference.forward, 0.0)
            # Up and ahead as the root sees them, and its velocities.
            root = [rotation[:, 2], (rotation.transpose(0, 2, 1) @ ahead)[:, :2], self.qvel[:, :6]]
        else:
            root = [self.qpos[:, 2:3], self.qvel[:, :3]]
        parts = [self._height()[:, None], *root, self.qpos[:, joints.qpos], self.qvel[:, joints.dof]]
        np.concatenate((*parts, np.sin(turn), np.cos(turn)), axis=1, out=self._obs)
        if not np.isfinite(self._obs.sum()):  # the final observation of a diverged body
            self._obs[~np.isfinite(self._obs)] = 0.0
        return self._obs_tensor

    # State -----------------------------------------------------------------------------------------------------------

    def _get_world(self) -> dict[str, Any]:
        weights = {} if self.network is None else self.network.weights
        return {
            "physics": torch.from_numpy(np.array(self._batch.state)),
            "constraint": torch.from_numpy(self._constraint.copy()),
            "phase": torch.from_numpy(self._phase.copy()),
            "seeds": self._seeds.clone(),
            "episode": self._episode.clone(),
            "obs": torch.from_numpy(self._obs.copy()),
            "network": {name: x.clone() for name, x in weights.items()},
        }

    def _set_world(self, state: dict[str, Any]) -> Obs:
        if state["physics"].shape != self._batch.state.shape:
            raise UsageError(f"a state of another body or number of envs does not fit {self.settings.model}")
        self._batch.state[:] = state["physics"].numpy()
        self._constraint[:] = state["constraint"].numpy()
        self._phase = state["phase"].numpy().copy()
        self._seeds, self._episode = state["seeds"].clone(), state["episode"].clone()
        self._obs[:] = state["obs"].numpy()
        if state["network"] and self.network is not None:
            self.network.set_weights(state["network"])
        self._compute()
        return self._obs_tensor


def _ids(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    return mask.nonzero()[0].astype(np.int32)


def _rotation(quaternion: Array) -> Array:
    """`[N, 3, 3]` of quaternions `[N, 4]`, w first."""
    w, x, y, z = quaternion.T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), 2, 0)
