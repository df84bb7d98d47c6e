"""Depth images of the terrain: rays against the height map, for many cameras at once, on any device.

Only the ground is seen: not the robot's own legs, and no other robots. `rendered_depth.py` sees the legs too. When a
robot's camera takes its next image, and what it sees until then, is in `depth_frames.py`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from proxima.config.nested import number
from proxima.envs.locomotion.terrain import CELL, Terrain
from proxima.errors import UsageError

_MAX_VIEW, _MAX_FAR = 150.0, 20.0
_CHUNK = {"cpu": 2**18, "cuda": 2**25}
"""Crossings of rays and lines of the map that are computed at once, in about 40 bytes each: fits a CPU's caches."""
_TOLERANCE = 1e-6
"""Lines nearer to each other than this share of their depth count as one."""


@dataclass(frozen=True)
class CameraSettings:
    """A depth camera on the trunk."""

    renderer: Literal["rays", "warp"] = "rays"
    """rays: rays against the height map, which see the ground only; warp: the batch renderer of MuJoCo Warp, which sees
    the robot's legs too, with the Warp engine only."""
    height: int = number(58, least=8)
    """Pixels."""
    width: int = number(87, least=8)
    """Pixels."""
    field_of_view: float = number(87.0, above=0.0)
    """Horizontal, degrees; pixels are square, so the vertical one follows."""
    position: tuple[float, ...] = (0.27, 0.0, 0.03)
    """On the trunk: metres forward, to the left, up."""
    pitch: float = number(30.0, least=-90.0)
    """Degrees down from the trunk's forward direction."""
    near: float = number(0.1)
    """Metres; what is nearer appears at this depth."""
    far: float = number(2.0, above=0.0)
    """Metres; what is farther, and the sky, appears at this depth."""
    every: int = number(5, least=1)
    """Policy steps between two images of a camera."""
    delay: int = number(0)
    """Images by which the policy lags behind: it sees the latest (0), the one before (1), ..."""
    noise: float = number(0.005)
    """Std of the depth at 1 m, metres; it grows with the square of the depth, as that of stereo cameras does."""
    dropout: float = number(0.0)
    """Share of pixels without a measurement, which appear at the far limit."""

    def __post_init__(self) -> None:
        limits = {"field_of_view": _MAX_VIEW, "pitch": 90.0, "far": _MAX_FAR, "dropout": 1.0}
        for name, limit in limits.items():
            if getattr(self, name) > limit:
                raise UsageError(f"camera.{name} is {getattr(self, name):g}, but it must be at most {limit:g}.")
        if self.near >= self.far:
            raise UsageError(f"camera.near is {self.near:g}, but it must be below camera.far, {self.far:g}.")
        if len(self.position) != 3:
            raise UsageError(
                f"camera.position has {len(self.position)} numbers, but it must have 3: metres forward, left, up."
            )

    @property
    def vertical_field_of_view(self) -> float:
        """Degrees."""
        half = math.tan(math.radians(0.5 * self.field_of_view)) * self.height / self.width
        return math.degrees(2.0 * math.atan(half))


class Camera(ABC):
    """Depth images of many robots."""

    def __init__(self, settings: CameraSettings, device: torch.device | str) -> None:
        self.settings, self.device = settings, torch.device(device)

    @abstractmethod
    def look(self, qpos: Tensor) -> Tensor:
        """Images `[K, 1, H, W]` float32 of robots in the states `[K, nq]`.

        Depth along the optical axis, clipped to near and far and divided by far: 1 is nothing within reach.
        """

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image: channels, height, width."""
        return 1, self.settings.height, self.settings.width

    @property
    def num_pixels(self) -> int:
        """Random numbers that `degrade` needs per image."""
        return self.settings.height * self.settings.width

    def degrade(self, image: Tensor, draw: Tensor) -> Tensor:
        """Images `[K, 1, H, W]` with noise and dropout, from numbers `[K, H * W]` that are uniform in [0, 1)."""
        settings = self.settings
        draw = draw.view_as(image)
        lost = draw < settings.dropout
        # What is left of the number is uniform again: of std 1 after this.
        noise = math.sqrt(12.0) * ((draw - settings.dropout) / max(1.0 - settings.dropout, 1e-6) - 0.5)
        measured = image + settings.noise * settings.far * image.square() * noise
        measured = torch.where(image < 1.0, measured, image)  # there is nothing to measure beyond the far limit
        return torch.where(lost, 1.0, measured.clamp(settings.near / settings.far, 1.0))


class _Rays(NamedTuple):
    """Rays of a few cameras as functions of the depth."""

    start: Tensor
    """`[3, K, 1, 1]`: x and y in cells from a corner of the camera's cell, height in metres."""
    slope: Tensor
    """`[3, K, 1, P]`: change of these per metre of depth."""
    corner: Tensor
    """`[K, 1, 1]` int32: index of that corner in the flat map."""


class _Lines(NamedTuple):
    """Where rays cross a family of parallel lines of the map: its rows, its columns or the diagonals of its cells."""

    first: Tensor
    """`[K, 1, P]`: depth of the first crossing."""
    gap: Tensor
    """`[K, 1, P]`: depth between two crossings."""

    def depth(self, index: Tensor) -> Tensor:
        return self.first + index * self.gap


class DepthCamera(Camera):
    """Depth along the optical axis of the ground that robots see.

    The ground consists of triangles, so along a ray its height is linear between the lines of the map (rows, columns
    and the diagonals that halve the cells). The first line at which the ray is below the ground, and the line before
    it, enclose the intersection, which is then linear interpolation: exact up to rounding, like a ray of MuJoCo. The
    number of lines within reach is fixed, so nothing depends on values: no synchronisation with a GPU.

    A camera in the ground sees the near limit. Beyond the edge the ground goes on at its height; a camera out there
    sees what it would see from the nearest point of the map.

    Args:
        settings: The camera.
        terrain: The ground; None is a plane at height 0.
        device: Of the images, and of the computation.
        dtype: Of the computation. Positions are taken relative to a camera's cell, so that float32 is accurate to
            about 1e-5 m on a map of any size.
    """

    def __init__(
        self,
        settings: CameraSettings,
        terrain: Terrain | None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(settings, device)
        self.terrain, self.dtype = terrain, dtype
        self._mount = torch.tensor(settings.position, dtype=torch.float64, device=self.device)
        self._directions = _directions(settings).to(self.device, dtype)  # [3, P]
        if terrain is None:
            return
        reach = settings.far * float(_directions(settings).norm(dim=0).max()) / CELL  # cells
        self._num_lines, self._num_diagonals = math.ceil(reach) + 1, math.ceil(math.sqrt(2.0) * reach) + 1
        # Wide enough for every line of every ray, so that indices need no check.
        self._margin = self._num_lines + self._num_diagonals + 2
        size = (self._margin,) * 4
        padded = F.pad(terrain.heights.to(self.device, dtype)[None, None], size, mode="replicate")[0, 0]
        self._row, self._heights = padded.shape[1], padded.flatten()
        self._step = torch.arange(self._num_diagonals, device=self.device, dtype=torch.int32)[:, None]  # [M, 1]
        self._scale = torch.tensor([1.0 / CELL, 1.0 / CELL, 1.0], device=self.device, dtype=dtype)[:, None, None, None]

    def look(self, qpos: Tensor) -> Tensor:
        """Images `[K, 1, H, W]` of states `[K, nq]`, which begin with the pose of the trunk."""
        return self.render(qpos[:, :3], qpos[:, 3:7])

    def render(self, position: Tensor, quaternion: Tensor) -> Tensor:
        """Images `[K, 1, H, W]` float32 from poses of the trunk, `[K, 3]` and `[K, 4]` (w, x, y, z).

        Depth is clipped to near and far and divided by far: 1 is nothing within reach.
        """
        rotation = _rotation(quaternion.double())  # [K, 3, 3]
        origin = torch.nan_to_num(position.double()) + (rotation * self._mount).sum(-1)
        # Not a matrix product, which rounds to TF32 on some GPUs, and depends on the number of cameras.
        columns = rotation.to(self.dtype).permute(2, 1, 0)[..., None]  # [3, 3, K, 1]
        slope = sum(c * d for c, d in zip(columns, self._directions, strict=True))  # [3, K, P]
        if self.terrain is None:
            depth = _plane_depth(origin[:, 2:].to(self.dtype), slope[2])
        else:
            work = self._num_diagonals * self.num_pixels
            count = max(1, _CHUNK.get(self.device.type, _CHUNK["cpu"]) // work)
            parts = zip(origin.split(count), slope.split(count, 1), strict=True)
            depth = torch.cat([self._cast(self._rays(*part)) for part in parts])
        near, far = self.settings.near, self.settings.far
        return (depth.clamp(near, far) / far).float().view(len(position), *self.shape)

    def _rays(self, origin: Tensor, slope: Tensor) -> _Rays:
        """Rays in the map from camera positions `[K, 3]` (float64) and directions `[3, K, P]`."""
        assert self.terrain is not None
        size, corner = self.terrain.heights.shape, self.terrain.origin
        x, y = (((origin[:, a] - corner[a]) / CELL).clamp(0.0, size[a] - 1.0) for a in (0, 1))
        i, j = x.floor(), y.floor()
        start = torch.stack((x - i, y - j, origin[:, 2].clamp(-1e6, 1e6))).to(self.dtype)[..., None, None]
        index = (i.int() + self._margin) * self._row + j.int() + self._margin
        return _Rays(start, self._scale * slope[:, :, None], index[:, None, None])

    def _cast(self, rays: _Rays) -> Tensor:
        """Depth `[K, P]` of the ground; infinite where there is none before the far limit."""
        far, row = self.settings.far, self._row
        (x, y, _), (dx, dy, _) = rays.start, rays.slope
        rows = self._first_below(rays, x, dx, along=1, strides=(row, 1), count=self._num_lines)
        columns = self._first_below(rays, y, dy, along=0, strides=(1, row), count=self._num_lines)
        diagonals = self._first_below(rays, x - y, dx - dy, along=0, strides=(-1, row + 1), count=self._num_diagonals)
        below = torch.minimum(torch.minimum(rows, columns), diagonals)  # [K, 1, P]
        end = below.clamp(max=far)
        before = torch.zeros_like(end)
        for start, slope in ((x, dx), (y, dy), (x - y, dx - dy)):
            before = torch.maximum(before, _last_before(_lines(start, slope)[0], end * (1.0 - _TOLERANCE)))
        over, under = (self._clearance(rays.start + depth * rays.slope, rays.corner) for depth in (before, end))
        is_hit = (under <= 0.0) | (below < far)
        over = over.clamp(min=0.0)
        share = over / (over - under).clamp(min=1e-12)
        depth = torch.where(is_hit, before + (end - before) * share.clamp(max=1.0), math.inf)
        in_ground = self._clearance(rays.start, rays.corner) <= 0.0  # [K, 1, 1]
        return depth.masked_fill(in_ground, 0.0).squeeze(1)

    def _first_below(
        self, rays: _Rays, start: Tensor, slope: Tensor, *, along: int, strides: tuple[int, int], count: int
    ) -> Tensor:
        """Depth `[K, 1, P]` of the first line of a family at which the ray is below the ground; infinite if none.

        `start` and `slope` are the ray's coordinate across the lines, the integers of which are the lines, and `along`
        is the axis along them. A point of the map is at `strides[0] * line + strides[1] * along`, from the corner.
        """
        step, far = self._step[:count], self.settings.far
        lines, first, sign = _lines(start, slope)
        depth = lines.depth(step)  # [K, M, P]
        reached = depth.clamp(max=far)
        position = rays.start[along] + reached * rays.slope[along]
        whole = position.floor()
        line = rays.corner + strides[0] * first + (strides[0] * sign) * step
        index = (line + strides[1] * whole.int()).flatten()
        low = self._heights.index_select(0, index).view_as(position)
        high = self._heights.index_select(0, index + strides[1]).view_as(position)
        ground = torch.lerp(low, high, position - whole)
        below = (rays.start[2] + reached * rays.slope[2] <= ground) & (depth < far)
        return torch.where(below, depth, math.inf).amin(1, keepdim=True)

    def _clearance(self, point: Tensor, corner: Tensor) -> Tensor:
        """Height of points `[3, K, 1, P]`, as in `_Rays`, above the ground; triangles as in `Terrain.height`."""
        x, y, z = point
        i, j = x.floor(), y.floor()
        fx, fy = x - i, y - j
        row = self._row
        index = (corner + row * i.int() + j.int()).flatten()
        h00, h01, h10, h11 = (
            self._heights.index_select(0, index + offset).view_as(x) for offset in (0, 1, row, row + 1)
        )
        upper = h00 + (h10 - h00) * fx + (h11 - h10) * fy
        lower = h00 + (h01 - h00) * fy + (h11 - h01) * fx
        return z - torch.where(fx >= fy, upper, lower)


def _lines(start: Tensor, slope: Tensor) -> tuple[_Lines, Tensor, Tensor]:
    """Crossings of a family, the number of its first line, and +1 or -1 per line after that (int32)."""
    forward = slope >= 0.0
    first = torch.where(forward, start.floor() + 1.0, start.ceil() - 1.0)  # [K, 1, P]
    # Parallel to the lines, the crossing is far away, but finite.
    speed = slope.abs().clamp(min=1e-9)
    lines = _Lines((first - start).abs() / speed, speed.reciprocal())
    return lines, first.int(), torch.where(forward, 1, -1).int()


def _last_before(lines: _Lines, limit: Tensor) -> Tensor:
    """Depth of the last crossing before `limit`; 0 if there is none."""
    guess = ((limit - lines.first) / lines.gap).floor()
    last = torch.zeros_like(limit)
    for index in (guess - 1.0, guess, guess + 1.0):  # one of them, whatever the rounding
        depth = lines.depth(index)
        last = torch.maximum(last, torch.where((index >= 0.0) & (depth < limit), depth, 0.0))
    return last


def _directions(settings: CameraSettings) -> Tensor:
    """`[3, P]` float64: change of the position in the trunk's frame per metre of depth, for each pixel, row by row."""
    half = math.tan(math.radians(0.5 * settings.field_of_view))
    pixel = 2.0 * half / settings.width  # its size at a depth of 1
    right = (torch.arange(settings.width, dtype=torch.float64) + 0.5 - 0.5 * settings.width) * pixel
    down = (torch.arange(settings.height, dtype=torch.float64) + 0.5 - 0.5 * settings.height) * pixel
    down, right = torch.meshgrid(down, right, indexing="ij")
    sin, cos = (f(math.radians(settings.pitch)) for f in (math.sin, math.cos))
    return torch.stack((cos - sin * down, -right, -sin - cos * down)).flatten(1)


def _rotation(quaternion: Tensor) -> Tensor:
    """`[K, 3, 3]` from quaternions `[K, 4]` of any length; finite whatever they are."""
    w, x, y, z = torch.nan_to_num(F.normalize(quaternion, dim=-1)).unbind(-1)
    rows = (
        (1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)),
        (2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x)),
        (2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)),
    )
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def _plane_depth(height: Tensor, slope: Tensor) -> Tensor:
    """Depth `[K, P]` of a plane at 0 from heights `[K, 1]` and their change per metre of depth `[K, P]`."""
    depth = torch.where(slope < 0.0, height / -slope, math.inf)
    return depth.masked_fill(height <= 0.0, 0.0)
