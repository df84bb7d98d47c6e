"""One env of a MuJoCo world as a Gymnasium env with pictures."""

from typing import Any, ClassVar, NamedTuple

import mujoco
import numpy as np
from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer
from numpy.typing import NDArray

from proxima.envs.tensor_env import SingleEnv


class Spheres(NamedTuple):
    """Spheres that are drawn into a picture and are no part of the physics."""

    position: NDArray[np.float64]  # [M, 3]
    rgba: NDArray[np.float64]  # [M, 4]
    radius: float


class RenderedEnv(SingleEnv):
    """Adds `render` to a world of one env that has a `model` and a `qpos`.

    Args:
        world: The world.
        camera: Of the renderer, for models without a camera that is called track; it follows the body `trackbodyid`.
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
        self._followed = (camera or {}).get("trackbodyid")
        self.mujoco_renderer = MujocoRenderer(self.model, self._data, camera, width, height)

    def colour(self) -> None:
        """Change the model's colours before a picture."""

    def place_camera(self, camera: mujoco.MjvCamera) -> None:
        """Move the free camera before a picture: Gymnasium's does not follow a body."""
        if self._followed is not None:
            camera.lookat[:] = self._data.xpos[self._followed]

    def spheres(self) -> Spheres | None:
        """Spheres to draw; called when `_data` has the positions of this picture."""
        return None

    def render(self) -> NDArray[np.uint8]:
        """A picture `[height, width, 3]`."""
        self.colour()
        self._data.qpos[:] = np.asarray(self.world.qpos[0].cpu())
        mujoco.mj_forward(self.model, self._data)
        viewer = self.mujoco_renderer._get_viewer("rgb_array")
        self.place_camera(viewer.cam)
        if (spheres := self.spheres()) is not None:
            for position, rgba in zip(spheres.position, spheres.rgba, strict=True):
                viewer.add_marker(pos=position, rgba=rgba, size=np.full(3, spheres.radius))
        picture: NDArray[np.uint8] = self.mujoco_renderer.render("rgb_array")
        return picture

    def close(self) -> None:
        """Free the renderer. Calling it twice is harmless."""
        self.mujoco_renderer.close()
        self.world.close()
