"""When the robots' cameras take their images, and which image a policy sees: interval and delay."""

from typing import Any

import torch
from torch import Tensor

from proxima.envs.locomotion.depth import Camera


def images_per_step(num_envs: int, every: int) -> int:
    """K, when robots take turns; the last image of a step may belong to no robot."""
    return -(-num_envs // every)


class DepthFrames:
    """The latest images of every robot's camera.

    Every robot takes one image in `every` steps, and the robots take turns: robot i in the steps t with t % every equal
    to i % every, so that all steps cost the same. A new episode sees 1 (nothing within reach) until it has an image,
    which is after `every` steps at the latest, later by the delay.

    All state is in tensors that change in place, also whose turn it is: steps can be recorded as a CUDA graph.

    Args:
        camera: Renders the images.
        num_envs: Number of robots, N.
    """

    def __init__(self, camera: Camera, num_envs: int) -> None:
        self.camera, self.num_envs = camera, num_envs
        self.first_robot = 0
        """Number of the first robot here, if others are elsewhere."""
        every, device = camera.settings.every, camera.device
        count = images_per_step(num_envs, every)
        self._clock = torch.zeros((), dtype=torch.int64, device=device)
        # [delay + 1, K, every, 1, H, W], the latest first: robot i is at (i // every, i % every)
        self._frames = torch.ones(camera.settings.delay + 1, count, every, *camera.shape, device=device)
        self._firsts = every * torch.arange(count, device=device)

    def turn(self) -> Tensor:
        """`[K]` int64: the robots whose states the next `take` needs."""
        return (self._firsts + self._turn).clamp(max=self.num_envs - 1)

    @property
    def _turn(self) -> Tensor:
        """Of every `every` robots here, which one it is that takes an image now."""
        return (self._clock - self.first_robot) % self.camera.settings.every

    def take(self, qpos: Tensor, draw: Tensor | None = None) -> None:
        """Images of the robots in `turn`, in the states `[K, nq]`.

        `draw`, `[K, H * W]` uniform in [0, 1), is for the camera's noise; None is none.
        """
        image = self.camera.look(qpos)
        if draw is not None:
            image = self.camera.degrade(image, draw)
        place = self._turn[None]
        older = self._frames[:-1].index_select(2, place)
        self._frames.index_copy_(2, place, torch.cat((image[None, :, None], older)))
        self._clock += 1

    def restart(self) -> None:
        """Forget all images; the first robots take the next ones."""
        self._frames.fill_(1.0)
        self._clock.zero_()

    def clear(self, started: Tensor) -> None:
        """Forget the images of robots `[N]` (bool) that start a new episode."""
        self._by_robot().masked_fill_(started[:, None, None, None], 1.0)

    def seen(self) -> Tensor:
        """`[N, 1, H, W]`: what the policy sees, in a tensor that later calls do not change."""
        return self._by_robot()[-1].clone()

    def _by_robot(self) -> Tensor:
        """`[delay + 1, N, 1, H, W]`."""
        return self._frames.flatten(1, 2)[:, : self.num_envs]

    def get_state(self) -> dict[str, Any]:
        """Everything needed to continue exactly, copied."""
        return {"frames": self._frames.clone(), "clock": self._clock.clone()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._frames.copy_(state["frames"])
        self._clock.copy_(state["clock"])
