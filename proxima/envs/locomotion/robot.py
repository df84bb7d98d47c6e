"""The robot: its model (MJCF of our own, on a ground), where its feet are, and how it moves in its own frame."""

import math
from dataclasses import dataclass
from pathlib import Path

import mujoco
import torch
from torch import Tensor

from proxima.envs.locomotion.depth import CameraSettings
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
CAMERA = "depth"
"""The camera's name in the model."""
_HIP_X, _HIP_Y, _THIGH_Y, _LEG = 0.1881, 0.04675, 0.08, 0.213
_FILE = Path(__file__).parent / "files" / "quadruped.xml"


def build_model(settings: QuadrupedSettings, terrain: Terrain | None) -> mujoco.MjModel:
    """The robot with its gains, on a plane or on a terrain."""
    spec = mujoco.MjSpec.from_file(str(_FILE))
    add_to(spec, terrain)
    if settings.camera is not None:
        _add_camera(spec, settings.camera)
    model = spec.compile()
    control = settings.control
    model.actuator_gainprm[:, 0] = control.kp
    model.actuator_biasprm[:, 1], model.actuator_biasprm[:, 2] = -control.kp, -control.kd
    return model


def _add_camera(spec: mujoco.MjSpec, settings: CameraSettings) -> None:
    """Mount the depth camera on the trunk."""
    camera = spec.body("trunk").add_camera(
        name=CAMERA,
        pos=settings.position,
        fovy=settings.vertical_field_of_view,
        resolution=[settings.width, settings.height],
    )
    pitch = math.radians(settings.pitch)
    # A camera of MuJoCo looks along its -z: right of the image is the trunk's -y, up leans forward by the pitch.
    camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
    camera.alt.xyaxes = [0.0, -1.0, 0.0, math.sin(pitch), 0.0, math.cos(pitch)]


@dataclass(frozen=True)
class Motion:
    """How the robots move, in the frame of the trunk unless another is named."""

    velocity: Tensor  # [N, 3] m/s
    turn: Tensor  # [N, 3] rad/s
    gravity: Tensor  # [N, 3], its direction; (0, 0, -1) when level
    joint: Tensor  # [N, 12] rad
    joint_velocity: Tensor  # [N, 12] rad/s

    @classmethod
    def of(cls, physics: Physics) -> "Motion":
        """That of the current state, as new tensors."""
        qpos, qvel = physics.qpos, physics.qvel
        rotation = rotations(qpos[:, 3:7])
        velocity = (qvel[:, :3, None] * rotation).sum(1)
        return cls(velocity, qvel[:, 3:6].clone(), -rotation[:, 2], qpos[:, 7:].clone(), qvel[:, 6:].clone())

    def restarted(self, rows: Tensor, joint: Tensor) -> "Motion":
        """The same, with the robots of `rows` `[N, 1]` level and at rest with these joint angles `[12]`."""
        return Motion(
            velocity=self.velocity.masked_fill(rows, 0.0),
            turn=self.turn.masked_fill(rows, 0.0),
            gravity=torch.cat(
                (self.gravity[:, :2].masked_fill(rows, 0.0), self.gravity[:, 2:].masked_fill(rows, -1.0)), 1
            ),
            joint=torch.where(rows, joint, self.joint),
            joint_velocity=self.joint_velocity.masked_fill(rows, 0.0),
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
    products = 2.0 * quaternion[:, :, None] * quaternion[:, None, :]
    (_, wx, wy, wz), (_, xx, xy, xz), (_, _, yy, yz), (_, _, _, zz) = (row.unbind(1) for row in products.unbind(1))
    rows = (1 - yy - zz, xy - wz, xz + wy, xy + wz, 1 - xx - zz, yz - wx, xz - wy, yz + wx, 1 - xx - yy)
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def foot_places(qpos: Tensor) -> Tensor:
    """Centres of the feet `[N, 4, 3]` in the world."""
    rotation = rotations(qpos[:, 3:7])
    return (_foot_places(qpos[:, 7:])[:, :, None] * rotation[:, None]).sum(-1) + qpos[:, None, :3]


def _foot_places(joint: Tensor) -> Tensor:
    """The same in the trunk's frame, of joint angles `[N, 12]`."""
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
