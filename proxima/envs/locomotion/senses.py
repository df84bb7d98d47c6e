"""What the robots observe: proprioception, scandots, depth, commands, and what only a simulator knows."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from proxima.envs.contract import Obs
from proxima.envs.hashed_random import hashed_uniform
from proxima.envs.locomotion.depth import Camera, CameraSettings, DepthCamera
from proxima.envs.locomotion.depth_frames import DepthFrames, images_per_step
from proxima.envs.locomotion.robot import JOINTS, NOMINAL_HEIGHT, STANCE, Motion, Sensors
from proxima.envs.locomotion.settings import QuadrupedSettings, Randomise
from proxima.envs.locomotion.terrain import Terrain
from proxima.envs.locomotion.variation import NUM_TRAITS
from proxima.envs.physics.protocol import Physics

SCAN_X, SCAN_Y = (-0.45, 1.2, 12), (-0.75, 0.75, 11)
"""Scandots: from, to, count, metres ahead of and beside the trunk."""
NUM_SCANDOTS = SCAN_X[2] * SCAN_Y[2]
_SCALE = [2.0] * 3 + [0.25] * 3 + [1.0] * 3 + [1.0] * JOINTS + [0.05] * JOINTS
"""Of velocity, turn rate, gravity, joint angles and joint velocities."""
_HEIGHT_SCALE = 2.5
_SENSED = len(_SCALE)
_IMAGE_DRAWS = 2**16
"""The first column of the random numbers of images, far from those of everything else."""


class Senses:
    """Observations of the current state of all robots."""

    def __init__(
        self, settings: QuadrupedSettings, physics: Physics, sensors: Sensors, terrain: Terrain | None
    ) -> None:
        self.settings, self.physics, self.sensors, self.terrain = settings, physics, sensors, terrain
        dtype, device = physics.dtype, physics.device
        self._stance, self._scale, self._noise = (
            torch.tensor(x, dtype=dtype, device=device) for x in (STANCE, _SCALE, _noise(settings.randomise))
        )
        x, y = (torch.linspace(a, b, n, dtype=dtype) for a, b, n in (SCAN_X, SCAN_Y))
        self._grid = torch.cartesian_prod(x, y).to(device)  # [132, 2]
        sizes = {"proprioception": _SENSED + JOINTS, "scandots": NUM_SCANDOTS, "commands": 3}
        if settings.privileged:
            sizes["privileged"] = 3 + 4 + NUM_TRAITS + NUM_SCANDOTS
        boxes = {key: spaces.Box(-np.inf, np.inf, (size,), np.float32) for key, size in sizes.items()}
        self.frames: DepthFrames | None = None
        if settings.camera is not None:
            self.frames = DepthFrames(_make_camera(settings.camera, physics, terrain), physics.num_worlds)
            boxes["depth"] = spaces.Box(0.0, 1.0, self.frames.camera.shape, np.float32)
        self.space = spaces.Dict(boxes)
        longest = round(settings.control.sensor_delay[1] * settings.control.rate)
        self.delay = SensorDelay(self._sensed(Motion.of(physics)), longest) if longest else None
        heights = NUM_SCANDOTS if terrain is not None else 0
        self.num_draws = _SENSED + heights if settings.randomise.noise else 0
        """Random numbers per robot and observation."""

    def ground_height(self, place: Tensor) -> Tensor:
        """Heights `[...]` at places `[..., 2]`."""
        x, y = place.unbind(-1)
        return torch.zeros_like(x) if self.terrain is None else self.terrain.height(x, y).to(x.dtype)

    def scan_points(self) -> Tensor:
        """`[N, 132, 2]`: where the scandots are, on a grid that turns with the robot."""
        w, x, y, z = self.physics.qpos[:, 3:7].unbind(1)
        yaw = torch.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))[:, None]
        gx, gy = self._grid.unbind(1)
        ahead, beside = gx * yaw.cos() - gy * yaw.sin(), gx * yaw.sin() + gy * yaw.cos()
        return torch.stack((ahead, beside), -1) + self.physics.qpos[:, None, :2]

    def observe(self, motion: Motion, action: Tensor, command: Tensor, traits: Tensor, draw: Tensor) -> Obs:
        """All keys; `draw` `[N, num_draws]`, uniform in [0, 1), is for the noise."""
        sensed = self._sensed(motion) if self.delay is None else self.delay.read()
        heights = self.physics.qpos[:, 2:3] - NOMINAL_HEIGHT - self.ground_height(self.scan_points())
        seen = heights
        if self.num_draws:
            noise = self._noise[: self.num_draws] * (2.0 * draw - 1.0)
            sensed = sensed + noise[:, :_SENSED]
            seen = seen + noise[:, _SENSED:] if self.terrain is not None else seen
        obs = {
            "proprioception": torch.cat((sensed * self._scale, action), 1).float(),
            "scandots": _scaled(seen),
            "commands": command.float(),
        }
        if self.settings.privileged:
            truth = (motion.velocity * self._scale[:3], self.sensors.touching, traits)
            obs["privileged"] = torch.cat((*truth, _scaled(heights)), 1).float()
        if self.frames is not None:
            obs["depth"] = self.frames.seen()
        return obs

    def _sensed(self, motion: Motion) -> Tensor:
        parts = (motion.velocity, motion.turn, motion.gravity, motion.joint - self._stance, motion.joint_velocity)
        return torch.cat(parts, 1)

    def record(self, motion: Motion, rows: Tensor | None) -> None:
        """Remember what the sensors say, of all robots or of those in `rows` `[N]` (bool), for when it is seen."""
        if self.delay is not None:
            self.delay.add(self._sensed(motion), rows)

    def take_images(self, hashed_seeds: Tensor, episode: Tensor, step: Tensor) -> None:
        """Images of the robots whose turn it is; the arguments, `[N]` each, are those of `hashed_uniform`."""
        if self.frames is None:
            return
        rows, draw = self.frames.turn(), None
        if self.settings.randomise.noise:
            pixels = self.frames.camera.num_pixels
            draw = hashed_uniform(hashed_seeds[rows], episode[rows], step[rows], pixels, first=_IMAGE_DRAWS)
        self.frames.take(self.physics.qpos[rows], draw)

    def restart(self, delay: Tensor) -> None:
        """Nothing has been seen, and it is the first robots' turn; `delay` `[N]` is that of the sensors, in steps."""
        if self.delay is not None:
            self.delay.steps.copy_(delay)
        if self.frames is not None:
            self.frames.restart()

    def begin(self, started: Tensor, motion: Motion) -> None:
        """Robots `[N]` (bool) start an episode: they have seen no image yet, and were always as they are now."""
        if self.delay is not None:
            self.delay.fill(self._sensed(motion), started)
        if self.frames is not None:
            self.frames.clear(started)

    def set_first_robot(self, first: int) -> None:
        """Number of the first robot here, if others are elsewhere: it follows when it takes images."""
        if self.frames is not None:
            self.frames.first_robot = first

    def get_state(self) -> dict[str, Any]:
        """The images and what is yet to be seen, copied."""
        delay = {} if self.delay is None else {"delay": self.delay.get_state()}
        return delay if self.frames is None else delay | self.frames.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        if self.frames is not None:
            self.frames.set_state(state)
        if self.delay is not None:
            self.delay.set_state(state["delay"])


class SensorDelay:
    """What the sensors said in the last steps; every robot sees it after its own number of steps.

    The tensors change in place, so that steps can be recorded as a CUDA graph.
    """

    def __init__(self, sensed: Tensor, longest: int) -> None:
        self._recent = sensed[:, None].repeat(1, longest + 1, 1)  # [N, longest + 1, S], the latest first
        self.steps = torch.zeros(len(sensed), dtype=torch.int64, device=sensed.device)
        """`[N]`: after how many steps each robot sees it."""
        self._rows = torch.arange(len(sensed), device=sensed.device)

    def add(self, sensed: Tensor, rows: Tensor | None) -> None:
        """One step later, for all robots or those in `rows` `[N]`."""
        later = torch.cat((sensed[:, None], self._recent[:, :-1]), 1)
        self._recent.copy_(later if rows is None else torch.where(rows[:, None, None], later, self._recent))

    def fill(self, sensed: Tensor, rows: Tensor) -> None:
        """The robots in `rows` `[N]` have always sensed this."""
        self._recent.copy_(torch.where(rows[:, None, None], sensed[:, None], self._recent))

    def read(self) -> Tensor:
        """`[N, S]`: what the robots know now."""
        return self._recent[self._rows, self.steps]

    def get_state(self) -> dict[str, Any]:
        """Everything needed to continue exactly, copied."""
        return {"recent": self._recent.clone(), "steps": self.steps.clone()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._recent.copy_(state["recent"])
        self.steps.copy_(state["steps"])


def _noise(randomise: Randomise) -> list[float]:
    """Largest noise of everything that is sensed, then of the heights."""
    sensed = [randomise.velocity_noise] * 3 + [randomise.turn_noise] * 3 + [randomise.gravity_noise] * 3
    sensed += [randomise.joint_noise] * JOINTS + [randomise.joint_velocity_noise] * JOINTS
    return [randomise.noise * x for x in (*sensed, *[randomise.height_noise] * NUM_SCANDOTS)]


def _make_camera(settings: CameraSettings, physics: Physics, terrain: Terrain | None) -> Camera:
    if settings.renderer == "rays":
        return DepthCamera(settings, terrain, physics.device)
    from proxima.envs.locomotion.rendered_depth import RenderedDepth

    count = images_per_step(physics.num_worlds, settings.every)
    return RenderedDepth(settings, terrain, physics.model, num_images=count, device=physics.device)


def _scaled(heights: Tensor) -> Tensor:
    return (_HEIGHT_SCALE * heights.clamp(-1.0, 1.0)).float()
