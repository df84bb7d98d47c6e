"""The quadruped's vector env: observation, termination and starts as functions of tensors.

It runs on any `Physics`, on the CPU or a GPU; everything here is vectorised torch without a loop over envs and without
synchronisation.
"""

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from proxima.envs.contract import Obs
from proxima.envs.episodes import EpisodicVecEnv
from proxima.envs.hashed_random import hash32, hashed_uniform
from proxima.envs.locomotion import settings as options
from proxima.envs.locomotion.curriculum import BySuccess, by_distance, followed
from proxima.envs.locomotion.mirror import quadruped_mirror
from proxima.envs.locomotion.rewards import TERMS, Transition, needs_feet, reward
from proxima.envs.locomotion.robot import (
    FOOT_RADIUS,
    JOINTS,
    NOMINAL_HEIGHT,
    STANCE,
    TIMESTEP,
    Motion,
    Sensors,
    build_model,
    foot_places,
)
from proxima.envs.locomotion.senses import SCAN_Y, Senses
from proxima.envs.locomotion.terrain import Terrain, make_terrain
from proxima.envs.locomotion.variation import NUM_DRAWS, NUM_TRAITS, make_physics, vary

_EPISODE_SECONDS = 20.0
# Columns of the random numbers of a step: 4 for a start, then for a level, a command, a push, and noise.
_LEVEL, _COMMAND, _PUSH, _NOISE = 4, 5, 9, 11
_TOO_FAST = 200.0
"""rad/s or m/s: the physics has failed."""


class Quadruped(EpisodicVecEnv):
    """A robot dog with 12 joints that follows velocity commands over terrain.

    Observation: `proprioception` (45: linear and angular velocity, gravity, joint angles and velocities, last action),
    `scandots` (132: ground below, on a grid ahead), `commands` (3); by settings also `depth` and `privileged`. Action:
    12 joint targets around the stance.

    Args:
        num_threads: Threads of MuJoCo on the CPU; None is all cores.
        max_episode_steps: None is 20 seconds.
        num_envs: Number of robots.
        device: Of the physics and of all tensors.
        spread_episodes: See `EpisodicVecEnv`.
        **settings: `settings.QuadrupedSettings`, as nested mappings.
    """

    has_threads = True
    picture_keywords = ("width", "height", "draw_scandots")

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
        super().__init__(num_envs=num_envs, device=device, max_episode_steps=limit, spread_episodes=spread_episodes)
        self.step_seconds = self._dt = 1.0 / self.settings.control.rate
        self._substeps = max(1, round(self._dt / TIMESTEP))
        ground = self.settings.ground
        self.terrain: Terrain | None = None
        if ground.kind == "rough":
            self.terrain = make_terrain(
                ground.shares,
                num_levels=ground.levels,
                num_columns=ground.columns,
                tile_size=ground.tile_size,
                seed=ground.seed,
            )
        self.model = build_model(self.settings, self.terrain)
        self.physics = make_physics(self.model, num_envs, self.device, self.settings.engine, num_threads)
        self.num_threads = getattr(self.physics, "num_threads", None)
        self.sensors = Sensors(self.physics)
        if self.terrain is not None:
            self.terrain = self.terrain.to(self.device)
        self.senses = Senses(self.settings, self.physics, self.sensors, self.terrain)
        self._make_constants()
        self._make_state()
        self.observation_space = self.senses.space
        self.mirror = quadruped_mirror(self.observation_space, scan_width=SCAN_Y[2])
        self.action_space = spaces.Box(-np.inf, np.inf, (JOINTS,), np.float32)

    def _make_constants(self) -> None:
        ground, size, commands = self.settings.ground, self.num_envs, self.settings.commands
        self._stance = self._constant(STANCE)
        low, high = self._constant(self.model.jnt_range[1:].T)
        middle, half = 0.5 * (low + high), 0.45 * (high - low)
        self._limits = middle - half, middle + half
        self._most = self._constant([commands.forward, commands.sideways, commands.turn])
        self._first_qpos = self._constant(self.model.qpos0).repeat(size, 1)
        self._first_qpos[:, 7:] = self._stance
        self._at_rest = torch.zeros_like(self.physics.qvel)
        self._number = torch.arange(size, device=self.device)  # of every robot, out of all robots
        names = list(dict.fromkeys(self.terrain.kinds)) if self.terrain is not None else []
        self._kind_of_column = torch.tensor(
            [names.index(kind) for kind in self.terrain.kinds] if self.terrain is not None else [0], device=self.device
        )
        self._kinds = torch.arange(len(names), device=self.device)
        self._by_success = BySuccess(max(1, len(names)), ground, self.device)
        self.episode_info = ("level", "success", "tracking", "tracking_error", "fell", "power")
        self._info_by_kind = tuple(f"{what}_{kind}" for what in ("level", "success") for kind in names)
        self.episode_info += self._info_by_kind

    def _constant(self, values: Any) -> Tensor:
        return torch.as_tensor(np.array(values), dtype=self.physics.dtype, device=self.device)

    def _make_state(self) -> None:
        size, device, dtype = self.num_envs, self.device, self.physics.dtype
        self._seeds = self._hashed = torch.zeros(size, dtype=torch.int64, device=device)
        self._episode = torch.zeros(size, dtype=torch.int64, device=device)
        shapes = {
            "command": 3,
            "ideal": 3,
            "action": JOINTS,
            "joint_velocity": JOINTS,
            "air_time": 4,
            "start": 2,
            "target": JOINTS,
        }
        self._world = {name: torch.zeros(size, width, dtype=dtype, device=device) for name, width in shapes.items()}
        self._needs_feet = needs_feet(self.settings.rewards)
        self._world["foot"] = torch.zeros(size, 4 if self._needs_feet else 0, 2, dtype=dtype, device=device)
        for name in ("tracking", "error", "power"):
            self._world[name] = torch.zeros(size, dtype=dtype, device=device)
        for name in ("level", "column"):
            self._world[name] = torch.zeros(size, dtype=torch.int64, device=device)
        self._traits = torch.zeros(size, NUM_TRAITS, dtype=dtype, device=device)
        self._latency = torch.zeros(size, dtype=torch.int64, device=device)
        self._motion = Motion.of(self.physics)
        self._fell = self._never.clone()
        self._failures = self._never.sum()
        self._roll()

    # Episodes --------------------------------------------------------------------------------------------------------

    def become_part(self, first: int, total: int) -> None:
        """Be a part of a larger set of robots: their ground, and when they take images, follow from their numbers."""
        super().become_part(first, total)
        self._number = first + torch.arange(self.num_envs, device=self.device)
        self.senses.set_first_robot(first)

    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env."""
        self._drawn = False
        return super().reset(seed)

    def _seed(self, seed: int | None) -> None:
        """Random numbers are a hash of seed, episode and step; without a seed, all seeds are 0."""
        if seed is not None:
            self._seeds = seed + torch.arange(self.num_envs, device=self.device)
        self._hashed = hash32(self._seeds)
        self._episode = torch.full_like(self._episode, -1)
        draw = hashed_uniform(self._hashed, self._episode, self._episode, 1 + NUM_DRAWS).to(self.physics.dtype)
        ground = self.settings.ground
        random_start = self.terrain is not None and ground.curriculum != "success"
        highest = min(ground.start_level, ground.levels - 1) if random_start else 0
        self._world["level"] = (draw[:, 0] * (highest + 1)).long()
        self._world["column"] = self._number % ground.columns
        self._by_success.clear()
        self._traits, self._latency, delay = vary(self.physics, self.settings, draw[:, 1:])
        self.senses.restart(delay)

    def _roll(self) -> None:
        """Draw the random numbers of this step: a start in this step uses them, too."""
        count = _NOISE + self.senses.num_draws
        draw = hashed_uniform(self._hashed, self._episode, self.episode_length, count)
        self._draw, self._drawn = draw.to(self.physics.dtype), True

    def _start(self, started: Tensor) -> None:
        world, rows = self._world, started[:, None]
        if not self._drawn:
            self._roll()
        draw = self._draw
        self._choose_tiles(started, draw)
        self._episode = self._episode + started
        qpos = self._first_qpos.clone()
        place = qpos[:, :2]
        if self.terrain is not None:
            place = self.terrain.start(world["level"], world["column"]).to(qpos.dtype) + draw[:, :2] - 0.5
        yaw = 2.0 * math.pi * draw[:, 2] * (not self.settings.commands.only_forward)
        qpos[:, :2], qpos[:, 2] = place, NOMINAL_HEIGHT + self._ground_height(place)
        qpos[:, 3], qpos[:, 6] = (0.5 * yaw).cos(), (0.5 * yaw).sin()
        self.physics.reset(started, qpos, self._at_rest)
        self._motion = self._motion.restarted(rows, self._stance)
        for name in ("action", "joint_velocity", "air_time", "ideal"):
            world[name] = world[name].masked_fill(rows, 0.0)
        for name in ("tracking", "error", "power"):
            world[name] = world[name].masked_fill(started, 0.0)
        world["target"] = torch.where(rows, self._stance, world["target"])
        world["start"] = torch.where(rows, place, world["start"])
        world["foot"] = torch.where(rows[..., None], self._feet()[..., :2], world["foot"])
        world["command"] = torch.where(rows, self._new_command(draw[:, _COMMAND:]), world["command"])
        self.senses.begin(started, self._motion)

    def _choose_tiles(self, started: Tensor, draw: Tensor) -> None:
        """Column and level of the robots that start an episode."""
        ground, world = self.settings.ground, self._world
        if self.terrain is None:
            return
        kind = self._kind  # of the episode that ended
        if (self.total_envs or self.num_envs) < ground.columns:  # few robots see every kind in turn
            column = (draw[:, 3] * ground.columns).long()
            world["column"] = torch.where(started, column, world["column"])
        again, extra, level = started & (self._episode >= 0), draw[:, _LEVEL], world["level"]
        if ground.level is not None:
            level = torch.full_like(level, ground.level)
        elif ground.curriculum == "distance":
            walked = (self.physics.qpos[:, :2] - world["start"]).norm(dim=1)
            anywhere = (extra * ground.levels).long()
            commanded = world["ideal"][:, :2].norm(dim=1)
            after = by_distance(level, walked, commanded, self._fell, anywhere, ground)
            level = torch.where(again, after, level)
        elif ground.curriculum == "success":
            self._by_success.record(kind, level, again, self._success())
            level = torch.where(started, self._by_success.levels(self._kind, extra), level)
        world["level"] = level

    @property
    def _kind(self) -> Tensor:
        """`[N]`: which of the kinds of ground every robot is on."""
        return self._kind_of_column[self._world["column"]]

    def _new_command(self, draw: Tensor) -> Tensor:
        """Commands `[N, 3]` of random numbers `[N, 4]`."""
        commands = self.settings.commands
        if commands.only_forward:
            forward = 0.3 + (commands.forward - 0.3) * draw[:, :1]
            return torch.cat((forward, torch.zeros_like(draw[:, :2])), 1)
        return (2.0 * draw[:, :3] - 1.0) * self._most * (draw[:, 3:4] >= commands.standing)

    # One step --------------------------------------------------------------------------------------------------------

    def _advance(self, action: Tensor, moving: Tensor | None) -> tuple[Tensor, Tensor | None]:
        self._roll()
        before = dict(self._world)
        action = action.to(self.device, self.physics.dtype)
        self._push(moving)
        self._move(action, moving)
        step = self._transition(action)
        self._fell = step.fell if moving is None else torch.where(moving, step.fell, self._fell)
        total = reward(step)
        self._record(step)
        if moving is not None:  # robots that wait stay as they are
            for name, old in before.items():
                rows = moving.view(-1, *[1] * (old.ndim - 1))
                self._world[name] = torch.where(rows, self._world[name], old)
        self.senses.record(self._motion, moving)
        self.senses.take_images(self._hashed, self._episode, self.episode_length)
        return total, step.fell

    def _move(self, action: Tensor, moving: Tensor | None) -> None:
        """Follow the joint targets of the action, which take effect after the robot's latency."""
        world, physics = self._world, self.physics
        target = self._stance + self.settings.control.action_scale * action
        if self.settings.control.latency[1] == 0.0:
            physics.ctrl.copy_(target)
            physics.step(self._substeps, moving)
        else:
            for substep in range(self._substeps):
                late = (self._latency > substep)[:, None]
                physics.ctrl.copy_(torch.where(late, world["target"], target))
                physics.step(1, moving)
        world["target"] = target

    def _transition(self, action: Tensor) -> Transition:
        """The step that the physics just took."""
        world, qpos, settings = self._world, self.physics.qpos, self.settings
        failed = self._stop_failures()
        motion = self._motion = Motion.of(self.physics)
        fell = failed | (qpos[:, 2] - self._ground_height(qpos[:, :2]) < settings.min_height)
        fell = fell | (motion.gravity[:, 2] > -math.cos(settings.max_tilt))
        if settings.end_on_trunk_contact:
            fell = fell | self.sensors.trunk
        foot = self._feet()
        return Transition(
            motion=motion,
            command=world["command"],
            action=action,
            last_action=world["action"],
            last_joint_velocity=world["joint_velocity"],
            torque=self.sensors.torque.masked_fill(failed[:, None], 0.0),
            touching=self.sensors.touching,
            colliding=self.sensors.colliding,
            air_time=world["air_time"] + self._dt,
            foot=foot,
            foot_velocity=(foot[..., :2] - world["foot"]) / self._dt,
            foot_height=foot[..., 2] - FOOT_RADIUS - self._ground_height(foot[..., :2]),
            fell=fell,
            limits=self._limits,
            stance=self._stance,
            options=settings.rewards,
            dt=self._dt,
        )

    def _feet(self) -> Tensor:
        """`[N, 4, 3]`, in the world; without feet if no reward needs them."""
        return foot_places(self.physics.qpos) if self._needs_feet else self.physics.qpos[:, None, :3][:, :0]

    def _stop_failures(self) -> Tensor:
        """`[N]` bool: the physics of these robots failed (by NaN, or far too fast). They are put at rest, and fall."""
        qpos, qvel = self.physics.qpos, self.physics.qvel
        failed = ~((qvel.abs().amax(1) < _TOO_FAST) & qpos.isfinite().all(1))
        self.physics.reset(failed, self._first_qpos, self._at_rest)
        self._failures = self._failures + failed.sum()
        return failed

    def _record(self, step: Transition) -> None:
        """Remember what the next step and the statistics of the episode need."""
        world, motion = self._world, step.motion
        world["tracking"] = world["tracking"] + TERMS["tracking_velocity"](step)
        world["error"] = world["error"] + (motion.velocity[:, :2] - step.command[:, :2]).norm(dim=1)
        world["power"] = world["power"] + TERMS["power"](step)
        world["ideal"] = followed(world["ideal"], step.command, self._dt)
        world["air_time"] = step.air_time.masked_fill(step.touching, 0.0)
        world["action"], world["joint_velocity"] = step.action, motion.joint_velocity
        world["foot"] = step.foot[..., :2]
        every = round(self.settings.commands.seconds / self._dt)
        due = (self.episode_length % every == 0)[:, None]
        world["command"] = torch.where(due, self._new_command(self._draw[:, _COMMAND:]), step.command)

    def _push(self, moving: Tensor | None) -> None:
        randomise = self.settings.randomise
        if not randomise.push_speed:
            return
        due = self.episode_length % round(randomise.push_seconds / self._dt) == 0
        if moving is not None:
            due = due & moving
        kick = randomise.push_speed * (2.0 * self._draw[:, _PUSH:_NOISE] - 1.0)
        velocity = self.physics.qvel[:, :2]
        velocity.copy_(torch.where(due[:, None], kick, velocity))

    def _success(self) -> Tensor:
        """`[N]` bool: the robot did not fall and followed its commands."""
        steps = self.episode_length.clamp(min=1)
        return ~self._fell & (self._world["tracking"] > self.settings.ground.good_tracking * steps)

    def _info(self) -> dict[str, Tensor]:
        world, steps = self._world, self.episode_length.clamp(min=1)
        means = (world[name] / steps for name in ("tracking", "error"))
        values = (world["level"], self._success(), *means, self._fell, world["power"] / steps)
        info = dict(zip(self.episode_info, torch.stack([x.double() for x in values]).unbind(), strict=False))
        if self._info_by_kind:
            here = self._kind == self._kinds[:, None]  # [K, N]
            both = torch.stack((info["level"], info["success"]))[:, None]  # [2, 1, N]
            by_kind = torch.where(here, both, math.nan).flatten(0, 1)
            info |= dict(zip(self._info_by_kind, by_kind.unbind(), strict=True))
        return info

    @property
    def qpos(self) -> Tensor:
        """`[N, nq]`."""
        return self.physics.qpos

    # Observation -----------------------------------------------------------------------------------------------------

    def _ground_height(self, place: Tensor) -> Tensor:
        return self.senses.ground_height(place)

    def scan_points(self) -> Tensor:
        """`[N, 132, 2]`: where the scandots are, on a grid that turns with the robot."""
        return self.senses.scan_points()

    def _observe(self, started: Tensor | None = None) -> Obs:
        world = self._world
        return self.senses.observe(
            self._motion, world["action"], world["command"], self._traits, self._draw[:, _NOISE:]
        )

    # State -----------------------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """Failures of the physics, and robots whose contacts did not fit into the memory of MuJoCo Warp."""
        overflows = self.physics.overflows()
        return {"physics_failures": int(self._failures)} | (
            {} if overflows is None else {"contact_overflows": overflows}
        )

    def _tensors(self) -> dict[str, Tensor]:
        others = {"fell": self._fell, "failures": self._failures, "curriculum": self._by_success.table}
        return {**self._world, "episode": self._episode, **others}

    def _set_tensors(self, tensors: dict[str, Tensor]) -> None:
        for name in self._world:
            self._world[name] = tensors[name]
        self._episode, self._fell, self._failures = (tensors[name] for name in ("episode", "fell", "failures"))
        self._by_success.table = tensors["curriculum"]

    def _get_world(self) -> dict[str, Any]:
        own = {"seeds": self._seeds, "traits": self._traits, "latency": self._latency}
        tensors = {name: x.clone() for name, x in (self._tensors() | own).items()}
        return {"physics": self.physics.get_state(), "senses": self.senses.get_state(), "tensors": tensors}

    def _set_world(self, state: dict[str, Any]) -> Obs:
        self.physics.set_state(state["physics"])
        self.senses.set_state(state["senses"])
        tensors = {name: x.to(self.device, copy=True) for name, x in state["tensors"].items()}
        self._set_tensors(tensors)
        self._seeds, self._traits, self._latency = tensors["seeds"], tensors["traits"], tensors["latency"]
        self._hashed = hash32(self._seeds)
        self._motion = Motion.of(self.physics)
        self._roll()
        return self._observe()
