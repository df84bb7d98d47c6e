"""The terms of the quadruped's reward, as functions of one step; `settings.Rewards` has their weights."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from proxima.envs.locomotion.robot import Motion
from proxima.envs.locomotion.settings import Rewards


@dataclass(frozen=True)
class Transition:
    """One step of all robots."""

    motion: Motion
    command: Tensor  # [N, 3], the one that was followed
    action: Tensor  # [N, 12]
    last_action: Tensor  # [N, 12]
    last_joint_velocity: Tensor  # [N, 12]
    torque: Tensor  # [N, 12]
    touching: Tensor  # [N, 4] bool
    colliding: Tensor  # [N, 5] bool
    air_time: Tensor  # [N, 4] seconds since the foot last touched the ground, this step included
    foot: Tensor  # [N, 4, 3]; empty unless a weight needs it, as the next two
    foot_velocity: Tensor  # [N, 4, 2], horizontal, mean of the step
    foot_height: Tensor  # [N, 4], above the ground
    fell: Tensor  # [N] bool
    limits: tuple[Tensor, Tensor]  # [12] each, of the joints
    stance: Tensor  # [12]
    options: Rewards
    dt: float


def _tracking_velocity(t: Transition) -> Tensor:
    return (-(t.command[:, :2] - t.motion.velocity[:, :2]).square().sum(1) / t.options.tracking_width).exp()


def _tracking_turn(t: Transition) -> Tensor:
    return (-(t.command[:, 2] - t.motion.turn[:, 2]).square() / t.options.tracking_width).exp()


def _joint_acceleration(t: Transition) -> Tensor:
    return ((t.last_joint_velocity - t.motion.joint_velocity) / t.dt).square().sum(1)


def _air_time(t: Transition) -> Tensor:
    landed = t.touching & (t.air_time > t.dt)
    moves = t.command[:, :2].square().sum(1) > 0.1**2
    return ((t.air_time - t.options.long_step) * landed).sum(1) * moves


def _foot_clearance(t: Transition) -> Tensor:
    speed = t.foot_velocity.square().sum(-1).sqrt()
    return ((t.foot_height - t.options.clearance).square() * speed).sum(1)


def _joint_limits(t: Transition) -> Tensor:
    low, high = t.limits
    return ((low - t.motion.joint).clamp(min=0) + (t.motion.joint - high).clamp(min=0)).sum(1)


TERMS: dict[str, Callable[[Transition], Tensor]] = {
    "tracking_velocity": _tracking_velocity,
    "tracking_turn": _tracking_turn,
    "vertical_velocity": lambda t: t.motion.velocity[:, 2].square(),
    "roll_pitch_rate": lambda t: t.motion.turn[:, :2].square().sum(1),
    "tilt": lambda t: t.motion.gravity[:, :2].square().sum(1),
    "torque": lambda t: t.torque.square().sum(1),
    "power": lambda t: (t.torque * t.motion.joint_velocity).abs().sum(1),
    "joint_acceleration": _joint_acceleration,
    "action_rate": lambda t: (t.action - t.last_action).square().sum(1),
    "air_time": _air_time,
    "foot_clearance": _foot_clearance,
    "foot_slip": lambda t: (t.foot_velocity.square().sum(-1) * t.touching).sum(1),
    "collision": lambda t: t.colliding.sum(1).to(t.torque.dtype),
    "joint_limits": _joint_limits,
    "pose": lambda t: (t.motion.joint - t.stance).square().sum(1),
    "alive": lambda t: (~t.fell).to(t.torque.dtype),
    "fall": lambda t: t.fell.to(t.torque.dtype),
}


def needs_feet(weights: Rewards) -> bool:
    """Whether the places of the feet matter."""
    return bool(weights.foot_clearance or weights.foot_slip)


def reward(t: Transition) -> Tensor:
    """The weighted sum of the terms `[N]`; a term without weight is not computed."""
    weights = t.options
    total = t.command[:, 0] * 0.0
    for name, term in TERMS.items():
        if name == "fall" and weights.clip_at_zero:  # the last one, after the clipping
            total = total.clamp(min=0.0)
        if weight := getattr(weights, name):
            total = total + weight * term(t)
    return total
