"""The quadruped's left-right mirror: what every number of its observations and actions becomes.

A new part of an observation is one entry in `PARTS`, if its name is new, and one in `LAYOUTS`, at its place.
"""

from collections.abc import Callable, Sequence

from gymnasium import spaces

from proxima.envs.contract import Mirror, Reflection
from proxima.envs.locomotion.robot import LEGS

JOINTS_PER_LEG = 3
_OTHER_SIDE = {"R": "L", "L": "R"}
_SWAPPED = [LEGS.index(leg[0] + _OTHER_SIDE[leg[1]]) for leg in LEGS]
"""For each leg, the one on the other side."""
Part = Callable[[int], Reflection]
"""The reflection of a part with this many numbers."""


def _same(size: int) -> Reflection:
    return Reflection(tuple(range(size)), (1,) * size)


def _signed(*sign: int) -> Part:
    """Numbers that keep their places: `sign` repeats."""
    return lambda size: Reflection(tuple(range(size)), sign * (size // len(sign)))


def _legs(*sign: int) -> Part:
    """`len(sign)` numbers of each leg, which change sides, with these signs."""
    count = len(sign)
    index = tuple(count * leg + i for leg in _SWAPPED for i in range(count))
    return lambda size: Reflection(index, sign * (size // count))


def _columns(width: int) -> Part:
    """Rows of `width` columns, which are reversed: a grid of points, or the pixels of an image."""
    return lambda size: Reflection(
        tuple(row + column for row in range(0, size, width) for column in reversed(range(width))), (1,) * size
    )


_POLAR, _AXIAL = _signed(1, -1, 1), _signed(-1, 1, -1)
"""Vectors such as velocities; and turning, which a mirror reverses about all axes but its own."""
_JOINTS = _legs(-1, 1, 1)
"""Hip, thigh and calf of each leg: only the hip's axis is in the mirror's plane."""
PARTS: dict[str, Part] = {
    "linear_velocity": _POLAR,
    "angular_velocity": _AXIAL,
    "gravity": _POLAR,
    "joint_angles": _JOINTS,
    "joint_velocities": _JOINTS,
    "action": _JOINTS,
    "commands": _signed(1, -1, -1),  # forward, sideways, turn
    "contacts": _legs(1),
    "friction": _same,
    "payload": _same,
    "mass_centre": _POLAR,
    "gains": _same,
}
"""Known parts, besides `heights`, whose grid the env defines."""
LAYOUTS: dict[str, list[tuple[str, int]]] = {
    "proprioception": [
        ("linear_velocity", 3),
        ("angular_velocity", 3),
        ("gravity", 3),
        ("joint_angles", 12),
        ("joint_velocities", 12),
        ("action", 12),
    ],
    "scandots": [("heights", 132)],
    "commands": [("commands", 3)],
    "privileged": [
        ("linear_velocity", 3),
        ("contacts", 4),
        ("friction", 1),
        ("payload", 1),
        ("mass_centre", 3),
        ("gains", 1),
        ("heights", 132),
    ],
}
"""Parts and sizes of each observation key, in their order."""


def quadruped_mirror(observation_space: spaces.Dict, *, scan_width: int) -> Mirror:
    """The mirror for the keys of this space; keys without a known layout are left out.

    Images `[C, H, W]` are mirrored by their columns. `heights` are rows of `scan_width` points from right to left.
    """
    parts = PARTS | {"heights": _columns(scan_width)}
    obs = {}
    for key, box in observation_space.spaces.items():
        if len(box.shape) == 3:
            obs[key] = _columns(box.shape[-1])(box.shape[0] * box.shape[1] * box.shape[2])
        elif key in LAYOUTS:
            obs[key] = _joined([parts[name](size) for name, size in LAYOUTS[key]])
            if (size := len(obs[key].index)) != box.shape[0]:
                raise ValueError(f"LAYOUTS[{key!r}] has {size} numbers, but the observation {box.shape[0]}: adapt it.")
    return Mirror(obs, _JOINTS(JOINTS_PER_LEG * len(LEGS)))


def _joined(parts: Sequence[Reflection]) -> Reflection:
    """The reflection of parts in a row."""
    index: tuple[int, ...] = ()
    for part in parts:
        first = len(index)
        index += tuple(first + i for i in part.index)
    return Reflection(index, sum((part.sign for part in parts), ()))
