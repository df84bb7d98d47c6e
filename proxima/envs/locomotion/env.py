"""The quadruped's vector env: observation, reward, termination and curriculum as functions of tensors.

It runs on any `Physics`; everything here is vectorised torch without a loop over envs.
"""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from proxima.envs.contract import Obs
from proxima.envs.episodes import EpisodicVecEnv
from proxima.envs.hashed_random import hash32, hashed_uniform
from proxima.envs.locomotion import settings as options
from proxima.envs.locomotion.robot import LEGS, STANCE, build_model
from proxima.envs.locomotion.terrain import Terrain, make_terrain
from proxima.envs.physics.cpu import CpuPhysics
from proxima.errors import UsageError

JOINTS = 12
SCAN_X, SCAN_Y = (-0.45, 1.2, 12), (-0.75, 0.75, 11)
"""Scandots: from, to, count, metres ahead of and beside the trunk."""
_SIGMA = 0.25
_NOMINAL_HEIGHT = 0.3
_EPISODE_SECONDS = 20.0
_TIMESTEP = 0.005
# Draws per step: [command 4, push 3, noise 45, heights 132].
_SCANDOTS = SCAN_X[2] * SCAN_Y[2]
_SCALES = {"velocity": 2.0, "turn": 0.25, "joint_velocity": 0.05, "height": 2.5}


class Quadruped(EpisodicVecEnv):
    """A robot dog with 12 joints that follows velocity commands over terrain.

    Observation: `proprioception` (45: linear and angular velocity, gravity, joint angles and velocities, last action),
    `scandots` (132: ground below, on a grid ahead), `commands` (3). Action: 12 joint targets around the stance.

    Args:
        num_threads: Threads of the physics; None is all cores.
        max_episode_steps: None is 20 seconds.
        num_envs: Number of robots.
        device: Ignored for now: the physics is on the CPU.
        spread_episodes: See `EpisodicVecEnv`.
        **settings: `settings.QuadrupedSettings`, as nested mappings.
    """

    has_threads = True
    episode_info = ("level", "tracking_error", "fell")

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
        self.settings = options.parse(settings)
        limit = max_episode_steps or round(_EPISODE_SECONDS * self.settings.control.rate)
        super().__init__(num_envs=num_envs, max_episode_steps=limit, spread_episodes=spread_episodes)
        self.step_seconds = self._dt = 1.0 / self.settings.control.rate
        ground = self.settings.ground
        self.terrain: Terrain | None = None
        if ground.kind == "rough":
            self.terrain = make_terrain(
                ground.shares, num_levels=ground.levels, num_columns=ground.columns, tile_size=ground.tile_size, seed=0
            )
        self.model = build_model(self.settings, self.terrain)
        self.physics = CpuPhysics(self.model, num_envs, num_threads=num_threads)
        self.num_threads = self.physics.num_threads
        self._substeps = max(1, round(self._dt / _TIMESTEP))
        self._contact, self._torque = (self.physics.derived(name) for name in ("sensordata", "actuator_force"))
        self._friction = self.physics.per_world("geom_friction")
        self._mass = self.physics.per_world("body_mass")
        self._foot_geoms = [self.model.geom(f"{leg}_foot").id for leg in LEGS]
        self._trunk = self.model.body("trunk").id
        dtype = self.physics.dtype
        self._stance = torch.tensor(STANCE, dtype=dtype)
        low, high = torch.from_numpy(self.model.jnt_range[1:].copy()).T
        middle, half = 0.5 * (low + high), 0.45 * (high - low)
        self._low, self._high = middle - half, middle + half
        x, y = (torch.linspace(a, b, n, dtype=dtype) for a, b, n in (SCAN_X, SCAN_Y))
        self._grid = torch.cartesian_prod(x, y)  # [132, 2]
        noise = [0.1] * 3 + [0.2] * 3 + [0.05] * 3 + [0.01] * 12 + [1.5] * 12
        scale = [_SCALES["velocity"]] * 3 + [_SCALES["turn"]] * 3 + [1.0] * 15 + [_SCALES["joint_velocity"]] * 12
        self._noise_scale, self._obs_scale = torch.tensor([noise, scale], dtype=dtype)
        self._seeds = self._hashed = torch.zeros(num_envs, dtype=torch.int64)
        self._episode = torch.zeros(num_envs, dtype=torch.int64)
        zeros = torch.zeros(num_envs, dtype=dtype)
        self._world: dict[str, Tensor] = {
            "command": zeros[:, None].repeat(1, 3),
            "action": zeros[:, None].repeat(1, JOINTS),
            "joint_velocity": zeros[:, None].repeat(1, JOINTS),
            "air_time": zeros[:, None].repeat(1, 4),
            "start": zeros[:, None].repeat(1, 2),
            "commanded": zeros.clone(),
            "error": zeros.clone(),
            "level": torch.zeros(num_envs, dtype=torch.int64),
        }
        self._fell = self._never.clone()
        sizes = {"proprioception": 9 + 3 * JOINTS, "scandots": _SCANDOTS, "commands": 3}
        boxes = {key: spaces.Box(-np.inf, np.inf, (size,), np.float32) for key, size in sizes.items()}
        self.observation_space = spaces.Dict(boxes)
        self.action_space = spaces.Box(-np.inf, np.inf, (JOINTS,), np.float32)

    # Episodes --------------------------------------------------------------------------------------------------------

    def _seed(self, seed: int | None) -> None:
        """Random numbers are a hash of seed, episode and step; without a seed, all seeds are 0."""
        if seed is None:
            return
        self._seeds = seed + torch.arange(self.num_envs)
        self._hashed = hash32(self._seeds)
        self._episode.fill_(-1)
        ground, draw = self.settings.ground, hashed_uniform(self._hashed, self._episode, self._episode, 3)
        most = min(ground.start_level, ground.levels - 1)
        self._world["level"] = (draw[:, 0] * (most + 1)).long()
        low, high = self.settings.randomise.friction
        self._friction[:, self._foot_geoms, 0] = (low + (high - low) * draw[:, 1:2]).to(self.physics.dtype)
        extra = self.settings.randomise.payload * (2.0 * draw[:, 2] - 1.0)
        self._mass[:, self._trunk] = self.model.body_mass[self._trunk] + extra
        self.physics.model_changed()

    def _random(self, count: int) -> Tensor:
        return hashed_uniform(self._hashed, self._episode, self.episode_length, count).to(self.physics.dtype)

    def _start(self, started: Tensor) -> None:
        world, ground = self._world, self.settings.ground
        if self.terrain is not None and ground.curriculum:
            world["level"] = torch.where(started & (self._episode >= 0), self._next_level(), world["level"])
        self._episode += started
        draw = self._random(4)
        qpos = torch.from_numpy(self.model.qpos0.copy()).repeat(self.num_envs, 1)
        qpos[:, 7:] = self._stance
        place = torch.zeros(self.num_envs, 2, dtype=self.physics.dtype)
        if self.terrain is not None:
            column = torch.arange(self.num_envs) % ground.columns
            place = self.terrain.start(world["level"], column).to(self.physics.dtype) + draw[:, :2] - 0.5
        qpos[:, :2] = place
        qpos[:, 2] = _NOMINAL_HEIGHT + self._ground_height(place[:, 0], place[:, 1])
        yaw = 2.0 * torch.pi * draw[:, 2] if not self.settings.commands.only_forward else torch.zeros_like(draw[:, 2])
        qpos[:, 3], qpos[:, 6] = (0.5 * yaw).cos(), (0.5 * yaw).sin()
        self.physics.reset(started, qpos, torch.zeros(self.num_envs, self.model.nv, dtype=self.physics.dtype))
        rows = started[:, None]
        for name in ("action", "joint_velocity", "air_time"):
            world[name] = world[name].masked_fill(rows, 0.0)
        for name in ("commanded", "error"):
            world[name] = world[name].masked_fill(started, 0.0)
        world["start"] = torch.where(rows, place, world["start"])
        world["command"] = torch.where(rows, self._new_command(), world["command"])

    def _next_level(self) -> Tensor:
        """Up after half a tile, down after less than half of what was commanded; past the top a random level."""
        ground, world = self.settings.ground, self._world
        walked = (self.physics.qpos[:, :2] - world["start"]).norm(dim=1)
        up = walked > 0.5 * ground.tile_size
        down = (walked < 0.5 * world["commanded"]) & ~up
        level = (world["level"] + up.long() - down.long()).clamp(min=0)
        anywhere = (hashed_uniform(self._hashed, self._episode, self._episode, 1)[:, 0] * ground.levels).long()
        return torch.where(level >= ground.levels, anywhere, level)

    def _new_command(self) -> Tensor:
        commands, draw = self.settings.commands, self._random(8)[:, 4:]
        if commands.only_forward:
            forward = 0.3 + (commands.forward - 0.3) * draw[:, :1]
            return torch.cat((forward, torch.zeros_like(draw[:, :2])), 1)
        limits = torch.tensor([commands.forward, commands.sideways, commands.turn], dtype=draw.dtype)
        return (2.0 * draw[:, :3] - 1.0) * limits * (draw[:, 3:] >= commands.standing)

    # One step --------------------------------------------------------------------------------------------------------

    def _advance(self, action: Tensor, moving: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if moving is not None and not bool(moving.all()):
            raise UsageError("actions cannot be held on this env: leave out action_hold_seconds.")
        world, physics, dtype = self._world, self.physics, self.physics.dtype
        action = action.to("cpu", dtype)
        physics.ctrl[:] = self._stance + self.settings.control.action_scale * action
        self._push()
        physics.step(self._substeps)
        reward = self._reward(action)
        velocity = self._trunk_frame(physics.qvel[:, :3])
        world["error"] += (velocity[:, :2] - world["command"][:, :2]).norm(dim=1)
        world["commanded"] += world["command"][:, :2].norm(dim=1) * self._dt
        world["action"], world["joint_velocity"] = action, physics.qvel[:, 6:].clone()
        every = round(self.settings.commands.seconds / self._dt)
        due = (self.episode_length % every == 0)[:, None]
        world["command"] = torch.where(due, self._new_command(), world["command"])
        x, y, z = physics.qpos[:, :3].T
        low = z - self._ground_height(x, y) < self.settings.min_height
        tilted = self._gravity()[:, 2] > -np.cos(self.settings.max_tilt)
        self._fell = low | tilted
        return reward, self._fell

    def _push(self) -> None:
        push = self.settings.randomise
        if not push.push_speed:
            return
        due = self.episode_length % round(push.push_seconds / self._dt) == 0
        kick = push.push_speed * (2.0 * self._random(10)[:, 8:] - 1.0)
        self.physics.qvel[:, :2] = torch.where(due[:, None], kick, self.physics.qvel[:, :2])

    def _reward(self, action: Tensor) -> Tensor:
        """The weighted sum of the terms `[N]`."""
        weight, world, physics = self.settings.rewards, self._world, self.physics
        velocity, turn = self._trunk_frame(physics.qvel[:, :3]), physics.qvel[:, 3:6]  # the latter is in that frame
        command, gravity = world["command"], self._gravity()
        joint, joint_velocity = physics.qpos[:, 7:], physics.qvel[:, 6:]
        touching = self._contact.view(self.num_envs, 4, 4)[:, :, 0] > 0
        air_time = world["air_time"] + self._dt
        landed = touching & (air_time > self._dt)
        moves = command[:, :2].norm(dim=1) > 0.1
        world["air_time"] = air_time.masked_fill(touching, 0.0)
        acceleration = (world["joint_velocity"] - joint_velocity) / self._dt
        beyond = (self._low - joint).clamp(min=0) + (joint - self._high).clamp(min=0)
        off = (command[:, :2] - velocity[:, :2]).square().sum(1)
        total = (
            weight.tracking_velocity * (-off / _SIGMA).exp()
            + weight.tracking_turn * (-(command[:, 2] - turn[:, 2]).square() / _SIGMA).exp()
            + weight.vertical_velocity * velocity[:, 2].square()
            + weight.roll_pitch_rate * turn[:, :2].square().sum(1)
            + weight.tilt * gravity[:, :2].square().sum(1)
            + weight.torque * self._torque.square().sum(1)
            + weight.joint_acceleration * acceleration.square().sum(1)
            + weight.action_rate * (action - world["action"]).square().sum(1)
            + weight.air_time * ((air_time - 0.5) * landed).sum(1) * moves
            + weight.joint_limits * beyond.sum(1)
        )
        return total.clamp(min=0.0) if weight.clip_at_zero else total

    def _info(self) -> dict[str, Tensor]:
        steps = self.episode_length.clamp(min=1)
        return {
            "level": self._world["level"].double(),
            "tracking_error": self._world["error"].double() / steps,
            "fell": self._fell.double(),
        }

    @property
    def qpos(self) -> Tensor:
        """`[N, nq]`."""
        return self.physics.qpos

    # Geometry --------------------------------------------------------------------------------------------------------

    def _ground_height(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.zeros_like(x) if self.terrain is None else self.terrain.height(x, y).to(x.dtype)

    def _trunk_frame(self, vector: Tensor) -> Tensor:
        """World vectors `[N, 3]` as the trunk sees them."""
        w, axis = self.physics.qpos[:, 3:4], self.physics.qpos[:, 4:7]
        cross = torch.linalg.cross(axis, vector)
        return vector - 2.0 * w * cross + 2.0 * torch.linalg.cross(axis, cross)

    def _gravity(self) -> Tensor:
        """Direction of gravity as the trunk sees it `[N, 3]`; (0, 0, -1) when level."""
        down = torch.zeros_like(self.physics.qpos[:, :3])
        down[:, 2] = -1.0
        return self._trunk_frame(down)

    def scan_points(self) -> Tensor:
        """`[N, 132, 2]`: where the scandots are, on a grid that turns with the robot."""
        w, x, y, z = self.physics.qpos[:, 3:7].T
        yaw = torch.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))[:, None]
        gx, gy = self._grid.T
        ahead, beside = gx * yaw.cos() - gy * yaw.sin(), gx * yaw.sin() + gy * yaw.cos()
        return torch.stack((ahead, beside), -1) + self.physics.qpos[:, None, :2]

    def _observe(self, started: Tensor | None = None) -> Obs:
        physics, world, size = self.physics, self._world, self.num_envs
        draw = self._random(10 + 33 + _SCANDOTS)[:, 10:] if self.settings.randomise.noise else None
        parts = [
            self._trunk_frame(physics.qvel[:, :3]),
            physics.qvel[:, 3:6],
            self._gravity(),
            physics.qpos[:, 7:] - self._stance,
            physics.qvel[:, 6:],
        ]
        points = self.scan_points()
        ground = self._ground_height(points[..., 0].flatten(), points[..., 1].flatten()).view(size, _SCANDOTS)
        heights = physics.qpos[:, 2:3] - _NOMINAL_HEIGHT - ground
        sensed = torch.cat(parts, 1)
        if draw is not None:
            noise = self.settings.randomise.noise * (2.0 * draw - 1.0)
            sensed = sensed + noise[:, :33] * self._noise_scale
            heights = heights + 0.1 * noise[:, 33:] * (self.terrain is not None)
        return {
            "proprioception": torch.cat((sensed * self._obs_scale, world["action"]), 1).float(),
            "scandots": (_SCALES["height"] * heights.clamp(-1.0, 1.0)).float(),
            "commands": world["command"].float(),
        }

    # State -----------------------------------------------------------------------------------------------------------

    def _get_world(self) -> dict[str, Any]:
        return {
            "physics": self.physics.get_state(),
            "world": {name: x.clone() for name, x in self._world.items()},
            "seeds": self._seeds.clone(),
            "episode": self._episode.clone(),
        }

    def _set_world(self, state: dict[str, Any]) -> Obs:
        self.physics.set_state(state["physics"])
        self._world = {name: x.clone() for name, x in state["world"].items()}
        self._seeds, self._episode = state["seeds"].clone(), state["episode"].clone()
        self._hashed = hash32(self._seeds)
        return self._observe()
