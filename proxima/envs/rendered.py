"""One env of a MuJoCo world as a Gymnasium env with pictures."""

from typing import Any, ClassVar

import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer
from numpy.typing import NDArray

from proxima.envs.tensor_env import SingleEnv


class RenderedEnv(SingleEnv):
    """Adds `render` to a world of one env that has a `model` and a `qpos`.

    Args:
        world: The world.
        camera: Of the renderer, for models without a camera that is called track.
        render_mode: rgb_array or None.
        width: Of a picture, in pixels.
        height: Of a picture, in pixels.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(
        self,
        world: Any,
        camera: dict[str, Any] | None = None,
        *,
        render_mode: str | None = None,
        width: int = 640,
        height: int = 480,
    ) -> None:
        super().__init__(world)
        self.world, self.model, self.render_mode = world, world.model, render_mode
        self._data = mujoco.MjData(self.model)
        self.mujoco_renderer = MujocoRenderer(self.model, self._data, camera, width, height)

    def colour(self) -> None:
        """Change the model's colours before a picture."""

    def render(self) -> NDArray[np.uint8]:
        """A picture `[height, width, 3]`."""
        self.colour()
        self._data.qpos[:] = np.asarray(self.world.qpos[0])
        mujoco.mj_forward(self.model, self._data)
        picture: NDArray[np.uint8] = self.mujoco_renderer.render("rgb_array")
        return picture

    def close(self) -> None:
        """Free the renderer. Calling it twice is harmless."""
        self.mujoco_renderer.close()
        self.world.close()
