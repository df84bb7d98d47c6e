"""One muscle-driven body as a Gymnasium env, with pictures: muscles are coloured by their activation."""

from collections.abc import Mapping
from typing import Any, ClassVar

import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer
from numpy.typing import NDArray
from torch import Tensor

from proxima.envs.muscle.env import MuscleVecEnv
from proxima.envs.tensor_env import SingleEnv

_RESTING, _ACTIVE = np.array([0.2, 0.25, 0.65, 1.0]), np.array([0.95, 0.1, 0.1, 1.0])


class MuscleEnv(SingleEnv):
    """The same trajectories as `MuscleVecEnv` with one env.

    Args:
        render_mode: rgb_array or None.
        width: Of a picture, in pixels.
        height: Of a picture, in pixels.
        **settings: As for `MuscleVecEnv`.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, *, render_mode: str | None = None, width: int = 640, height: int = 480, **settings: Any) -> None:
        self.world = MuscleVecEnv(num_envs=1, **settings)
        super().__init__(self.world)
        self.render_mode, self.model = render_mode, self.world.model
        self._data = mujoco.MjData(self.model)
        self.mujoco_renderer = MujocoRenderer(self.model, self._data, self._camera(), width, height)

    def set_weights(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Use these weights of the muscle network."""
        self.world.set_weights(name, weights)

    def render(self) -> NDArray[np.uint8]:
        """The body from the side, `[height, width, 3]`."""
        model, world = self.model, self.world
        if world.map is not None:
            activation = np.clip(world.activation[0], 0.0, 1.0)[:, None]
            model.tendon_rgba[model.actuator_trnid[:, 0]] = (1.0 - activation) * _RESTING + activation * _ACTIVE
        self._data.qpos[:] = world.qpos[0]
        mujoco.mj_forward(model, self._data)
        picture: NDArray[np.uint8] = self.mujoco_renderer.render("rgb_array")
        return picture

    def _camera(self) -> dict[str, Any]:
        """A camera beside the root, for models without one that is called track."""
        forward = self.world.reference.forward
        return {
            "type": mujoco.mjtCamera.mjCAMERA_TRACKING,
            "trackbodyid": self.world.joints.root_body,
            "distance": 3.5,
            "elevation": -10.0,
            "azimuth": float(np.degrees(np.arctan2(forward[1], forward[0]))) + 90.0,
        }

    def close(self) -> None:
        """Free the renderer. Calling it twice is harmless."""
        self.mujoco_renderer.close()
        self.world.close()
