"""Depth images: pixels against rays of MuJoCo, the plane against geometry, and no synchronisation with a GPU."""

import math
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from proxima.config.nested import build
from proxima.envs.locomotion.depth import CameraSettings, DepthCamera
from proxima.envs.locomotion.depth_frames import DepthFrames
from proxima.envs.locomotion.robot import build_model
from proxima.envs.locomotion.settings import parse
from proxima.envs.locomotion.terrain import KINDS, Terrain, add_to, make_terrain
from proxima.errors import UsageError

LEVEL = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
SMALL = {"height": 8, "width": 12}


def terrain(*kinds: str) -> Terrain:
    kinds = kinds or tuple(KINDS)
    return make_terrain(dict.fromkeys(kinds, 1.0), num_levels=3, num_columns=len(kinds), tile_size=8.0, seed=0)


def poses(ground: Terrain, count: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Trunks at random over the map, 15 to 55 cm high, in every direction and tilted, some of them far."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    place = (2.0 * draw[:, :2] - 1.0) * (-torch.tensor(ground.origin, dtype=torch.float64) - 3.5)  # not beyond the edge
    height = ground.height(*place.T)[:, None] + 0.15 + 0.4 * draw[:, 2:]
    axis = torch.randn(count, 4, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 0.2, 0.2, 1.0])
    return torch.cat((place, height), 1), axis / axis.norm(dim=1, keepdim=True)


def camera_frame(settings: CameraSettings, position: Tensor, quaternion: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """A camera's position and its axes (forward, right, down) in rows, by MuJoCo."""
    rotation = np.zeros(9)
    mujoco.mju_quat2Mat(rotation, quaternion.numpy())
    sin, cos = np.sin(np.radians(settings.pitch)), np.cos(np.radians(settings.pitch))
    axes = np.array([[cos, 0.0, -sin], [0.0, -1.0, 0.0], [-sin, 0.0, -cos]])
    matrix = rotation.reshape(3, 3)
    return position.numpy() + matrix @ np.array(settings.position), axes @ matrix.T


def by_mujoco(ground: Terrain, settings: CameraSettings, pose: tuple[Tensor, Tensor], pixels: np.ndarray) -> np.ndarray:
    """Depth [K, pixels] (metres, at most far); NaN where the camera is in the ground."""
    spec = mujoco.MjSpec()
    spec.add_material(name="ground")
    add_to(spec, ground)
    model = spec.compile()
    data, hit = mujoco.MjData(model), np.zeros(1, np.int32)
    mujoco.mj_forward(model, data)
    size = 2.0 * math.tan(math.radians(0.5 * settings.field_of_view)) / settings.width
    depth = np.full((len(pose[0]), len(pixels)), np.nan)
    for k, (position, quaternion) in enumerate(zip(*pose, strict=True)):
        origin, (forward, right, down) = camera_frame(settings, position, quaternion)
        if origin[2] <= float(ground.height(*torch.from_numpy(origin[:2]))):
            continue
        for n, pixel in enumerate(pixels):
            row, column = divmod(int(pixel), settings.width)
            x, y = (column + 0.5 - 0.5 * settings.width) * size, (row + 0.5 - 0.5 * settings.height) * size
            ray = forward + x * right + y * down
            length = np.linalg.norm(ray)
            found = mujoco.mj_ray(model, data, origin, ray / length, None, 1, -1, hit, None)
            depth[k, n] = min(found / length, settings.far) if found >= 0 else settings.far
    return depth


@pytest.mark.parametrize(
    ("kinds", "dtype"),
    [
        ((), torch.float32),
        ((), torch.float64),
        (("stairs_up", "stairs_down"), torch.float32),
        (("stones", "gaps"), torch.float32),
    ],
)
def test_every_pixel_is_a_ray_of_mujoco(kinds: tuple[str, ...], dtype: torch.dtype) -> None:
    ground, settings = terrain(*kinds), CameraSettings(near=0.0)
    pose = poses(ground, 24)
    pixels = np.random.default_rng(0).choice(settings.height * settings.width, 80, replace=False)
    depth = settings.far * DepthCamera(settings, ground, dtype=dtype).render(*pose).flatten(1)[:, pixels].numpy()
    expected = by_mujoco(ground, settings, pose, pixels)
    seen = ~np.isnan(expected)
    assert (depth[~seen] == 0.0).all() and seen.all(1).sum() >= 18
    assert 0.2 < (expected[seen] < settings.far).mean() < 0.95, "both ground and sky are seen"
    assert (np.abs(depth - expected)[seen] < 1e-4).mean() == 1.0


def test_another_camera_agrees_too() -> None:
    ground = terrain("rough", "obstacles")
    settings = CameraSettings(
        height=20, width=31, field_of_view=120.0, position=(0.1, -0.2, 0.4), pitch=75.0, near=0.0, far=5.0
    )
    pose, pixels = poses(ground, 5), np.arange(20 * 31)
    depth = settings.far * DepthCamera(settings, ground).render(*pose).flatten(1).numpy()
    assert np.nanmax(np.abs(depth - by_mujoco(ground, settings, pose, pixels))) < 1e-4


def test_a_plane_is_what_geometry_says() -> None:
    settings = CameraSettings(field_of_view=90.0, pitch=0.0, position=(0.0, 0.0, 0.0), near=0.2)
    image = DepthCamera(settings, None).render(torch.tensor([[7.0, -3.0, 0.4]]), LEVEL)
    assert image.shape == (1, 1, 58, 87) and image.dtype == torch.float32
    down = (torch.arange(58) + 0.5 - 29.0) * 2.0 / 87.0  # per metre of depth, of the row
    depth = torch.where(down > 0, 0.4 / down, 2.0).clamp(0.2, 2.0)
    torch.testing.assert_close(2.0 * image[0, 0], depth[:, None].expand(-1, 87))


def test_flat_terrain_is_a_plane_for_any_pose() -> None:
    ground, settings = terrain("flat"), CameraSettings()
    pose = poses(ground, 20)
    on_map, on_plane = (DepthCamera(settings, kind).render(*pose) for kind in (ground, None))
    torch.testing.assert_close(on_map, on_plane, rtol=0.0, atol=1e-5)


def test_straight_down_and_up() -> None:
    ground = terrain("flat")
    for pitch, expected in ((90.0, 0.25), (-90.0, 1.0)):
        settings = CameraSettings(pitch=pitch, position=(0.0, 0.0, 0.0))
        for kind in (ground, None):
            image = DepthCamera(settings, kind).render(torch.tensor([[0.03, 0.07, 0.5]]), LEVEL)
            torch.testing.assert_close(image, torch.full_like(image, expected))


def test_rays_along_the_lines_of_the_map() -> None:
    """Cameras exactly on points of the map, that look exactly along its rows, columns and diagonals."""
    ground = terrain("stairs_up")
    settings = CameraSettings(height=9, width=9, pitch=0.0, position=(0.0, 0.0, 0.0), near=0.0)
    yaw = torch.arange(8, dtype=torch.float64) * math.pi / 4
    quaternion = torch.stack(((0.5 * yaw).cos(), torch.zeros(8), torch.zeros(8), (0.5 * yaw).sin()), 1)
    position = torch.tensor([[8.0, 0.0, 0.2]], dtype=torch.float64).repeat(8, 1)
    position[:, 2] += ground.height(position[:, 0], position[:, 1])
    pose, pixels = (position, quaternion), np.arange(81)
    depth = 2.0 * DepthCamera(settings, ground).render(*pose).flatten(1).numpy()
    assert np.abs(depth - by_mujoco(ground, settings, pose, pixels)).max() < 1e-4
    assert (depth[:, 40] < 2.0).all(), "the stairs are ahead"


def test_near_and_far_clip_and_the_ground_hides_the_camera() -> None:
    for ground in (terrain("flat"), None):
        camera = DepthCamera(CameraSettings(near=0.3, far=1.5), ground)
        image = camera.render(torch.tensor([[0.0, 0.0, 0.15]]), LEVEL)
        assert float(image.min()) == pytest.approx(0.2) and float(image.max()) == 1.0
        looks_up = DepthCamera(CameraSettings(near=0.3, far=1.5, pitch=-90.0), ground)
        for eye, height in ((camera, -9.0), (looks_up, -0.3)):
            buried = eye.render(torch.tensor([[0.0, 0.0, height]]), LEVEL)
            torch.testing.assert_close(buried, torch.full_like(buried, 0.2))


@pytest.mark.parametrize("place", [1e3, -1e30, math.inf, math.nan])
def test_any_pose_gives_an_image(place: float) -> None:
    ground = terrain("rough")
    position = torch.tensor([[place, 0.0, 0.4], [0.0, place, 0.4], [0.0, 0.0, place], [0.0, 0.0, 0.4], [0.0, 0.0, 0.4]])
    quaternion = LEVEL.repeat(5, 1)
    quaternion[3], quaternion[4, 1] = 0.0, place
    for kind in (ground, None):
        image = DepthCamera(CameraSettings(**SMALL), kind).render(position, quaternion)
        assert bool(((image >= 0.05) & (image <= 1.0)).all())


def test_beyond_the_edge_the_ground_goes_on() -> None:
    ground = terrain("flat")
    camera = DepthCamera(CameraSettings(), ground)
    inside, at_edge, outside = camera.render(
        torch.tensor([[0.0, 0.0, 0.4], [12.0, 0.0, 0.4], [20.0, 0.0, 0.4]]), LEVEL.repeat(3, 1)
    )
    torch.testing.assert_close(inside, at_edge)
    torch.testing.assert_close(inside, outside)


def test_an_image_does_not_depend_on_its_neighbours_or_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = terrain()
    pose, camera = poses(ground, 9), DepthCamera(CameraSettings(**SMALL), ground)
    images = camera.render(*pose)
    monkeypatch.setattr("proxima.envs.locomotion.depth._CHUNK", {"cpu": 1})
    assert torch.equal(camera.render(*pose), images)
    assert torch.equal(camera.render(pose[0][4:5], pose[1][4:5])[0], images[4])
    assert camera.render(pose[0][:0], pose[1][:0]).shape == (0, 1, 8, 12)


class HostTraffic(TorchDispatchMode):
    """Refuses what would copy between the host and a GPU, or wait for it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refused = ("_local_scalar_dense", "lift_fresh", "nonzero", "masked_select", "unique", "is_nonzero")
        assert func.name().split("::")[1].split(".")[0] not in refused, func.name()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["terrain", "plane"])
def test_nothing_synchronises_with_a_gpu(kind: str) -> None:
    ground = terrain() if kind == "terrain" else None
    camera = DepthCamera(CameraSettings(**SMALL, delay=1), ground)
    frames, pose = DepthFrames(camera, 7), poses(terrain(), 7)
    started, draw = torch.rand(7) < 0.5, torch.rand(7, camera.num_pixels)
    with HostTraffic():
        for _ in range(6):
            rows = frames.turn()
            frames.take(torch.cat(pose, 1)[rows], draw[rows])
            frames.clear(started)
            frames.seen()
    with pytest.raises(AssertionError), HostTraffic():
        torch.tensor([1.0])


@pytest.mark.parametrize("camera", [{}, {"position": [0.1, -0.2, 0.4], "pitch": -75.0, "field_of_view": 120.0}])
def test_the_camera_of_the_model_has_the_same_rays(camera: dict[str, Any]) -> None:
    parsed = parse({"camera": camera})
    settings = parsed.camera
    assert settings is not None
    model = build_model(parsed, None)
    data, (position, quaternion) = mujoco.MjData(model), poses(terrain("flat"), 1)
    data.qpos[:7] = torch.cat((position[0], quaternion[0])).numpy()
    mujoco.mj_forward(model, data)
    origin, (forward, right, down) = camera_frame(settings, position[0], quaternion[0])
    eye = data.camera("depth")
    np.testing.assert_allclose(eye.xpos, origin, atol=1e-12)
    np.testing.assert_allclose(eye.xmat.reshape(3, 3).T, (right, -down, -forward), atol=1e-12)
    assert list(model.cam_resolution[eye.id]) == [settings.width, settings.height]
    height = math.tan(math.radians(0.5 * float(model.cam_fovy[eye.id])))
    width = math.tan(math.radians(0.5 * settings.field_of_view))
    assert height / width == pytest.approx(settings.height / settings.width)


def test_without_a_camera_the_model_has_none() -> None:
    model = build_model(parse({}), None)
    assert "depth" not in [model.camera(i).name for i in range(model.ncam)]


# Noise ---------------------------------------------------------------------------------------------------------------


def test_noise_grows_with_the_square_of_the_depth_and_dropout_is_the_far_limit() -> None:
    camera = DepthCamera(CameraSettings(height=100, width=100, noise=0.02, dropout=0.1), None)
    image = torch.tensor([0.25, 0.5, 1.0])[:, None, None, None].expand(-1, 1, 100, 100)
    draw = torch.rand(3, 10_000, generator=torch.Generator().manual_seed(0))
    noisy = 2.0 * camera.degrade(image, draw).flatten(1)
    for depth, pixels in ((0.5, noisy[0]), (1.0, noisy[1])):
        lost = pixels == 2.0
        assert float(lost.float().mean()) == pytest.approx(0.1, abs=0.01)
        kept = pixels[~lost]
        assert float(kept.mean()) == pytest.approx(depth, abs=2e-3)
        assert float(kept.std()) == pytest.approx(0.02 * depth**2, rel=0.03)
    assert bool((noisy[2] == 2.0).all()), "there is nothing to measure in the sky"


def test_without_noise_an_image_stays_as_it_is() -> None:
    camera = DepthCamera(CameraSettings(**SMALL, noise=0.0), None)
    image = camera.render(torch.tensor([[0.0, 0.0, 0.4]]), LEVEL)
    assert torch.equal(camera.degrade(image, torch.rand(1, camera.num_pixels)), image)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"field_of_view": 180}, "camera.field_of_view is 180, but it must be at most 150"),
        ({"pitch": 91}, "camera.pitch is 91, but it must be at most 90"),
        ({"near": 2.0}, "camera.near is 2, but it must be below camera.far, 2"),
        ({"far": 100}, "camera.far is 100, but it must be at most 20"),
        ({"dropout": 1.5}, "camera.dropout is 1.5, but it must be at most 1"),
        ({"position": [0.1, 0.2]}, "camera.position has 2 numbers, but it must have 3"),
        ({"renderer": "opengl"}, "camera.renderer is 'opengl', but it must be one of rays, warp"),
        ({"height": 4}, "camera.height is 4, but it must be at least 8"),
        ({"pich": 4}, "there is no setting camera.pich. Did you mean pitch"),
    ],
)
def test_bad_settings_are_named(content: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(CameraSettings, content, "camera")


# Frames --------------------------------------------------------------------------------------------------------------


def walk(frames: DepthFrames, steps: int, *, first: int = 0) -> list[Tensor]:
    """What is seen in each step while robot i climbs from 0.2 m: the height is 0.2 + 0.01 t + 0.1 i."""
    size = frames.seen().shape[0]
    seen = []
    for t in range(first, first + steps):
        rows = frames.turn()
        position = torch.zeros(size, 3)
        position[:, 2] = 0.2 + 0.01 * t + 0.1 * torch.arange(size)
        frames.take(torch.cat((position, LEVEL.repeat(size, 1)), 1)[rows])
        seen.append(frames.seen())
    return seen


def new_frames(num_envs: int = 3, **settings: Any) -> DepthFrames:
    return DepthFrames(DepthCamera(CameraSettings(**SMALL, **settings), None), num_envs)


@pytest.mark.parametrize("delay", [0, 1, 2])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_robots_take_turns_and_see_their_image_after_the_delay(every: int, delay: int) -> None:
    frames = new_frames(every=every, delay=delay)
    for t, seen in enumerate(walk(frames, 20)):
        for i in range(3):
            taken = t - (t - i) % every - delay * every  # the step of the image that is seen
            if taken < i % every:
                assert bool((seen[i] == 1.0).all())
                continue
            position = torch.tensor([[0.0, 0.0, 0.2 + 0.01 * taken + 0.1 * i]])
            torch.testing.assert_close(seen[i], frames.camera.render(position, LEVEL)[0])


def test_a_new_episode_sees_nothing_of_the_last() -> None:
    frames = new_frames(every=2, delay=1)
    before = walk(frames, 8)[-1]
    kept = before.clone()
    frames.clear(torch.tensor([False, True, False]))
    after = frames.seen()
    assert torch.equal(after[::2], before[::2]) and bool((after[1] == 1.0).all())
    later = walk(frames, 2, first=8)
    assert all(bool((seen[1] == 1.0).all()) for seen in later), "the image before the start is gone too"
    assert not bool((walk(frames, 2, first=10)[-1][1] == 1.0).all())
    assert torch.equal(before, kept), "what was seen does not change"


def test_a_state_goes_on_to_the_same_images() -> None:
    frames = new_frames(every=3, delay=1)
    walk(frames, 7)
    state = frames.get_state()
    expected = walk(frames, 7, first=7)
    other = new_frames(every=3, delay=1)
    for _ in range(2):  # the state itself does not change
        other.set_state(state)
        assert all(torch.equal(one, two) for one, two in zip(walk(other, 7, first=7), expected, strict=True))


def test_a_recorded_step_goes_on_like_a_computed_one() -> None:
    """As in a CUDA graph, where only tensors change between two replays."""
    recorded, computed = (new_frames(7, every=3, delay=1) for _ in range(2))

    def step(frames: DepthFrames, height: Tensor, started: Tensor) -> Tensor:
        rows = frames.turn()
        place = torch.zeros(7, 2)
        frames.take(torch.cat((place, height[:, None], LEVEL.repeat(7, 1)), 1)[rows])
        frames.clear(started)
        return frames.seen()

    generator = torch.Generator().manual_seed(0)
    heights = 0.2 + torch.rand(20, 7, generator=generator)
    started = torch.rand(20, 7, generator=generator) < 0.05
    expected = [step(computed, *now) for now in zip(heights, started, strict=True)]
    replay = make_fx(lambda height, start: step(recorded, height, start))(heights[0], started[0])
    for t in range(1, 20):
        assert torch.equal(replay(heights[t], started[t]), expected[t])


def test_fewer_robots_than_turns() -> None:
    seen = walk(new_frames(1, every=5), 7)
    assert torch.equal(seen[4], seen[0]) and not torch.equal(seen[5], seen[0])
