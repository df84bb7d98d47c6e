"""Depth images by the batch renderer of MuJoCo Warp: the ground and the robot's own legs."""

import mujoco
import torch
from torch import Tensor

from proxima.envs.locomotion.depth import Camera, CameraSettings
from proxima.envs.locomotion.robot import CAMERA, rotations
from proxima.envs.locomotion.terrain import Terrain
from proxima.envs.physics.warp_renderer import WarpRenderer


class RenderedDepth(Camera):
    """The images of `DepthCamera`, with the robot in them.

    As there, a camera in the ground sees the near limit. Beyond the edge of a terrain there is no ground. A camera
    inside a part of the robot sees through that part.

    Args:
        settings: The camera.
        terrain: The ground of the model; None is a plane at height 0.
        model: As of `robot.build_model`, with the camera.
        num_images: Images per call of `look`, K.
        device: Of the states and the images.
    """

    def __init__(
        self,
        settings: CameraSettings,
        terrain: Terrain | None,
        model: mujoco.MjModel,
        *,
        num_images: int,
        device: torch.device | str,
    ) -> None:
        super().__init__(settings, device)
        self.terrain = terrain
        self._mount = torch.tensor(settings.position, device=self.device)
        size = (settings.width, settings.height)
        self._renderer = WarpRenderer(
            model, CAMERA, num_images=num_images, size=size, far=settings.far, device=self.device
        )

    def look(self, qpos: Tensor) -> Tensor:
        """Images `[K, 1, H, W]` of robots in the states `[K, nq]`."""
        near, far = self.settings.near, self.settings.far
        depth = self._renderer.depth(qpos)  # [K, H, W]
        depth = depth.masked_fill(depth == 0.0, far).clamp(near, far)
        return depth.masked_fill(self._in_ground(qpos)[:, None, None], near)[:, None] / far

    def _in_ground(self, qpos: Tensor) -> Tensor:
        """`[K]` bool; the renderer does not see the ground from below."""
        mount = (rotations(qpos[:, 3:7]) * self._mount).sum(-1)
        x, y, z = torch.nan_to_num(qpos[:, :3] + mount).unbind(-1)
        return z <= (0.0 if self.terrain is None else self.terrain.height(x, y))
