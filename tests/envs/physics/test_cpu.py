"""Batched physics on the CPU against single simulations."""

import mujoco
import numpy as np
import pytest
import torch

from proxima.envs.locomotion.robot import STANCE, build_model
from proxima.envs.locomotion.settings import parse
from proxima.envs.physics.cpu import CpuPhysics

VARYING = ("geom_friction", "body_mass")


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return build_model(parse({}), None)


def started(model: mujoco.MjModel, count: int, **options: int) -> CpuPhysics:
    physics = CpuPhysics(model, count, varying=VARYING, **options)
    qpos = torch.from_numpy(model.qpos0.copy()).repeat(count, 1)
    qpos[:, 7:] = torch.tensor(STANCE, dtype=torch.float64)
    qpos[:, 2] = 0.3
    physics.reset(torch.ones(count, dtype=torch.bool), qpos, torch.zeros(count, model.nv))
    physics.ctrl[:] = torch.tensor(STANCE, dtype=torch.float64)
    return physics


def test_it_is_mj_step_to_the_bit(model: mujoco.MjModel) -> None:
    physics, data = started(model, 3), mujoco.MjData(model)
    data.qpos[7:], data.qpos[2], data.ctrl[:] = STANCE, 0.3, STANCE
    for i in range(20):
        physics.ctrl[1, 0] = STANCE[0] + 0.01 * (i + 1)
        physics.step(4)
    for i in range(20):
        data.ctrl[0] = STANCE[0] + 0.01 * (i + 1)
        mujoco.mj_step(model, data, 4)
    assert np.array_equal(physics.qpos[1].numpy(), data.qpos) and np.array_equal(physics.qvel[1].numpy(), data.qvel)
    assert not np.array_equal(physics.qpos[0].numpy(), data.qpos)


def test_a_reset_touches_its_worlds_only(model: mujoco.MjModel) -> None:
    physics = started(model, 3)
    physics.step(10)
    before = physics.get_state()["state"]
    mask = torch.tensor([False, True, False])
    physics.reset(mask, torch.from_numpy(model.qpos0).repeat(3, 1), torch.zeros(3, model.nv))
    after = physics.get_state()["state"]
    assert torch.equal(after[[0, 2]], before[[0, 2]]) and not torch.equal(after[1], before[1])
    assert torch.equal(physics.qpos[1], torch.from_numpy(model.qpos0))


def test_it_stands_and_the_heavier_one_sinks_deeper(model: mujoco.MjModel) -> None:
    physics = started(model, 2)
    physics.per_world("body_mass")[1, model.body("trunk").id] += 2.0
    physics.model_changed()
    physics.step(1200)
    height = physics.qpos[:, 2]
    assert 0.15 < float(height[1]) < float(height[0]) - 0.005 < 0.3
    assert float(physics.qvel.abs().max()) < 0.05
    found = physics.derived("sensordata")[:, :16].view(2, 4, 4)
    assert bool((found[:, :, 0] > 0).all())
    weight = found[:, :, 3].sum(1).abs()  # vertical forces on the feet
    total = torch.tensor([model.body_mass.sum(), model.body_mass.sum() + 2.0]) * 9.81
    assert torch.allclose(weight, total, rtol=0.02)


def test_friction_changes_how_far_it_slides(model: mujoco.MjModel) -> None:
    physics = started(model, 2)
    feet = [model.geom(f"{leg}_foot").id for leg in ("FR", "FL", "RR", "RL")]
    physics.per_world("geom_friction")[:, feet, 0] = torch.tensor([[0.2], [1.5]], dtype=torch.float64)
    physics.step(200)
    physics.qvel[:, 1] = 1.0  # a push to the side
    start = physics.qpos[:, 1].clone()
    physics.step(100)
    slid = physics.qpos[:, 1] - start
    assert float(slid[0]) > 1.3 * float(slid[1])


def test_a_state_goes_on_to_the_same_bits_in_other_physics_on_other_threads(model: mujoco.MjModel) -> None:
    physics = started(model, 4, num_threads=2)
    physics.per_world("body_mass")[2] *= 1.2
    physics.model_changed()
    physics.step(30)
    state = physics.get_state()
    physics.step(30)
    other = CpuPhysics(model, 4, varying=VARYING, num_threads=1)
    other.set_state(state)
    other.step(30)
    assert torch.equal(other.qpos, physics.qpos) and torch.equal(other.qvel, physics.qvel)
