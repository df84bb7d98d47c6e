"""The height map: its look-up against MuJoCo's own rays, its tiles, its levels."""

import mujoco
import numpy as np
import pytest
import torch

from proxima.envs.locomotion.terrain import BORDER, CELL, KINDS, Terrain, add_to, make_terrain


def terrain(**shares: float) -> Terrain:
    return make_terrain(
        shares or dict.fromkeys(KINDS, 1.0), num_levels=3, num_columns=len(shares or KINDS), tile_size=8.0, seed=0
    )


def test_a_height_is_what_a_ray_of_mujoco_hits() -> None:
    ground = terrain()
    spec = mujoco.MjSpec()
    spec.add_material(name="ground")
    add_to(spec, ground)
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    rng = np.random.default_rng(0)
    points = rng.uniform([-11.9, -31.9], [11.9, 31.9], (500, 2))
    points[:50] *= 1.5  # on the border, too
    down, hit = np.array([0.0, 0.0, -1.0]), np.zeros(1, np.int32)
    rays = [10.0 - mujoco.mj_ray(model, data, np.array([x, y, 10.0]), down, None, 1, -1, hit, None) for x, y in points]
    heights = ground.height(*torch.from_numpy(points).T)
    assert np.abs(heights.numpy() - rays).max() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_get_harder_with_the_level_and_start_on_flat_ground(kind: str) -> None:
    ground = terrain(**{kind: 1.0})
    middle = ground.start(torch.arange(3), torch.zeros(3, dtype=torch.long))
    assert np.allclose(middle.numpy()[:, 0], [-8.0, 0.0, 8.0]) and np.allclose(middle.numpy()[:, 1], 0.0)
    x, y = torch.meshgrid(torch.linspace(-0.6, 0.6, 7), torch.linspace(-0.6, 0.6, 7), indexing="ij")
    for level in range(3):
        near = ground.height(x + middle[level, 0], y + middle[level, 1])
        assert near.max() - near.min() < 1e-6
    count = round(8.0 / CELL)
    border = round(BORDER / CELL)
    tiles = ground.heights[border : -border - 1, border : -border - 1]
    spread = [float(tiles[i * count : (i + 1) * count].std()) for i in range(3)]
    if kind == "flat":
        assert spread == [0.0, 0.0, 0.0]
    else:
        assert spread[2] > spread[1] > spread[0] == 0.0  # level 0 is flat
    edges = torch.cat([tiles[i * count + j] for i in range(3) for j in (0, count - 1)])
    assert not bool(edges.any())  # tiles fit together


def test_shares_become_columns() -> None:
    ground = make_terrain({"flat": 0.25, "rough": 0.75}, num_levels=1, num_columns=8, tile_size=4.0, seed=0)
    assert ground.kinds == ("flat",) * 2 + ("rough",) * 6
    assert ground.heights.shape == (41 + 400, 321 + 400)


def test_beyond_the_edge_the_ground_goes_on() -> None:
    ground = terrain()
    far = ground.height(torch.tensor([1e6, -1e6]), torch.tensor([0.0, 0.0]))
    assert torch.isfinite(far).all()
