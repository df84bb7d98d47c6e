"""The tracking camera of Gymnasium's MuJoCo tasks, and a floor that is rendered without an edge.

Since 1.4 Gymnasium renders them with a fixed camera, and a robot that runs leaves the frame within two seconds. The
models still have the camera "track", which was the default before. Some floors are rendered only for 40 metres.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

_CHOICES = ("camera_id", "camera_name", "default_camera_config")


def is_mujoco(env: gym.Env) -> bool:
    """Whether the env has a MuJoCo model, so that `MUJOCO_GL` chooses its renderer."""
    return any(type(value).__module__.split(".")[0] == "mujoco" for value in vars(env.unwrapped).values())


def follow(env: gym.Env, env_kwargs: Mapping[str, Any] | None) -> None:
    """Use the tracking camera of a Gymnasium MuJoCo task, if it has one and `env_kwargs` choose none."""
    camera = _tracking_camera(env)
    if camera is not None and not any(choice in (env_kwargs or {}) for choice in _CHOICES):
        _renderer(env).camera_id = camera
        _remove_floor_edges(_renderer(env).model)


def follow_in_window(env: gym.Env) -> None:
    """Keep the robot in the middle of an open window; the mouse still turns the view."""
    camera, renderer = _tracking_camera(env), _renderer(env)
    if camera is None or renderer.viewer is None or renderer.camera_id != camera:
        return
    import mujoco

    renderer.viewer.cam.type = mujoco.mjtCamera.mjCAMERA_TRACKING
    renderer.viewer.cam.trackbodyid = renderer.model.cam_bodyid[camera]


def _remove_floor_edges(model: Any) -> None:
    """Render planes as infinite, as they are in the physics: size 0, with the texture repeated per metre."""
    import mujoco

    for plane in (model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE).nonzero()[0]:
        sides, material = model.geom_size[plane, :2], model.geom_matid[plane]
        if sides.all():
            if material >= 0 and not model.mat_texuniform[material]:
                model.mat_texrepeat[material] /= sides
            model.geom_size[plane, :2] = 0.0


def _renderer(env: gym.Env) -> Any:
    return getattr(env.unwrapped, "mujoco_renderer", None)


def _tracking_camera(env: gym.Env) -> int | None:
    if _renderer(env) is None:
        return None
    import mujoco

    camera = mujoco.mj_name2id(_renderer(env).model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    return camera if camera >= 0 else None
