"""The robot's model: MJCF of our own, on a ground."""

from pathlib import Path

import mujoco

from proxima.envs.locomotion.settings import QuadrupedSettings
from proxima.envs.locomotion.terrain import Terrain, add_to

LEGS = ("FR", "FL", "RR", "RL")
STANCE = (-0.1, 0.9, -1.8, 0.1, 0.9, -1.8, -0.1, 0.9, -1.8, 0.1, 0.9, -1.8)
"""Joint angles at rest: hip, thigh and calf of each leg."""
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
