"""The robot: its model (MJCF of our own, on a ground), where its feet are, and how it moves in its own frame."""

from dataclasses import dataclass
from pathlib import Path

import mujoco
import torch
from torch import Tensor

from proxima.envs.locomotion.settings import QuadrupedSettings
from proxima.envs.locomotion.terrain import Terrain, add_to
from proxima.envs.physics.protocol import Physics

LEGS = ("FR", "FL", "RR", "RL")
JOINTS = 12
STANCE = (-0.1, 0.9, -1.8, 0.1, 0.9, -1.8, -0.1, 0.9, -1.8, 0.1, 0.9, -1.8)
"""Joint angles at rest: hip, thigh and calf of each leg."""
TIMESTEP = 0.005
NOMINAL_HEIGHT = 0.3
"""Of the trunk above the ground, metres."""
FOOT_RADIUS = 0.023
_HIP_X, _HIP_Y, _THIGH_Y, _LEG = 0.1881, 0.04675, 0.08, 0.213
_FILE = Path(__file__).parent / "files" / "quadruped.xml"


def build_model(settings: QuadrupedSettings, terrain: Terrain | None) -> mujoco.MjModel:
    """The robot with its gains, on a plane or on a terrain."""
    spec = mujoco.MjSpec.from_file(str(_FILE))
    add_to(spec, terrain)
    model = spec.compile()
    control = settings.control
    model.actuator_gainprm[:, 0] = control.kp
    model.actuator_biasprm[:, 1], model.actuator_biasprm[:, 2] = -control.kp, -control.kd
    return model


@dataclass(frozen=True)
class Motion:
    """How the robots move, in the frame of the trunk unless another is named."""

    velocity: Tensor  # [N, 3] m/s
    turn: Tensor  # [N, 3] rad/s
    gravity: Tensor  # [N, 3], its direction; (0, 0, -1) when level
    joint: Tensor  # [N, 12] rad
    joint_velocity: Tensor  # [N, 12] rad/s
    foot: Tensor  # [N, 4, 3] m, in the world

    @classmethod
    def of(cls, physics: Physics) -> "Motion":
        """That of the current state, as new tensors."""
        qpos, qvel = physics.qpos, physics.qvel
        rotation, joint = rotations(qpos[:, 3:7]), qpos[:, 7:].clone()
        foot = foot_places(joint) @ rotation.mT + qpos[:, None, :3]
        velocity = (qvel[:, None, :3] @ rotation)[:, 0]
        return cls(velocity, qvel[:, 3:6].clone(), -rotation[:, 2], joint, qvel[:, 6:].clone(), foot)

    def restarted(self, rows: Tensor, qpos: Tensor, yaw: Tensor) -> "Motion":
        """The same, with the robots of `rows` `[N, 1]` at rest, level, and turned by `yaw` `[N]`, as in `qpos`."""
        joint = qpos[:, 7:]
        x, y, z = foot_places(joint[:1])[0].unbind(-1)  # [4], the same for all
        cos, sin = yaw.cos()[:, None], yaw.sin()[:, None]
        foot = torch.stack((x * cos - y * sin, x * sin + y * cos, z.expand(len(qpos), 4)), -1) + qpos[:, None, :3]
        return Motion(
            velocity=self.velocity.masked_fill(rows, 0.0),
            turn=self.turn.masked_fill(rows, 0.0),
            gravity=torch.cat(
                (self.gravity[:, :2].masked_fill(rows, 0.0), self.gravity[:, 2:].masked_fill(rows, -1.0)), 1
            ),
            joint=torch.where(rows, joint, self.joint),
            joint_velocity=self.joint_velocity.masked_fill(rows, 0.0),
            foot=torch.where(rows[..., None], foot, self.foot),
        )


class Sensors:
    """What the robots' contact and torque sensors say: live, of the last substep."""

    def __init__(self, physics: Physics) -> None:
        self._contacts, self.torque = physics.derived("sensordata"), physics.derived("actuator_force")

    @property
    def touching(self) -> Tensor:
        """`[N, 4]` bool: the foot touches the ground."""
        return self._contacts[:, 0:16:4] > 0

    @property
    def trunk(self) -> Tensor:
        """`[N]` bool: the trunk touches the ground."""
        return self._contacts[:, 16] > 0

    @property
    def colliding(self) -> Tensor:
        """`[N, 5]` bool: the trunk and the knees that touch the ground."""
        return self._contacts[:, 16:] > 0


def rotations(quaternion: Tensor) -> Tensor:
    """Matrices `[N, 3, 3]` from the robot's frame to the world's, of unit quaternions `[N, 4]` (w first)."""
    w, x, y, z = quaternion.unbind(-1)
    rows = (
        *(1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        *(2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        *(2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def foot_places(joint: Tensor) -> Tensor:
    """Centres of the feet `[N, 4, 3]` in the trunk's frame, of joint angles `[N, 12]`."""
    hip, thigh, calf = joint.unflatten(-1, (4, 3)).unbind(-1)  # [N, 4]
    forward = -_LEG * (thigh.sin() + (thigh + calf).sin())
    down = -_LEG * (thigh.cos() + (thigh + calf).cos())
    # The legs are FR, FL, RR, RL: right is negative y, front is positive x.
    side = torch.ones_like(hip)
    side[..., 0::2] = -1.0
    front = torch.ones_like(hip)
    front[..., 2:] = -1.0
    cos, sin = hip.cos(), hip.sin()
    x = front * _HIP_X + forward
    y = side * (_HIP_Y + _THIGH_Y * cos) - down * sin
    z = side * _THIGH_Y * sin + down * cos
    return torch.stack((x, y, z), -1)
