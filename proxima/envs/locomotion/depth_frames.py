"""When the robots' cameras take their images, and which image a policy sees: interval and delay."""

from typing import Any

import torch
from torch import Tensor

from proxima.envs.locomotion.depth import DepthCamera


class DepthFrames:
    """The latest images of every robot's camera.

    Every robot takes one image in `every` steps, and the robots take turns: robot i in the steps t with t % every equal
    to i % every, so that all steps cost the same. A new episode sees 1 (nothing within reach) until it has an image,
    which is after `every` steps at the latest, later by the delay.

    Args:
        camera: Renders the images.
        num_envs: Number of robots, N.
    """

    def __init__(self, camera: DepthCamera, num_envs: int) -> None:
        self.camera = camera
        self._every = camera.settings.every
        self._clock = 0
        size = (camera.settings.delay + 1, num_envs, *camera.shape)
        self._frames = torch.ones(size, device=camera.device)  # [delay + 1, N, 1, H, W], the latest first

    @property
    def turn(self) -> slice:
        """The robots whose image the next `take` takes."""
        return slice(self._clock % self._every, None, self._every)

    def take(self, position: Tensor, quaternion: Tensor, draw: Tensor | None = None) -> None:
        """Images of the robots in `turn`, from poses of their trunks `[K, 3]`, `[K, 4]`.

        `draw`, `[K, H * W]` uniform in [0, 1), is for the camera's noise; None is none.
        """
        rows, self._clock = self.turn, self._clock + 1
        if not len(position):
            return
        image = self.camera.render(position, quaternion)
        if draw is not None:
            image = self.camera.degrade(image, draw)
        self._frames[:, rows] = torch.cat((image[None], self._frames[:-1, rows]))

    def clear(self, started: Tensor) -> None:
        """Forget the images of robots `[N]` (bool) that start a new episode."""
        self._frames.masked_fill_(started[:, None, None, None], 1.0)

    def seen(self) -> Tensor:
        """`[N, 1, H, W]`: what the policy sees, in a tensor that later calls do not change."""
        return self._frames[-1].clone()

    def get_state(self) -> dict[str, Any]:
        """Everything needed to continue exactly, copied."""
        return {"frames": self._frames.clone(), "clock": self._clock}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._frames = state["frames"].to(self.camera.device, copy=True)
        self._clock = state["clock"]
