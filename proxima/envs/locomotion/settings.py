"""The settings of the quadruped's task, each with its default; `env_kwargs` changes them."""

from dataclasses import dataclass, field
from typing import Any, Literal

from proxima.config.nested import build, number
from proxima.envs.locomotion.terrain import KINDS
from proxima.errors import UsageError

_NEGATIVE = -1e9


def _weight(default: float) -> Any:
    return number(default, least=_NEGATIVE)


@dataclass(frozen=True)
class Control:
    """From actions to joint targets: `stance + action_scale * action`, followed by PD control."""

    rate: float = number(50.0, above=0.0)
    """Actions per second; the physics takes 200 steps per second."""
    action_scale: float = number(0.25, above=0.0)
    """Radians per unit of action."""
    kp: float = number(35.0, above=0.0)
    """Nm/rad."""
    kd: float = number(0.5)
    """Nms/rad."""


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
    standing: float = number(0.02)
    """Share of commands that are zero."""


@dataclass(frozen=True)
class Rewards:
    """Weights of the terms, summed per step (not multiplied by its duration) as in Rudin et al. (2022)."""

    tracking_velocity: float = _weight(1.0)
    """exp(-error^2 / 0.25) of the horizontal velocity, m/s."""
    tracking_turn: float = _weight(0.5)
    """exp(-error^2 / 0.25) of the yaw rate, rad/s."""
    vertical_velocity: float = _weight(-2.0)
    """Squared, m/s."""
    roll_pitch_rate: float = _weight(-0.05)
    """Squared, rad/s."""
    tilt: float = _weight(0.0)
    """Squared horizontal part of the gravity direction."""
    torque: float = _weight(-2e-4)
    """Sum of squares, Nm."""
    joint_acceleration: float = _weight(-2.5e-7)
    """Sum of squares, rad/s^2."""
    action_rate: float = _weight(-0.01)
    """Sum of squared changes of the action."""
    air_time: float = _weight(1.0)
    """Seconds in the air minus 0.5 of every foot that touches down, while a motion is commanded."""
    joint_limits: float = _weight(-10.0)
    """Radians beyond 90 % of the joints' ranges."""
    clip_at_zero: bool = True
    """A negative sum counts as 0, so that falling early never pays."""


@dataclass(frozen=True)
class Randomise:
    """Differences between robots and disturbances; a range of 0 switches one off."""

    friction: tuple[float, ...] = (0.5, 1.25)
    """Range of the feet's friction, one value per robot."""
    payload: float = number(1.0)
    """Range of extra mass on the trunk, ± kg."""
    push_speed: float = number(1.0)
    """Pushes set the horizontal velocity to up to ± this, m/s."""
    push_seconds: float = number(15.0, above=0.0)
    noise: float = number(1.0)
    """Scale of the sensor noise: joints 0.01 rad and 1.5 rad/s, turn rate 0.2 rad/s, gravity 0.05, velocity 0.1 m/s,
    heights 0.1 m."""


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
    columns: int = number(20, least=1)
    tile_size: float = number(8.0, above=2.0)
    """Metres."""
    start_level: int = number(5)
    """Robots start at random levels up to this one."""
    curriculum: bool = True
    """Up a level after walking half a tile, down after less than half of the commanded distance."""


@dataclass(frozen=True)
class QuadrupedSettings:
    """Everything about the task."""

    control: Control = field(default_factory=Control)
    commands: Commands = field(default_factory=Commands)
    rewards: Rewards = field(default_factory=Rewards)
    randomise: Randomise = field(default_factory=Randomise)
    ground: Ground = field(default_factory=Ground)
    max_tilt: float = number(1.2, above=0.0)
    """Radians from upright that end the episode."""
    min_height: float = number(0.12)
    """Metres of the trunk above the ground below which the episode ends."""


def parse(content: dict[str, Any]) -> QuadrupedSettings:
    """Settings from nested mappings."""
    settings: QuadrupedSettings = build(QuadrupedSettings, content)
    for kind in settings.ground.shares:
        if kind not in KINDS:
            raise UsageError(f"ground.shares.{kind}: there is no such terrain; it can be {', '.join(KINDS)}.")
    return settings
