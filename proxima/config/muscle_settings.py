"""The settings of a muscle env: what an env file says, checked. Reading the files is in `env_file.py`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from proxima.config.nested import build, number, plain
from proxima.errors import UsageError

OWN_MODEL, MYO_MODELS = "planar_legs", ("myolegs26",)
"""Bodies by name: our own, and those of the package myo_sim."""
INPUT_SCALE = 200.0
"""The muscle network sees moments and torques divided by this, in Nm."""
LEAK = 0.2
"""Slope of its LeakyReLU."""


@dataclass(frozen=True)
class Control:
    """From actions to torques."""

    mode: Literal["hierarchical", "direct"] = "hierarchical"
    """hierarchical: a network turns the torques into muscle activations; direct: the torques act on the joints."""
    rate: float = number(30.0, above=0.0)
    """Actions per second."""
    simulation_rate: float = number(480.0, above=0.0)
    """Physics steps per second; torques and activations are computed in each."""
    action_scale: float = number(0.1, above=0.0)
    """Radians of joint target per unit of action."""
    kp: float = number(300.0)
    """Stiffness of every driven joint, in Nm/rad."""
    kv: float | None = None
    """Damping of every driven joint, in Nms/rad; None is sqrt(2 kp)."""
    torque_limit: float | None = None
    """Largest torque of a joint in direct mode, in Nm; None for none."""


@dataclass(frozen=True)
class Joint:
    """One driven joint: what it follows, and gains that differ from those of `control`."""

    curve: Literal["hip", "knee", "ankle", "none"] = "none"
    """Curve of the reference gait; none keeps the joint at 0."""
    phase: float = 0.0
    """Where in the gait cycle the curve begins: 0.5 for the other leg."""
    sign: float = 1.0
    """-1 if the joint's positive direction is opposite to flexion (hip, knee) or dorsiflexion (ankle)."""
    kp: float | None = None
    kv: float | None = None


@dataclass(frozen=True)
class Reference:
    """The reference motion."""

    motion: Literal["walk", "stand"] = "walk"
    """walk: a gait cycle; stand: upright, all joints at 0."""
    period: float = number(1.1, above=0.0)
    """Seconds per gait cycle."""
    random_start: bool = True
    """Episodes start at a random phase of the motion; otherwise at phase 0."""


@dataclass(frozen=True)
class Reward:
    """Factors of the reward, each `exp(-k error)`, k 0 for none: the reward is the product of `0.1 + 0.9 factor`."""

    pose: float = number(2.0)
    """Of the squared differences of joint angles, in rad."""
    velocity: float = number(0.02)
    """Of the squared differences of joint velocities, in rad/s."""
    end_effector: float = number(20.0)
    """Of the squared distances of the feet, seen from the root, in m."""
    root: float = number(10.0)
    """Of the squared error of the root's height (m), tilt (rad) and, times 0.1, speed (m/s)."""
    metabolic: float = number(8.0)
    """Of the mean squared activation; 1 in direct mode."""


@dataclass(frozen=True)
class Termination:
    """What ends an episode."""

    height: float = number(0.75)
    """A root below this share of its height in the reference motion."""
    tilt: float = number(0.8, above=0.0)
    """A root tilted by more than this, in rad."""
    seconds: float = number(10.0, above=0.0)
    """The time limit."""


@dataclass(frozen=True)
class MuscleSettings:
    """Everything that an env file says."""

    model: str = "planar_legs"
    """planar_legs, myolegs26 (package myo_sim), or the path of an MJCF file."""
    control: Control = field(default_factory=Control)
    joints: dict[str, Joint] = field(default_factory=dict)
    """Driven joints by name; one that is not listed is kept at 0 with the gains of `control`."""
    feet: tuple[str, ...] = ("foot_r", "foot_l")
    """Bodies that touch the ground, the end effectors."""
    reference: Reference = field(default_factory=Reference)
    reward: Reward = field(default_factory=Reward)
    termination: Termination = field(default_factory=Termination)
    hidden_sizes: tuple[int, ...] = (256, 256, 256)
    """Hidden layers of the muscle network."""

    @property
    def substeps(self) -> int:
        """Physics steps per action."""
        return round(self.control.simulation_rate / self.control.rate)

    @property
    def max_episode_steps(self) -> int:
        """The time limit in control steps."""
        return max(1, round(self.termination.seconds * self.control.rate))

    def check(self) -> None:
        """Raise a UsageError if settings contradict each other."""
        ratio = self.control.simulation_rate / self.control.rate
        if abs(ratio - round(ratio)) > 1e-9 or ratio < 1:
            raise UsageError(
                f"control.simulation_rate is {self.control.simulation_rate:g}, but it must be a multiple of "
                f"control.rate {self.control.rate:g}."
            )


def parse_settings(content: Mapping[str, Any]) -> MuscleSettings:
    """Settings from nested mappings, as in a file; numbers may be text. A UsageError names a wrong key or value."""
    settings: MuscleSettings = build(MuscleSettings, content)
    settings.check()
    return settings


def to_dict(settings: MuscleSettings) -> dict[str, Any]:
    """The settings as plain mappings, lists, text and numbers; `parse_settings` reads them back."""
    found: dict[str, Any] = plain(settings)
    return found
