"""A camera that keeps up with the robot, and ground that does not end.

Since 1.4 Gymnasium draws its MuJoCo tasks with a camera that stands still, and whatever learned to run leaves the
picture within a second or two. Their models still bring a camera named "track", which was the default before. The
floors of some are drawn for forty metres and go on unseen.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

_CHOICES = ("camera_id", "camera_name", "default_camera_config")


def is_mujoco(env: gym.Env) -> bool:
    """Whether the env holds a MuJoCo model, so that `MUJOCO_GL` decides how it is drawn."""
    return any(type(value).__module__.split(".")[0] == "mujoco" for value in vars(env.unwrapped).values())


def follow(env: gym.Env, env_kwargs: Mapping[str, Any] | None) -> None:
    """Look through the tracking camera of a Gymnasium MuJoCo task, if it has one and the user chose none."""
    camera = _tracking_camera(env)
    if camera is not None and not any(choice in (env_kwargs or {}) for choice in _CHOICES):
        _renderer(env).camera_id = camera
        _draw_floor_without_end(_renderer(env).model)


def follow_in_window(env: gym.Env) -> None:
    """Have the window, once it is open, keep the robot in the middle; the mouse still turns the view."""
    camera, renderer = _tracking_camera(env), _renderer(env)
    if camera is None or renderer.viewer is None or renderer.camera_id != camera:
        return
    import mujoco

    renderer.viewer.cam.type = mujoco.mjtCamera.mjCAMERA_TRACKING
    renderer.viewer.cam.trackbodyid = renderer.model.cam_bodyid[camera]


def _draw_floor_without_end(model: Any) -> None:
    """For the physics a plane has no edge; in a drawing a size of 0 says so, and its pattern then counts by metres."""
    import mujoco

    for plane in (model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE).nonzero()[0]:
        sides, material = model.geom_size[plane, :2], model.geom_matid[plane]
        if not sides.all():
            continue
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
