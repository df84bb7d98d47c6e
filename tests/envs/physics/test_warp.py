"""MuJoCo Warp, here on its CPU device, against MuJoCo."""

import mujoco
import pytest
import torch

pytest.importorskip("mujoco_warp")

from proxima.envs.locomotion.env import Quadruped
from proxima.envs.locomotion.robot import STANCE, build_model
from proxima.envs.locomotion.settings import parse
from proxima.envs.physics.cpu import CpuPhysics
from proxima.envs.physics.protocol import Physics
from proxima.envs.physics.warp import WarpPhysics

# The first run compiles the kernels, which takes a minute or more.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("warp")]
WORLDS = 4
VARYING = ("geom_friction", "body_mass")


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return build_model(parse({}), None)


@pytest.fixture(scope="module")
def engines(model: mujoco.MjModel) -> tuple[CpuPhysics, WarpPhysics]:
    return CpuPhysics(model, WORLDS, varying=VARYING), WarpPhysics(model, WORLDS, device="cpu", varying=VARYING)


def start(physics: Physics, model: mujoco.MjModel) -> None:
    qpos = torch.from_numpy(model.qpos0.copy()).to(physics.dtype).repeat(WORLDS, 1)
    qpos[:, 7:] = torch.tensor(STANCE, dtype=physics.dtype)
    qpos[:, 2] = 0.3
    physics.reset(torch.ones(WORLDS, dtype=torch.bool), qpos, torch.zeros(WORLDS, model.nv, dtype=physics.dtype))
    feet = [model.geom(f"{leg}_foot").id for leg in ("FR", "FL", "RR", "RL")]
    physics.per_world("geom_friction")[:, feet, 0] = torch.linspace(0.4, 1.2, WORLDS, dtype=physics.dtype)[:, None]
    trunk, extra = model.body("trunk").id, torch.linspace(-1.0, 2.0, WORLDS, dtype=physics.dtype)
    physics.per_world("body_mass")[:, trunk] = float(model.body_mass[trunk]) + extra
    physics.model_changed()


def target(step: int, world: int, dtype: torch.dtype) -> torch.Tensor:
    swing = 0.2 * torch.sin(torch.arange(12.0, dtype=dtype) + 0.1 * step + world)
    return torch.tensor(STANCE, dtype=dtype) + swing


def test_both_engines_move_alike(engines: tuple[CpuPhysics, WarpPhysics], model: mujoco.MjModel) -> None:
    for physics in engines:
        start(physics, model)
    c, warp = engines
    for step in range(50):
        for physics in engines:
            for world in range(WORLDS):
                physics.ctrl[world] = target(step, world, physics.dtype)
            physics.step(4)  # 200 substeps in all
        assert (c.qpos - warp.qpos).abs().max() < 1e-4, step
    assert (c.qvel - warp.qvel).abs().max() < 1e-2
    assert (c.qpos[0] - c.qpos[1]).abs().max() > 0.01  # the worlds differ
    assert torch.allclose(c.derived("sensordata").float(), warp.derived("sensordata"), atol=0.5, rtol=0.02)
    assert torch.allclose(c.derived("actuator_force").float(), warp.derived("actuator_force"), atol=0.05)
    assert warp.overflows() == 0


def test_the_env_on_warp_is_the_env_on_mujoco(engines: tuple[CpuPhysics, WarpPhysics]) -> None:
    found = []
    for engine in ("mujoco", "warp"):
        env = Quadruped(num_envs=2, ground={"kind": "plane"}, engine={"name": engine})
        env.reset(seed=0)
        for _ in range(3):
            step = env.step(torch.zeros(2, 12))
        found.append(step)
    assert env.counters() == {"physics_failures": 0, "contact_overflows": 0}
    for key, x in found[0].obs.items():
        torch.testing.assert_close(found[1].obs[key], x, rtol=0, atol=1e-3)
    torch.testing.assert_close(found[1].reward, found[0].reward, rtol=0, atol=1e-3, check_dtype=False)


def test_a_reset_touches_its_worlds_only(engines: tuple[CpuPhysics, WarpPhysics], model: mujoco.MjModel) -> None:
    warp = engines[1]
    start(warp, model)
    warp.step(4)
    before = warp.get_state()["state"]
    mask = torch.tensor([False, True, False, False])
    qpos = torch.from_numpy(model.qpos0.copy()).float().repeat(WORLDS, 1)
    warp.reset(mask, qpos, torch.zeros(WORLDS, model.nv))
    after = warp.get_state()["state"]
    assert torch.equal(warp.qpos[1], qpos[1]) and not bool(warp.qvel[1].any())
    for name in ("qpos", "qvel", "qacc_warmstart", "ctrl"):
        assert torch.equal(before[name][~mask], after[name][~mask]), name


def test_a_state_goes_on_alike(engines: tuple[CpuPhysics, WarpPhysics], model: mujoco.MjModel) -> None:
    warp = engines[1]
    start(warp, model)
    warp.step(8)
    state = warp.get_state()
    warp.step(8)
    expected = warp.qpos.clone()
    warp.per_world("body_mass").mul_(2.0)
    warp.set_state(state)
    warp.step(8)
    assert torch.equal(warp.qpos, expected)
