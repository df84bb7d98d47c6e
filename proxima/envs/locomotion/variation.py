"""The robots' physics, and what differs between them: friction, mass, centre of mass, gains and delays."""

import logging

import mujoco
import torch
from torch import Tensor

from proxima.envs.locomotion.robot import LEGS, TIMESTEP
from proxima.envs.locomotion.settings import Engine, QuadrupedSettings
from proxima.envs.physics.cpu import CpuPhysics
from proxima.envs.physics.protocol import Physics
from proxima.errors import UsageError

log = logging.getLogger("proxima")

VARYING = ("geom_friction", "body_mass", "body_ipos", "actuator_gainprm", "actuator_biasprm")
"""Model fields that `vary` changes."""
NUM_DRAWS = 8
NUM_TRAITS = 6
"""Friction, payload, centre of mass (3), gains."""


def make_physics(
    model: mujoco.MjModel, num_worlds: int, device: torch.device, engine: Engine, num_threads: int | None
) -> Physics:
    """The engine of the settings, in which bodies can differ."""
    on_cpu = device.type == "cpu"
    if engine.name == "mujoco" and not on_cpu:
        raise UsageError(f"engine.name is mujoco, but the device is {device}: use warp, or --device cpu.")
    if on_cpu and engine.name != "warp":
        return CpuPhysics(model, num_worlds, varying=VARYING, num_threads=num_threads)
    if on_cpu:
        log.warning("MuJoCo Warp on a CPU is some 30 times slower than MuJoCo, and takes a minute to start.")
    from proxima.envs.physics.warp import WarpPhysics

    return WarpPhysics(
        model,
        num_worlds,
        device=device,
        varying=VARYING,
        max_contacts=engine.max_contacts,
        max_constraints=engine.max_constraints,
        deterministic=engine.deterministic,
    )


def vary(physics: Physics, settings: QuadrupedSettings, draw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Give every robot its own body, by `draw` `[N, 8]`, uniform in [0, 1).

    Returns:
        Traits `[N, 6]`, for the critic; `[N]` each: the latency in substeps, and the delay of the sensors in actions.
    """
    model, randomise, control = physics.model, settings.randomise, settings.control
    friction, either = _between(randomise.friction, draw[:, :1]), 2.0 * draw[:, 1:6] - 1.0
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
    latency = _between(control.latency, draw[:, 6]) / TIMESTEP
    delay = _between(control.sensor_delay, draw[:, 7]) * control.rate
    return torch.cat((friction, payload, shift, gains), 1), latency.round().long(), delay.round().long()


def _between(ends: tuple[float, ...], draw: Tensor) -> Tensor:
    return ends[0] + (ends[1] - ends[0]) * draw
