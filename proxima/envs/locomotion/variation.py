"""What differs between the robots: friction, mass, centre of mass, gains and latency, one value each per robot."""

import torch
from torch import Tensor

from proxima.envs.locomotion.robot import LEGS, TIMESTEP
from proxima.envs.locomotion.settings import QuadrupedSettings
from proxima.envs.physics.protocol import Physics

VARYING = ("geom_friction", "body_mass", "body_ipos", "actuator_gainprm", "actuator_biasprm")
"""Model fields that `vary` changes."""
NUM_DRAWS = 7
NUM_TRAITS = 6
"""Friction, payload, centre of mass (3), gains."""


def vary(physics: Physics, settings: QuadrupedSettings, draw: Tensor) -> tuple[Tensor, Tensor]:
    """Give every robot its own body, by `draw` `[N, 7]`, uniform in [0, 1).

    Returns:
        Traits `[N, 6]`, for the critic, and the latency `[N]` in substeps.
    """
    model, randomise, control = physics.model, settings.randomise, settings.control
    low, high = randomise.friction
    friction, either = low + (high - low) * draw[:, :1], 2.0 * draw[:, 1:6] - 1.0
    payload, shift = randomise.payload * either[:, :1], randomise.centre_of_mass * either[:, 1:4]
    gains = 1.0 + randomise.gains * either[:, 4:5]
    trunk = model.body("trunk").id
    feet = [model.geom(f"{leg}_foot").id for leg in LEGS]
    physics.per_world("geom_friction")[:, feet, 0] = friction
    physics.per_world("body_mass")[:, trunk] = float(model.body_mass[trunk]) + payload[:, 0]
    physics.per_world("body_ipos")[:, trunk] = shift + shift.new_tensor(model.body_ipos[trunk])
    physics.per_world("actuator_gainprm")[:, :, 0] = control.kp * gains
    physics.per_world("actuator_biasprm")[:, :, 1] = -control.kp * gains
    physics.per_world("actuator_biasprm")[:, :, 2] = -control.kd * gains
    physics.model_changed()
    latency = control.latency[0] + (control.latency[1] - control.latency[0]) * draw[:, 6]
    return torch.cat((friction, payload, shift, gains), 1), (latency / TIMESTEP).round().long()
