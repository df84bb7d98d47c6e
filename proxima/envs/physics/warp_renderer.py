"""The batch renderer of MuJoCo Warp: depth images of one camera, of many states of a model at once."""

import mujoco
import torch
from torch import Tensor

from proxima.envs.physics.warp import capture, launch_or_record, mujoco_warp, warp

_GROUPS = [0, 1, 2]
"""Groups of geoms that are rendered, as in MuJoCo's own pictures; collision shapes are usually in group 3."""
_LIMIT = 1e4
"""Coordinates beyond this, which only a failed simulation has, are moved here."""


class WarpRenderer:
    """Depth images as a function of `qpos`.

    It has worlds of its own, whose kinematics are computed before each image: an image belongs to the state that was
    passed, and the physics is not changed. On a GPU all of it is one CUDA graph, without synchronisation.

    Args:
        model: With the camera.
        camera: Its name.
        num_images: Images that are rendered at once, K.
        size: Width and height in pixels.
        far: Metres along the optical axis; what is farther is not rendered.
        device: Of the states and the images.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        camera: str,
        *,
        num_images: int,
        size: tuple[int, int],
        far: float,
        device: torch.device | str,
    ) -> None:
        self.device = torch.device(device)
        with warp.ScopedDevice(str(self.device)):
            self._model = mujoco_warp.put_model(model)
            # Contacts and constraints are never computed here.
            self._data = mujoco_warp.put_data(model, mujoco.MjData(model), nworld=num_images, nconmax=1, njmax=1)
            self._context = mujoco_warp.create_render_context(
                model,
                num_images,
                cam_active=[camera],
                cam_res=size,
                render_rgb=False,
                render_depth=True,
                render_seg=False,
                enabled_geom_groups=_GROUPS,
                use_textures=False,
                use_fast_math=False,
                # Nothing is shaded, so nothing of this is compiled.
                use_ambient_lighting=False,
                enable_vertex_normals=False,
                enable_specular=False,
                enable_emission=False,
                enable_per_light_ambient=False,
            )
        self._context.zfar = far  # a constant of the kernel, which is compiled at the first image
        self._qpos = warp.to_torch(self._data.qpos)  # [K, nq]
        self._depth = warp.to_torch(self._context.depth_data).view(num_images, size[1], size[0])
        self._launch = self._render
        if self.device.type == "cuda":
            self._render()  # compiles and loads the kernels
            self._launch = capture(self._render, self.device)
            torch.cuda.synchronize(self.device)

    def depth(self, qpos: Tensor) -> Tensor:
        """Depth along the optical axis `[K, H, W]`, metres, of states `[K, nq]`; 0 where there is nothing within reach.

        A live tensor: the next call overwrites it.
        """
        self._qpos.copy_(torch.nan_to_num(qpos).clamp(-_LIMIT, _LIMIT))
        launch_or_record(self._launch)
        return self._depth

    def _render(self) -> None:
        with warp.ScopedDevice(str(self.device)):
            mujoco_warp.kinematics(self._model, self._data)
            mujoco_warp.camlight(self._model, self._data)
            mujoco_warp.refit_bvh(self._model, self._data, self._context)
            mujoco_warp.render(self._model, self._data, self._context)
