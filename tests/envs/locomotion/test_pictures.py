"""Pictures of the quadruped: the scandots that are drawn, and the camera."""

import os
from collections.abc import Iterator
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from proxima.envs.locomotion.single import QuadrupedEnv
from proxima.envs.rendered import Spheres
from proxima.errors import UsageError
from proxima.evaluation import headless

PLANE = {"ground": {"kind": "plane"}}
CALM = {"randomise": {"push_speed": 0}}


def stairs(kind: str) -> dict[str, Any]:
    return {"ground": {"shares": {kind: 1.0}, "levels": 3, "columns": 2, "start_level": 2}}


def placed(env: QuadrupedEnv, x: float, y: float) -> None:
    """Put the robot there, on the ground."""
    world = env.world
    world.qpos[0, :2] = torch.tensor([x, y])
    world.qpos[0, 2] = 0.3 + float(env._ground(np.array([[x, y]]))[0])
    env._data.qpos[:] = world.qpos[0].numpy()
    mujoco.mj_forward(env.model, env._data)


def drawn(env: QuadrupedEnv) -> Spheres:
    spheres = env.spheres()
    assert spheres is not None
    return spheres


def test_a_sphere_is_where_a_ray_from_above_hits_the_ground() -> None:
    env = QuadrupedEnv(**stairs("stairs_up"))
    env.reset(seed=0)
    start = env.world.qpos[0, :2].tolist()
    placed(env, start[0] + 1.3, start[1])
    spheres, geom = drawn(env), np.zeros(1, np.int32)
    assert spheres.position.shape == (132, 3) and spheres.rgba.shape == (132, 4)
    np.testing.assert_allclose(spheres.position[:, :2], env.world.scan_points()[0].numpy(), atol=1e-6)
    only_ground = np.zeros(6, np.uint8)
    only_ground[env.model.geom_group[env.model.geom_bodyid == 0]] = 1
    for x, y, z in spheres.position:
        above, down = np.array([x, y, 50.0]), np.array([0.0, 0.0, -1.0])
        distance = mujoco.mj_ray(env.model, env._data, above, down, only_ground, 1, -1, geom)
        assert z == pytest.approx(50.0 - distance, abs=1e-4)


def test_red_is_above_the_feet_blue_below_and_white_level() -> None:
    env = QuadrupedEnv(**PLANE)
    env.reset(seed=0)
    placed(env, 0.0, 0.0)
    feet = env._data.geom_xpos[env._feet, 2].mean() - 0.023
    for offset, (more, less) in {0.2: (0, 2), -0.2: (2, 0)}.items():
        env._data.geom_xpos[env._feet, 2] -= feet + offset
        red_blue = drawn(env).rgba
        assert (red_blue[:, more] > 0.9).all() and (red_blue[:, less] < 0.2).all()
        env._data.geom_xpos[env._feet, 2] += feet + offset
    env._data.geom_xpos[env._feet, 2] -= feet
    assert np.ptp(drawn(env).rgba[:, :3]) < 0.1 and (drawn(env).position[:, 2] == 0.0).all()


def test_scandots_can_be_left_out() -> None:
    assert QuadrupedEnv(**PLANE, draw_scandots=False).spheres() is None
    with pytest.raises(UsageError, match="draw_scandots is 'no', but it must be true or false"):
        QuadrupedEnv(**PLANE, draw_scandots="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["stairs_up", "stairs_down", "gaps", "obstacles"])
def test_the_camera_is_never_below_the_ground(kind: str) -> None:
    env = QuadrupedEnv(**stairs(kind))
    env.reset(seed=0)
    start = env.world.qpos[0, :2].numpy().copy()
    elevations = set()
    for x, y in np.random.default_rng(0).uniform(-3.0, 3.0, (40, 2)) + start:
        placed(env, x, y)
        camera, env._elevation = mujoco.MjvCamera(), None
        camera.distance, camera.azimuth = 2.4, 120.0
        env.place_camera(camera)
        np.testing.assert_allclose(camera.lookat, env._data.xpos[1])
        elevations.add(camera.elevation)
        azimuth, elevation = np.radians([camera.azimuth, camera.elevation])
        forward = np.array(
            [np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)]
        )
        eye = camera.lookat - camera.distance * forward
        assert eye[2] > env._ground(eye[None, :2])[0]
    assert len(elevations) > 1 or kind in ("stairs_down", "obstacles")


@pytest.fixture
def offscreen() -> Iterator[None]:
    try:
        headless.choose_backend(os.environ.get(headless.VARIABLE))
    except UsageError as error:
        pytest.skip(str(error))
    with headless.offscreen(mujoco=True):
        yield


def picture(**options: Any) -> NDArray[np.int64]:
    """Of a robot that has moved `away` metres."""
    away = options.pop("away", 0.0)
    env = QuadrupedEnv(render_mode="rgb_array", width=160, height=120, **CALM, **options)
    env.reset(seed=0)
    x, y = env.world.qpos[0, :2].tolist()
    placed(env, x + away, y)
    pixels = env.render().astype(int)
    env.close()
    return pixels


@pytest.mark.slow
@pytest.mark.usefixtures("offscreen")
def test_what_a_picture_shows() -> None:
    dots, plain, far = picture(**PLANE), picture(**PLANE, draw_scandots=False), picture(**PLANE, away=10.0)
    assert 50 < (np.abs(dots - plain).sum(-1) > 60).sum() < 2000
    assert np.abs(dots - far).mean() < 1.0  # the floor repeats itself every metre
    terrain = picture(draw_scandots=False)
    is_sky = terrain[..., 2] > terrain[..., 0] + 30
    assert not is_sky[60:].any()  # the ground near the camera is drawn too, however large the terrain
    assert (terrain[40:80, 60:100].sum(-1) < 150).any()  # the dark trunk, in the middle


@pytest.mark.slow
@pytest.mark.usefixtures("offscreen")
def test_pictures_do_not_touch_the_trajectory() -> None:
    rows = []
    for is_drawn in (False, True):
        env = QuadrupedEnv(render_mode="rgb_array", width=32, height=24)
        env.reset(seed=3)
        for _ in range(5):
            obs, *_ = env.step(np.full(12, 0.3))
            if is_drawn:
                env.render()
        rows.append(np.concatenate(list(obs.values())))
        env.close()
    np.testing.assert_array_equal(*rows)
