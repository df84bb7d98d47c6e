"""The reference motion: joint angles over a gait cycle, and the root and feet that follow from them.

The curves are our own, through the peaks that gait textbooks give for walking at a comfortable speed (hip 30 degrees of
flexion to 10 of extension; knee 5, 18 in stance, 60 in swing; ankle 10 of dorsiflexion to 18 of plantarflexion).
"""

from dataclasses import dataclass

import mujoco
import numpy as np

from proxima.config.muscle_settings import MuscleSettings
from proxima.envs.muscle.body import Array, Joints, lowest_point
from proxima.errors import UsageError

# Percent of the cycle, from one heel strike to the next, and degrees: flexion, and dorsiflexion of the ankle.
_CURVES = {
    "hip": (
        (0, 30),
        (10, 26),
        (20, 18),
        (30, 8),
        (40, -2),
        (50, -9),
        (55, -10),
        (62, -4),
        (70, 10),
        (80, 25),
        (90, 31),
    ),
    "knee": ((0, 5), (8, 14), (15, 18), (25, 14), (40, 7), (50, 14), (60, 36), (70, 58), (73, 60), (80, 50), (90, 20)),
    "ankle": ((0, 0), (7, -5), (15, 1), (30, 7), (43, 10), (50, 5), (60, -15), (63, -18), (70, -10), (80, 0), (90, 1)),
}
_HARMONICS = 5
_SAMPLES = 440


@dataclass(frozen=True)
class Reference:
    """The motion at K equally spaced phases, `[K, ...]`; `at` interpolates."""

    period: float
    joints: Array  # [K, J], rad
    velocity: Array  # [K, J], rad/s
    height: Array  # [K], of the root
    feet: Array  # [K, F, 3], seen from the root
    rise: Array  # [K], vertical velocity of the root
    forward: Array  # [2], the horizontal direction of the walk
    speed: float  # of the root in this direction, m/s

    def at(self, table: Array, phase: Array) -> Array:
        """A table at phases `[N]` in [0, 1)."""
        place = phase * len(table)
        first = place.astype(np.int64) % len(table)
        share = (place - np.floor(place)).reshape(-1, *[1] * (table.ndim - 1))
        return table[first] * (1.0 - share) + table[(first + 1) % len(table)] * share


def make_reference(settings: MuscleSettings, model: mujoco.MjModel, joints: Joints) -> Reference:
    """The reference motion of a body. The root is as high as the lower foot allows, and moves as it would not slip."""
    for name in settings.joints:
        if name not in joints.names:
            known = ", ".join(joints.names)
            raise UsageError(f"joints.{name}: the model {settings.model} has no driven joint {name!r}; it has {known}.")
    bodies = []
    for name in settings.feet:
        body = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name)
        if body < 0:
            raise UsageError(f"feet: the model {settings.model} has no body {name!r}.")
        bodies.append(body)
    phase = np.arange(_SAMPLES) / _SAMPLES
    period = settings.reference.period
    angle, velocity = np.zeros((2, _SAMPLES, len(joints.names)))
    for column, name in enumerate(joints.names):
        joint = settings.joints.get(name)
        if joint is not None and joint.curve != "none" and settings.reference.motion == "walk":
            x, slope = _curve(joint.curve, phase + joint.phase)
            angle[:, column], velocity[:, column] = joint.sign * x, joint.sign * slope / period
    height, feet = _place_on_ground(model, joints, angle, bodies)
    step_seconds = period / _SAMPLES
    moved = (np.roll(feet, -1, 0) - feet)[:, :, :2]  # [K, F, 2], of each foot seen from the root
    standing = feet[:, :, 2].argmin(1)
    advance = -moved[np.arange(_SAMPLES), standing].mean(0) / step_seconds  # the standing foot does not slip
    speed = float(np.linalg.norm(advance))
    forward = advance / speed if speed > 1e-6 else np.array([1.0, 0.0])
    rise = (np.roll(height, -1) - height) / step_seconds
    return Reference(period, angle, velocity, height, feet, _smooth(rise), forward, speed)


def _curve(name: str, phase: Array) -> tuple[Array, Array]:
    """Angle in rad and its slope per cycle: the harmonics that fit the curve's points best."""
    percent, degrees = np.array(_CURVES[name]).T
    count = np.arange(1, _HARMONICS + 1)

    def terms(x: Array) -> Array:
        turn = 2.0 * np.pi * x[:, None] * count
        return np.concatenate((np.ones((len(x), 1)), np.cos(turn), np.sin(turn)), 1)

    # Equally spaced points on the straight lines between those given, so that all parts of the cycle count the same.
    dense = np.arange(100) / 100.0
    points = np.interp(dense, np.append(percent, 100) / 100.0, np.append(degrees, degrees[0]))
    weights = np.linalg.lstsq(terms(dense), np.radians(points), rcond=None)[0]
    turn = 2.0 * np.pi * phase[:, None] * count
    rates = 2.0 * np.pi * count
    slope = np.concatenate((np.zeros((len(phase), 1)), -rates * np.sin(turn), rates * np.cos(turn)), 1)
    return terms(phase) @ weights, slope @ weights


def _place_on_ground(model: mujoco.MjModel, joints: Joints, angle: Array, bodies: list[int]) -> tuple[Array, Array]:
    """Height of the root so that the lowest foot touches the ground, and the feet seen from the root."""
    data, heights, feet = mujoco.MjData(model), [], []
    qpos = np.tile(model.qpos0, (len(angle), 1))
    qpos[:, joints.qpos] = angle
    joints.follow(qpos, np.zeros((len(qpos), model.nv)))
    for q in qpos:
        data.qpos[:] = q
        mujoco.mj_kinematics(model, data)
        root = data.xpos[joints.root_body]
        heights.append(root[2] - lowest_point(model, data, bodies))
        feet.append(data.xpos[bodies] - root)
    return _smooth(np.array(heights)), np.array(feet)


def _smooth(x: Array) -> Array:
    """The mean over a twentieth of the cycle: where the legs take over from each other there is a kink."""
    width = _SAMPLES // 20 | 1
    padded = np.concatenate((x[-(width // 2) :], x, x[: width // 2]))
    return np.convolve(padded, np.full(width, 1.0 / width), mode="valid")
