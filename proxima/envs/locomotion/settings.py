"""The settings of the quadruped's task, each with its default; `env_kwargs` changes them."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from proxima.config.nested import build, number
from proxima.envs.locomotion.depth import CameraSettings
from proxima.envs.locomotion.terrain import CELL, KINDS
from proxima.errors import UsageError

_NEGATIVE = -1e9
_PHYSICS_RATE = 200


def _weight(default: float) -> Any:
    return number(default, least=_NEGATIVE)


@dataclass(frozen=True)
class Control:
    """From actions to joint targets: `stance + action_scale * action`, followed by PD control."""

    rate: float = number(50.0, above=0.0)
    """Actions per second, a divisor of 200: the physics takes 200 steps per second."""
    action_scale: float = number(0.25, above=0.0)
    """Radians per unit of action."""
    kp: float = number(35.0, above=0.0)
    """Nm/rad."""
    kd: float = number(0.5)
    """Nms/rad."""
    latency: tuple[float, ...] = (0.0, 0.0)
    """Range of the seconds after which an action takes effect, one value per robot; at most one action's duration."""
    sensor_delay: tuple[float, ...] = (0.0, 0.0)
    """Range of the seconds by which the sensors of the body lag behind, one value per robot, rounded to actions; not
    the heights, nor the camera, which has its own."""


@dataclass(frozen=True)
class Commands:
    """Velocities to follow, drawn uniformly between minus and plus these."""

    forward: float = number(1.0)
    """m/s."""
    sideways: float = number(1.0)
    """m/s."""
    turn: float = number(1.0)
    """rad/s."""
    only_forward: bool = False
    """Draw the forward velocity between 0.3 and `forward`, none sideways and no turn."""
    seconds: float = number(10.0, above=0.0)
    """A new command is drawn this often."""
    standing: float = number(0.02, most=1.0)
    """Share of commands that are zero."""


@dataclass(frozen=True)
class Rewards:
    """Weights of the terms, summed per step (not multiplied by its duration) as in Rudin et al. (2022)."""

    tracking_velocity: float = _weight(1.0)
    """exp(-error^2 / tracking_width) of the horizontal velocity, m/s."""
    tracking_turn: float = _weight(0.5)
    """exp(-error^2 / tracking_width) of the yaw rate, rad/s."""
    tracking_width: float = number(0.25, above=0.0)
    """Squared error at which the tracking terms are 1 / e."""
    vertical_velocity: float = _weight(-2.0)
    """Squared, m/s."""
    roll_pitch_rate: float = _weight(-0.05)
    """Squared, rad/s."""
    tilt: float = _weight(0.0)
    """Squared horizontal part of the gravity direction."""
    torque: float = _weight(-2e-4)
    """Sum of squares, Nm."""
    power: float = _weight(0.0)
    """Sum of the absolute mechanical power of the joints, W."""
    joint_acceleration: float = _weight(-2.5e-7)
    """Sum of squares, rad/s^2."""
    action_rate: float = _weight(-0.01)
    """Sum of squared changes of the action."""
    air_time: float = _weight(1.0)
    """Seconds in the air minus long_step of every foot that touches down, while a motion is commanded."""
    long_step: float = number(0.5)
    """Seconds in the air that are rewarded."""
    foot_clearance: float = _weight(0.0)
    """Squared distance of each foot from `clearance` above the ground times its horizontal speed, summed."""
    clearance: float = number(0.08)
    """Metres."""
    foot_slip: float = _weight(0.0)
    """Squared horizontal speed of the feet that touch the ground, summed."""
    collision: float = _weight(-1.0)
    """Number of knees that touch the ground, and one for the trunk."""
    joint_limits: float = _weight(-10.0)
    """Radians beyond 90 % of the joints' ranges."""
    pose: float = _weight(0.0)
    """Sum of squared joint angles from the stance, rad."""
    alive: float = _weight(0.0)
    """1 in every step without a fall."""
    fall: float = _weight(0.0)
    """1 in a step that ends the episode by a fall."""
    clip_at_zero: bool = True
    """A negative sum of all other terms than `fall` counts as 0, so that falling early never pays."""


@dataclass(frozen=True)
class Randomise:
    """Differences between robots and disturbances; a range of 0 switches one off."""

    friction: tuple[float, ...] = (0.5, 1.25)
    """Range of the feet's friction, one value per robot."""
    payload: float = number(1.0, most=4.0)
    """Range of extra mass on the trunk, ± kg."""
    centre_of_mass: float = number(0.02, most=0.2)
    """Range of the shift of the trunk's centre of mass along each axis, ± m."""
    gains: float = number(0.1, most=0.9)
    """Range of the factor on kp and kd, 1 ± this, one per robot."""
    push_speed: float = number(1.0)
    """Pushes set the horizontal velocity to up to ± this, m/s."""
    push_seconds: float = number(15.0, above=0.0)
    """Seconds between two pushes."""
    noise: float = number(1.0)
    """Factor on the noise of all sensors, the camera's too."""
    velocity_noise: float = number(0.1)
    """Of the trunk's velocity: uniform, up to ± this, m/s."""
    turn_noise: float = number(0.2)
    """Of the turn rates, ± rad/s."""
    gravity_noise: float = number(0.05)
    """Of each part of the direction of gravity, ±."""
    joint_noise: float = number(0.01)
    """Of the joint angles, ± rad."""
    joint_velocity_noise: float = number(1.5)
    """Of the joint velocities, ± rad/s."""
    height_noise: float = number(0.1)
    """Of the scandots, ± m."""


@dataclass(frozen=True)
class Ground:
    """The terrain and its curriculum."""

    kind: Literal["plane", "rough"] = "rough"
    """plane: flat without end; rough: tiles of the shares below."""
    shares: dict[str, float] = field(
        default_factory=lambda: {"slope": 0.1, "rough": 0.1, "stairs_up": 0.35, "stairs_down": 0.25, "obstacles": 0.2}
    )
    """Kinds of tiles and how many columns of each there are; also flat, stones, gaps."""
    levels: int = number(10, least=1)
    """Rows of tiles, of rising difficulty."""
    columns: int = number(20, least=1)
    """Columns of tiles; robots are spread over them. With fewer columns than kinds, some kinds are left out."""
    tile_size: float = number(8.0, above=2.0)
    """Metres."""
    start_level: int = number(5)
    """Robots start at random levels up to this one."""
    curriculum: Literal["distance", "success", "none"] = "distance"
    """distance: a robot goes up a level after walking half a tile without a fall, and down after less than half of the
    commanded distance or a fall; success: all robots on a kind of ground start at level 0, and its highest level rises
    when `raise_at` of the episodes on it succeed and falls below `lower_at`; none: every robot keeps a random level up
    to start_level."""
    raise_at: float = number(0.8, most=1.0)
    """Success rate from which the highest level rises."""
    lower_at: float = number(0.4, most=1.0)
    """Success rate below which it falls."""
    episodes: int = number(100, least=1)
    """Episodes on the highest level of a kind of ground after which it may change, for the curriculum by success."""
    good_tracking: float = number(0.6, most=1.0)
    """An episode without a fall is a success if the mean of its velocity-tracking term is above this."""
    seed: int = number(0)
    """Of the tiles: another one is another ground."""
    level: int | None = None
    """Every robot on this level, without a curriculum: for evaluation."""


@dataclass(frozen=True)
class Engine:
    """The physics engine; the limits are for MuJoCo Warp, whose memory is allocated once."""

    name: Literal["auto", "mujoco", "warp"] = "auto"
    """auto: MuJoCo on the CPU, MuJoCo Warp on a GPU."""
    deterministic: bool = False
    """Warp: stable orders of contacts and sums; runs still differ by about 1e-6."""
    max_contacts: int = number(32, least=1)
    """Per robot, on average over the robots."""
    max_constraints: int = number(96, least=1)
    """Per robot."""


@dataclass(frozen=True)
class QuadrupedSettings:
    """Everything about the task."""

    control: Control = field(default_factory=Control)
    commands: Commands = field(default_factory=Commands)
    rewards: Rewards = field(default_factory=Rewards)
    randomise: Randomise = field(default_factory=Randomise)
    ground: Ground = field(default_factory=Ground)
    engine: Engine = field(default_factory=Engine)
    camera: CameraSettings | None = None
    """Also observe `depth`, the images of a camera on the trunk; `{}` is the default camera, none is none."""
    privileged: bool = False
    """Also observe `privileged`: what only a simulator knows, for the critic (`encoders: {privileged: {use: critic}}`).
    Velocity, foot contacts, friction, payload, centre of mass, gains, and heights, all without noise."""
    max_tilt: float = number(1.2, above=0.0)
    """Radians from upright that end the episode."""
    min_height: float = number(0.0)
    """Metres of the trunk above the ground below it, under which the episode ends."""
    end_on_trunk_contact: bool = True
    """End the episode when the trunk touches the ground."""


def parse(content: dict[str, Any]) -> QuadrupedSettings:
    """Settings from nested mappings."""
    settings: QuadrupedSettings = build(QuadrupedSettings, content)
    for kind in settings.ground.shares:
        if kind not in KINDS:
            raise UsageError(f"ground.shares.{kind}: there is no such terrain; it can be {', '.join(KINDS)}.")
    ground, step = settings.ground, 1.0 / settings.control.rate
    if not ground.shares or not sum(ground.shares.values()):
        raise UsageError("ground.shares is empty: give at least one kind of ground, such as {rough: 1}.")
    if abs(_PHYSICS_RATE * step - round(_PHYSICS_RATE * step)) > 1e-6 or step < 1.0 / _PHYSICS_RATE:
        raise UsageError(
            f"control.rate is {settings.control.rate:g}, but it must divide {_PHYSICS_RATE}, as 50 or 100."
        )
    if abs(ground.tile_size / CELL - round(ground.tile_size / CELL)) > 1e-6:
        raise UsageError(f"ground.tile_size is {ground.tile_size:g}, but it must be a multiple of {CELL:g} m.")
    seconds = {"commands.seconds": settings.commands.seconds, "randomise.push_seconds": settings.randomise.push_seconds}
    for name, value in seconds.items():
        if value < step:
            raise UsageError(f"{name} is {value:g}, but it must be at least {step:g}, the time of one action.")
    if ground.level is not None and ground.level >= ground.levels:
        raise UsageError(f"ground.level is {ground.level}, but there are levels 0 to {ground.levels - 1}.")
    _check_range("control.latency", settings.control.latency, step)
    _check_range("control.sensor_delay", settings.control.sensor_delay, 1.0)
    _check_range("randomise.friction", settings.randomise.friction, math.inf)
    return settings


def _check_range(name: str, ends: tuple[float, ...], most: float) -> None:
    if len(ends) != 2 or not 0.0 <= ends[0] <= ends[1] <= most:
        limit = f", at most {most:g}" if math.isfinite(most) else ""
        raise UsageError(f"{name} is {list(ends)}, but it must be a lower and an upper end, at least 0{limit}.")
