"""Terrain as one height map: tiles of rising difficulty side by side, looked up by physics, scandots and start points.

A row of tiles is a level of difficulty, a column one kind of ground. Heights of the kinds follow Rudin et al. (2022).
Tiles end at height 0, and are surrounded by flat ground.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import mujoco
import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

Heights = NDArray[np.float64]
CELL = 0.1
"""Metres between two points of the map."""
_FLAT_MIDDLE = 1.0
"""Metres from the middle of a tile, where robots start, that are flat."""
_FLAT_EDGE = 0.2
"""Metres at the edge of a tile that are at height 0, so that tiles fit together."""
BORDER = 20.0
"""Metres of flat ground around the tiles: farther than a robot walks in an episode."""
_STEP_WIDTH = 0.3


def _flat(x: Heights, y: Heights, d: float, rng: Generator) -> Heights:
    return np.zeros_like(x)


def _slope(x: Heights, y: Heights, d: float, rng: Generator) -> Heights:
    """A pyramid, up or down, of slope up to 0.4."""
    return 0.4 * d * _inwards(x, y) * rng.choice([-1.0, 1.0])


def _rough(x: Heights, y: Heights, d: float, rng: Generator) -> Heights:
    """Random bumps of up to 2 to 10 cm, drawn every 0.2 m."""
    high = 0.02 + 0.08 * d
    coarse = rng.uniform(-high, high, (len(x) // 2 + 2, len(x) // 2 + 2))
    rows, columns = np.arange(len(x)) / 2, np.arange(x.shape[1]) / 2
    r, c = rows.astype(int), columns.astype(int)
    fr, fc = (rows - r)[:, None], (columns - c)[None]
    upper = coarse[np.ix_(r, c)] * (1 - fc) + coarse[np.ix_(r, c + 1)] * fc
    lower = coarse[np.ix_(r + 1, c)] * (1 - fc) + coarse[np.ix_(r + 1, c + 1)] * fc
    return upper * (1 - fr) + lower * fr


def _stairs(x: Heights, y: Heights, d: float, rng: Generator) -> Heights:
    """Steps of 5 to 23 cm, 0.3 m wide: robots start at the bottom and climb to the edge."""
    return -(0.05 + 0.18 * d) * np.floor(_inwards(x, y) / _STEP_WIDTH + 1e-6)


def _stairs_down(x: Heights, y: Heights, d: float, rng: Generator) -> Heights:
    """The same, from the top down to the edge."""
    return -_stairs(x, y, d, rng)


def _obstacles(x: Heights, y: Heights, d: float, rng: Generator) -> Heights:
    """Twenty blocks and holes of 5 to 25 cm, 0.5 to 2 m long."""
    heights, high = np.zeros_like(x), 0.05 + 0.2 * d
    for _ in range(20):
        centre, half = rng.uniform(x.min(), x.max(), 2), rng.uniform(0.25, 1.0, 2)
        inside = (np.abs(x - centre[0]) < half[0]) & (np.abs(y - centre[1]) < half[1])
        heights[inside] = rng.choice([-high, -high / 2, high / 2, high])
    return heights


def _stones(x: Heights, y: Heights, d: float, rng: Generator) -> Heights:
    """Stones of 1.5 to 0.3 m, 0.1 to 0.2 m apart, over a pit of 1 m."""
    size, gap = max(0.3, 1.5 * (1.05 - d)), 0.1 + 0.1 * d
    on_stone = ((x % (size + gap)) < size) & ((y % (size + gap)) < size)
    return np.where(on_stone, 0.0, -1.0)


def _gaps(x: Heights, y: Heights, d: float, rng: Generator) -> Heights:
    """A moat of 0.1 to 0.7 m width around the start, 1 m deep."""
    away = np.maximum(np.abs(x), np.abs(y))
    return np.where((away > 1.5) & (away < 1.6 + 0.6 * d), -1.0, 0.0)


KINDS: dict[str, Callable[[Heights, Heights, float, Generator], Heights]] = {
    "flat": _flat,
    "slope": _slope,
    "rough": _rough,
    "stairs_up": _stairs,
    "stairs_down": _stairs_down,
    "obstacles": _obstacles,
    "stones": _stones,
    "gaps": _gaps,
}
"""Heights of a tile as a function of the distance from its middle and of a difficulty from 0 to 1."""


def _inwards(x: Heights, y: Heights) -> Heights:
    """Distance from the edge of the tile, as far as its flat middle."""
    edge = float(np.abs(x).max())
    return np.minimum(edge - np.maximum(np.abs(x), np.abs(y)), edge - _FLAT_MIDDLE)


@dataclass(frozen=True)
class Terrain:
    """A height map and its tiles."""

    heights: Tensor
    """`[X, Y]` float32, metres; point (i, j) is at `CELL * (i, j) + origin`."""
    origin: tuple[float, float]
    tile_size: float
    kinds: tuple[str, ...]
    """Kind of each column of tiles."""

    def start(self, level: Tensor, column: Tensor) -> Tensor:
        """`[N, 2]`, the middle of the tiles of levels and columns `[N]`."""
        x, y = (BORDER + (place + 0.5) * self.tile_size for place in (level, column))
        return torch.stack((x + self.origin[0], y + self.origin[1]), -1)

    def to(self, device: torch.device) -> "Terrain":
        """The same with the height map on a device."""
        return replace(self, heights=self.heights.to(device))

    def height(self, x: Tensor, y: Tensor) -> Tensor:
        """Heights of the ground at any points; the edge goes on beyond.

        They are the triangles of MuJoCo's height field, which cuts a cell along the diagonal from (0, 0) to (1, 1).
        """
        rows, width = self.heights.shape
        u = ((x - self.origin[0]) * (1.0 / CELL)).clamp(0, rows - 1.001)
        v = ((y - self.origin[1]) * (1.0 / CELL)).clamp(0, width - 1.001)
        i, j = u.long(), v.long()
        u, v = u - i, v - j
        at, flat = i * width + j, self.heights.flatten()
        near, middle, far = flat[at], flat[at + torch.where(u >= v, width, 1)], flat[at + (width + 1)]
        # Along the edges of the triangle: first in the direction in which the point is farther.
        return near + (middle - near) * torch.maximum(u, v) + (far - middle) * torch.minimum(u, v)


def make_terrain(
    shares: dict[str, float], *, num_levels: int, num_columns: int, tile_size: float, seed: int
) -> Terrain:
    """Tiles of `num_levels` x `num_columns`; the columns have the kinds in the given shares, level 0 is flat."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(list(shares.values())) / sum(shares.values())
    names = list(shares)
    kinds = tuple(names[int(np.searchsorted(ends, (c + 0.5) / num_columns))] for c in range(num_columns))
    count, border = round(tile_size / CELL), round(BORDER / CELL)
    side = (np.arange(count) + 0.5) * CELL - 0.5 * tile_size
    x, y = np.meshgrid(side, side, indexing="ij")
    away = np.maximum(np.abs(x), np.abs(y))
    middle, edge = away <= _FLAT_MIDDLE, away > away.max() - _FLAT_EDGE
    tiles = np.zeros((num_levels * count, num_columns * count))
    for level in range(1, num_levels):
        for column, kind in enumerate(kinds):
            tile = KINDS[kind](x, y, level / (num_levels - 1), rng)
            tile = np.where(edge, 0.0, np.where(middle, np.median(tile[middle]), tile))
            tiles[level * count : (level + 1) * count, column * count : (column + 1) * count] = tile
    heights = np.pad(tiles, ((border, border + 1), (border, border + 1)))
    size = ((heights.shape[0] - 1) * CELL, (heights.shape[1] - 1) * CELL)
    origin = (-0.5 * size[0], -0.5 * size[1])
    return Terrain(torch.from_numpy(heights).float(), origin, tile_size, kinds)


def add_to(spec: mujoco.MjSpec, terrain: Terrain | None) -> None:
    """Add the ground to a model: a plane, or the height field of a terrain."""
    if terrain is None:
        spec.worldbody.add_geom(
            name="ground", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], contype=1, conaffinity=0, material="ground"
        )
        return
    heights = terrain.heights.numpy().astype(np.float64)
    low, high = heights.min(), heights.max()
    span = max(high - low, 1e-3)
    rows = ((heights - low) / span).T  # MuJoCo's rows go along y
    spec.add_hfield(
        name="terrain",
        nrow=rows.shape[0],
        ncol=rows.shape[1],
        size=[-terrain.origin[0], -terrain.origin[1], span, 0.5],
        userdata=rows.flatten().tolist(),
    )
    spec.worldbody.add_geom(
        name="ground",
        type=mujoco.mjtGeom.mjGEOM_HFIELD,
        hfieldname="terrain",
        pos=[0, 0, low],
        contype=1,
        conaffinity=0,
        material="ground",
    )
