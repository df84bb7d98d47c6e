"""One quadruped as a Gymnasium env, with pictures: the robot on its terrain, and the scandots that it senses."""

from typing import Any

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray

from proxima.envs.locomotion.env import Quadruped
from proxima.envs.locomotion.robot import LEGS
from proxima.envs.rendered import RenderedEnv, Spheres
from proxima.errors import UsageError

_DISTANCE, _AZIMUTH = 2.4, 120.0
"""Of the camera: metres from the trunk, degrees."""
_ELEVATIONS = (30.0, 40.0, 50.0, 60.0, 70.0, 80.0)
"""Degrees above the horizon; the lowest from which no ground hides the robot."""
_NEAREST = 0.05  # metres from the camera that are drawn; MuJoCo's default grows with the size of the terrain
_CLEARANCE = 0.15  # metres between the ground and the line of sight
_TURN = 0.1  # share of the way to another elevation per picture, so that the camera does not jump
_DOT = 0.015  # radius, metres
_LOW, _LEVEL, _HIGH = (np.array(rgb) for rgb in ((0.1, 0.3, 0.95), (0.95, 0.95, 0.9), (0.95, 0.15, 0.1)))
_FULL_COLOUR = 0.2  # metres above or below the feet


class QuadrupedEnv(RenderedEnv):
    """The same trajectories as `Quadruped` with one env.

    Args:
        render_mode: rgb_array or None.
        width: Of a picture, in pixels.
        height: Of a picture, in pixels.
        draw_scandots: Draw the points whose heights the robot observes: blue below its feet, white level with them,
            red above; full colour at 0.2 m. An env without scandots draws none.
        **settings: As for `Quadruped`.
    """

    def __init__(
        self,
        *,
        render_mode: str | None = None,
        width: int = 640,
        height: int = 480,
        draw_scandots: bool = True,
        **settings: Any,
    ) -> None:
        if not isinstance(draw_scandots, bool):
            raise UsageError(f"draw_scandots is {draw_scandots!r}, but it must be true or false.")
        world = Quadruped(num_envs=1, **settings)
        camera = {"trackbodyid": world.model.body("trunk").id, "distance": _DISTANCE, "azimuth": _AZIMUTH}
        super().__init__(world, camera, render_mode=render_mode, width=width, height=height)
        self.model.vis.map.znear = _NEAREST / self.model.stat.extent
        self._draws_scandots = draw_scandots and "scandots" in world.observation_space.spaces
        self._feet = [self.model.geom(f"{leg}_foot").id for leg in LEGS]
        self._elevation: float | None = None

    def place_camera(self, camera: mujoco.MjvCamera) -> None:
        """Follow the trunk, from above the ground: the model's own camera would be inside of a hill."""
        super().place_camera(camera)
        self.mujoco_renderer.camera_id = -1  # the free one
        wanted = next((x for x in _ELEVATIONS if self._is_clear(camera.lookat, x)), _ELEVATIONS[-1])
        before = wanted if self._elevation is None else self._elevation
        self._elevation = before + _TURN * (wanted - before)
        camera.elevation = -self._elevation

    def _is_clear(self, target: NDArray[np.float64], elevation: float) -> bool:
        """Whether the ground is below the line from the camera to `target` `[3]`."""
        azimuth, elevation = np.radians(_AZIMUTH), np.radians(elevation)
        backward = -np.array([np.cos(azimuth), np.sin(azimuth)])
        along = np.linspace(0.3, _DISTANCE, 12)  # metres from the target
        points = target[:2] + along[:, None] * np.cos(elevation) * backward  # [12, 2]
        line = target[2] + along * np.sin(elevation)
        return bool((line > self._ground(points) + _CLEARANCE).all())

    def spheres(self) -> Spheres | None:
        """The scandots, coloured by their height relative to the feet."""
        if not self._draws_scandots:
            return None
        points = self.world.scan_points()[0].double().cpu().numpy()  # [132, 2]
        ground = self._ground(points)
        feet = self._data.geom_xpos[self._feet, 2].mean() - self.model.geom_size[self._feet[0], 0]
        above = np.clip((ground - feet) / _FULL_COLOUR, -1.0, 1.0)[:, None]
        rgb = _LEVEL + np.where(above > 0, above * (_HIGH - _LEVEL), -above * (_LOW - _LEVEL))
        rgba = np.concatenate((rgb, np.ones_like(above)), 1)
        return Spheres(np.concatenate((points, ground[:, None]), 1), rgba, _DOT)

    def _ground(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Heights `[M]` of the ground at `[M, 2]`."""
        if self.world.terrain is None:
            return np.zeros(len(points))
        x, y = torch.from_numpy(points).to(self.world.device).T
        heights: NDArray[np.float64] = self.world.terrain.height(x, y).double().cpu().numpy()
        return heights
