"""One muscle-driven body as a Gymnasium env, with pictures: muscles are coloured by their activation."""

from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from proxima.envs.muscle.env import MuscleVecEnv
from proxima.envs.rendered import RenderedEnv

_RESTING, _ACTIVE = np.array([0.2, 0.25, 0.65, 1.0]), np.array([0.95, 0.1, 0.1, 1.0])


class MuscleEnv(RenderedEnv):
    """The same trajectories as `MuscleVecEnv` with one env.

    Args:
        render_mode: rgb_array or None.
        width: Of a picture, in pixels.
        height: Of a picture, in pixels.
        **settings: As for `MuscleVecEnv`.
    """

    def __init__(self, *, render_mode: str | None = None, width: int = 640, height: int = 480, **settings: Any) -> None:
        world = MuscleVecEnv(num_envs=1, **settings)
        forward = world.reference.forward
        camera = {
            "type": mujoco.mjtCamera.mjCAMERA_TRACKING,
            "trackbodyid": world.joints.root_body,
            "distance": 3.5,
            "elevation": -10.0,
            "azimuth": float(np.degrees(np.arctan2(forward[1], forward[0]))) + 90.0,
        }
        super().__init__(world, camera, render_mode=render_mode, width=width, height=height)

    def set_weights(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Use these weights of the muscle network."""
        self.world.set_weights(name, weights)

    def colour(self) -> None:
        """Blue muscles are at rest, red ones active."""
        if self.world.map is not None:
            activation = np.clip(self.world.activation[0], 0.0, 1.0)[:, None]
            colours = (1.0 - activation) * _RESTING + activation * _ACTIVE
            tendons = self.model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_TENDON)
            self.model.tendon_rgba[self.model.actuator_trnid[tendons, 0]] = colours[tendons]
