"""Depth images of MuJoCo Warp's renderer, here on its CPU device, against rays: of the height map, and of MuJoCo."""

import math
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("mujoco_warp")

from proxima.envs.locomotion.depth import CameraSettings, DepthCamera
from proxima.envs.locomotion.env import Quadruped
from proxima.envs.locomotion.rendered_depth import RenderedDepth
from proxima.envs.locomotion.robot import CAMERA, STANCE, build_model
from proxima.envs.locomotion.settings import parse
from proxima.envs.locomotion.terrain import Terrain, make_terrain
from proxima.envs.physics import warp as warp_physics
from tests.envs.locomotion.test_depth import HostTraffic

# The first run compiles the kernels, which takes a minute or more.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("warp")]
SIZE = {"height": 16, "width": 24, "near": 0.0}
DOWN = {"position": [0.25, 0.0, 0.05], "pitch": 70.0, "field_of_view": 110.0}
"""A camera that sees the front legs."""
EXACT = 1e-4  # metres
NUM_IMAGES = 6


def terrain() -> Terrain:
    kinds = dict.fromkeys(("stairs_up", "rough", "obstacles"), 1.0)
    return make_terrain(kinds, num_levels=2, num_columns=3, tile_size=6.0, seed=0)


def cameras(ground: Terrain | None, **camera: Any) -> tuple[RenderedDepth, DepthCamera, mujoco.MjModel]:
    settings = parse({"camera": SIZE | camera})
    assert settings.camera is not None
    model = build_model(settings, ground)
    rendered = RenderedDepth(settings.camera, ground, model, num_images=NUM_IMAGES, device="cpu")
    return rendered, DepthCamera(settings.camera, ground), model


def states(ground: Terrain | None, *, seed: int = 0) -> Tensor:
    """Robots in their stance over the map, 25 to 45 cm high, in every direction and tilted."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(NUM_IMAGES, 3, generator=generator)
    place = (2.0 * draw[:, :2] - 1.0) * torch.tensor([3.0, 6.0])  # not beyond the edge
    height = 0.25 + 0.2 * draw[:, 2] + (0.0 if ground is None else ground.height(*place.T))
    quaternion = torch.randn(NUM_IMAGES, 4, generator=generator) * torch.tensor([1.0, 0.1, 0.1, 1.0])
    quaternion = quaternion / quaternion.norm(dim=1, keepdim=True)
    return torch.cat((place, height[:, None], quaternion, torch.tensor([STANCE]).repeat(NUM_IMAGES, 1)), 1)


def by_mujoco(model: mujoco.MjModel, settings: CameraSettings, qpos: Tensor) -> np.ndarray:
    """Depth [H, W] (metres, at most far) of everything that is drawn, from the camera of the model."""
    data, hit = mujoco.MjData(model), np.zeros(1, np.int32)
    data.qpos[:] = qpos.numpy()
    mujoco.mj_forward(model, data)
    origin, (right, up, back) = data.camera(CAMERA).xpos, data.camera(CAMERA).xmat.reshape(3, 3).T
    pixel = 2.0 * math.tan(math.radians(0.5 * settings.field_of_view)) / settings.width
    drawn = np.array([1, 1, 1, 0, 0, 0], np.uint8)  # groups of geoms
    depth = np.full((settings.height, settings.width), settings.far)
    for row, column in np.ndindex(depth.shape):
        x, y = (column + 0.5 - 0.5 * settings.width) * pixel, (row + 0.5 - 0.5 * settings.height) * pixel
        ray = -back + x * right - y * up
        length = np.linalg.norm(ray)
        found = mujoco.mj_ray(model, data, origin, ray / length, drawn, 1, -1, hit, None)
        if found >= 0:
            depth[row, column] = min(found / length, settings.far)
    return depth


@pytest.mark.parametrize("ground", [None, terrain()], ids=["plane", "terrain"])
def test_without_legs_in_view_it_is_the_rays(ground: Terrain | None) -> None:
    rendered, rays, _ = cameras(ground)
    qpos = states(ground)
    image, expected = rendered.look(qpos), rays.look(qpos)
    assert image.shape == (NUM_IMAGES, 1, 16, 24) and image.dtype == torch.float32
    assert 0.2 < float((expected < 1.0).float().mean()) < 0.98, "both ground and sky are seen"
    assert 2.0 * float((image - expected).abs().max()) < EXACT


@pytest.mark.parametrize("ground", [None, terrain()], ids=["plane", "terrain"])
def test_legs_are_where_mujoco_sees_them(ground: Terrain | None) -> None:
    rendered, rays, model = cameras(ground, **DOWN)
    qpos = states(ground)
    image, without = 2.0 * rendered.look(qpos)[:, 0], 2.0 * rays.look(qpos)[:, 0]
    expected = np.stack([by_mujoco(model, rendered.settings, state) for state in qpos])
    assert np.abs(image.numpy() - expected).max() < EXACT
    is_leg = image < without - 0.01
    share = is_leg.float().mean((1, 2))
    assert bool(((share > 0.03) & (share < 0.5)).all()), share
    assert float((image - without)[~is_leg].abs().max()) < 0.01  # a foot is thin where it meets the ground


def test_another_state_is_another_picture_at_once() -> None:
    rendered, _, model = cameras(None, **DOWN)
    qpos = states(None)
    before = rendered.look(qpos)
    kept = before.clone()
    qpos[:, 7] += 0.3  # the front right hip
    after = rendered.look(qpos)
    assert torch.equal(before, kept), "an image that was returned does not change"
    assert bool(((after - before).abs().amax((1, 2, 3)) > 0.05).all())
    assert np.abs(2.0 * after[0, 0].numpy() - by_mujoco(model, rendered.settings, qpos[0])).max() < EXACT


def test_the_ground_hides_the_camera_and_any_state_gives_an_image() -> None:
    for ground in (None, terrain()):
        rendered, _, _ = cameras(ground, near=0.3)
        qpos = states(None)
        qpos[:, 3:7] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        qpos[0, 2], qpos[1, 2], qpos[2, 0], qpos[3, 8], qpos[4, 3] = -5.0, 50.0, math.nan, math.inf, math.nan
        image = rendered.look(qpos)
        assert bool((image[0] == 0.15).all()) and bool((image[1] == 1.0).all())
        assert bool(((image >= 0.15) & (image <= 1.0)).all())


def test_in_a_recording_it_is_launched_by_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered, _, _ = cameras(None)
    first, second = states(None), states(None, seed=1)
    expected, old = rendered.look(second), rendered.look(first)
    launches: list[Callable[[], None]] = []

    class Recorded:
        def outside(self, launch: Callable[[], None]) -> None:
            launches.append(launch)

    monkeypatch.setattr(warp_physics, "recording", Recorded)
    with HostTraffic():
        assert torch.equal(rendered.look(second), old), "nothing is rendered while it is recorded"
    assert len(launches) == 1
    launches[0]()
    with HostTraffic():
        assert torch.equal(rendered.look(second), expected)


def test_robots_see_their_current_state_in_turn() -> None:
    env = Quadruped(
        num_envs=3,
        ground={"kind": "plane"},
        engine={"name": "warp"},
        camera=SIZE | {"renderer": "warp", "every": 2},
        randomise={"noise": 0.0},
    )
    obs = env.reset(seed=0)
    assert isinstance(env.senses.frames.camera, RenderedDepth) and bool((obs["depth"] == 1.0).all())
    rays = DepthCamera(env.senses.frames.camera.settings, None)
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        before = obs["depth"]
        obs = env.step(torch.randn(3, 12, generator=generator)).obs
        assert bool((env.episode_length == step + 1).all()), "nobody fell"
        late = env.qpos.clone()
        late[:, :3] -= 0.005 * env.physics.qvel[:, :3]  # before the last substep
        expected, late = rays.look(env.qpos), rays.look(late)
        for robot in range(3):
            if robot % 2 == step % 2:
                assert 2.0 * float((obs["depth"][robot] - expected[robot]).abs().max()) < EXACT
                assert 2.0 * float((late[robot] - expected[robot]).abs().max()) > 2.0 * EXACT, "it moves"
            else:
                assert torch.equal(obs["depth"][robot], before[robot])
