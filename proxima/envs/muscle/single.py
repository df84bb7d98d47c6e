"""One muscle-driven body as a Gymnasium env, with pictures: muscles are coloured by their activation."""

from collections.abc import Mapping
from typing import Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from proxima.envs.muscle.env import MuscleVecEnv
from proxima.envs.tensor_env import SingleEnv

_RESTING, _ACTIVE = np.array([0.2, 0.25, 0.65, 1.0]), np.array([0.95, 0.1, 0.1, 1.0])
_CAMERA = "track"


class MuscleEnv(SingleEnv):
    """The same trajectories as `MuscleVecEnv` with one env.

    Args:
        render_mode: rgb_array or None.
        width: Of a picture, in pixels.
        height: Of a picture, in pixels.
        **settings: As for `MuscleVecEnv`.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(
        self, *, render_mode: str | None = None, width: int = 640, height: int = 480, **settings: Any
    ) -> None:
        self.world = MuscleVecEnv(num_envs=1, **settings)
        super().__init__(self.world)
        self.render_mode, self.model, self._size = render_mode, self.world.model, (height, width)
        self.metadata = {**self.metadata, "render_fps": round(self.world.settings.control.rate)}
        self._data = mujoco.MjData(self.model)
        self._renderer: mujoco.Renderer | None = None

    def set_weights(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Use these weights of the muscle network."""
        self.world.set_weights(name, weights)

    def render(self) -> NDArray[np.uint8]:
        """The body from the side, `[height, width, 3]`."""
        model, world = self.model, self.world
        if self._renderer is None:
            buffer = model.vis.global_
            buffer.offheight, buffer.offwidth = max(self._size[0], buffer.offheight), max(self._size[1], buffer.offwidth)
            self._renderer = mujoco.Renderer(model, *self._size)
        if world.map is not None:
            activation = np.clip(world.activation[0], 0.0, 1.0)[:, None]
            model.tendon_rgba[model.actuator_trnid[:, 0]] = (1.0 - activation) * _RESTING + activation * _ACTIVE
        self._data.qpos[:] = world.qpos[0]
        mujoco.mj_forward(model, self._data)
        self._renderer.update_scene(self._data, camera=self._camera())
        return self._renderer.render()

    def _camera(self) -> Any:
        """The model's own tracking camera, or one beside the root."""
        if mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_CAMERA, _CAMERA) >= 0:
            return _CAMERA
        camera = mujoco.MjvCamera()
        camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, self.world.joints.root_body
        forward = self.world.reference.forward
        camera.distance, camera.elevation = 3.5, -10.0
        camera.azimuth = float(np.degrees(np.arctan2(forward[1], forward[0]))) + 90.0
        return camera

    def close(self) -> None:
        """Free the renderer. Calling it twice is harmless."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self.world.close()
