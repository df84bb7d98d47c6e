"""The quadruped's mirror, against its physics."""

from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from proxima.envs.contract import Reflection
from proxima.envs.locomotion import env as quadruped
from proxima.envs.locomotion.env import Quadruped
from proxima.envs.locomotion.mirror import LAYOUTS, PARTS, quadruped_mirror
from proxima.envs.locomotion.robot import LEGS, STANCE, build_model
from proxima.envs.locomotion.senses import SCAN_X, SCAN_Y

BOXES = {"proprioception": (45,), "scandots": (132,), "commands": (3,), "privileged": (145,), "depth": (1, 4, 6)}
SPACE = spaces.Dict({key: spaces.Box(-1.0, 1.0, shape) for key, shape in BOXES.items()})
MIRROR = quadruped_mirror(SPACE, scan_width=SCAN_Y[2])
ALIKE = {"gains": 0.0, "centre_of_mass": 0.0, "noise": 0.0, "push_speed": 0.0, "payload": 0.0, "friction": [0.8, 0.8]}


def reflect(x: Tensor, reflection: Reflection) -> Tensor:
    sign = torch.tensor(reflection.sign, dtype=x.dtype)
    return (x.flatten(1)[:, list(reflection.index)] * sign).view_as(x)


@pytest.mark.parametrize("key", [*BOXES, "action"])
def test_twice_is_the_identity(key: str) -> None:
    shape, reflection = ((12,), MIRROR.action) if key == "action" else (BOXES[key], MIRROR.obs[key])
    x = torch.randn(5, *shape)
    assert torch.equal(reflect(reflect(x, reflection), reflection), x)
    assert not torch.equal(reflect(x, reflection), x)


def test_the_stance_is_its_own_mirror_image() -> None:
    stance = torch.tensor([STANCE])
    assert torch.equal(reflect(stance, MIRROR.action), stance)


def test_scandots_are_reflected_point_by_point() -> None:
    x, y = (torch.linspace(*ends) for ends in (SCAN_X, SCAN_Y))
    ahead, beside = torch.cartesian_prod(x, y).T
    torch.testing.assert_close(reflect(ahead[None], MIRROR.obs["scandots"])[0], ahead)
    torch.testing.assert_close(reflect(beside[None], MIRROR.obs["scandots"])[0], -beside)


def test_images_are_flipped_by_their_columns() -> None:
    depth = torch.randn(2, 1, 4, 6)
    assert torch.equal(reflect(depth, MIRROR.obs["depth"]), depth.flip(-1))


def test_privileged_parts_are_reflected_at_their_places() -> None:
    x = torch.arange(1.0, 146.0)[None]
    seen = reflect(x, MIRROR.obs["privileged"])[0]
    expected = [1, -2, 3, 5, 4, 7, 6, 8, 9, 10, -11, 12, 13]
    assert seen[:13].tolist() == expected and seen[13:24].tolist() == list(range(24, 13, -1))
    assert sum(size for _, size in LAYOUTS["privileged"]) == 145


def test_a_layout_that_does_not_fit_is_named() -> None:
    space = spaces.Dict({"commands": spaces.Box(-1.0, 1.0, (4,))})
    with pytest.raises(ValueError, match=r"'commands'\] has 3 numbers, but the observation 4"):
        quadruped_mirror(space, scan_width=11)


@pytest.mark.parametrize(("index", "sign"), [((1, 2, 0), (1, 1, 1)), ((1, 0), (1, -1)), ((0, 1), (1,)), ((0,), (2,))])
def test_what_is_no_reflection_is_refused(index: tuple[int, ...], sign: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="swaps in pairs"):
        Reflection(index, sign)


def symmetric_model(*args: Any) -> mujoco.MjModel:
    """Without the 2 mm by which the trunk's centre of mass is off its middle."""
    model = build_model(*args)
    trunk = model.body("trunk").id
    assert abs(model.body_ipos[trunk, 1]) < 0.01
    model.body_ipos[trunk, 1] = 0.0
    mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Quadruped:
    """Two robots in a random state and its mirror image, on the plane, with commands and last actions to match."""
    monkeypatch.setattr(quadruped, "build_model", symmetric_model)
    env = Quadruped(num_envs=2, ground={"kind": "plane"}, randomise=ALIKE, rewards={"clip_at_zero": False})
    env.reset(seed=0)
    generator = torch.Generator().manual_seed(3)

    def both(x: Tensor, part: str | None = None) -> Tensor:
        image = x if part is None else reflect(x[None], PARTS[part](len(x)))[0]
        return torch.stack((x, image)).double()

    def draw(size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    w, x, y, z = torch.nn.functional.normalize(torch.tensor([1.0, 0.15, -0.1, 0.4]), dim=0).tolist()
    qpos, qvel = env.physics.qpos, env.physics.qvel
    qpos[:, :3] = torch.tensor([[0.3, 0.5, 0.29], [0.3, -0.5, 0.29]])
    qpos[:, 3:7] = torch.tensor([[w, x, y, z], [w, -x, y, -z]])
    qpos[:, 7:] = both(torch.tensor(STANCE) + 0.1 * draw(12), "joint_angles")
    qvel[:, :3] = both(0.5 * draw(3), "linear_velocity")
    qvel[:, 3:6] = both(0.5 * draw(3), "angular_velocity")
    qvel[:, 6:] = both(draw(12), "joint_velocities")
    world = env._world
    world["command"] = both(0.5 * draw(3), "commands")
    world["action"] = both(draw(12), "action")
    world["joint_velocity"] = both(draw(12), "joint_velocities")
    world["air_time"] = both(draw(4).abs(), "contacts")
    return env


def test_a_mirrored_action_in_a_mirrored_state_has_the_same_reward_and_a_mirrored_outcome(pair: Quadruped) -> None:
    mirror = quadruped_mirror(pair.observation_space, scan_width=SCAN_Y[2])
    generator = torch.Generator().manual_seed(4)
    touched = torch.zeros(2, len(LEGS), dtype=torch.bool)
    for _ in range(5):
        action = torch.randn(1, 12, generator=generator)
        step = pair.step(torch.cat((action, reflect(action, mirror.action))))
        assert step.final_obs is None and float(step.reward[0]) == pytest.approx(float(step.reward[1]), abs=1e-6)
        for key, x in step.obs.items():
            torch.testing.assert_close(reflect(x[:1], mirror.obs[key]), x[1:], rtol=0, atol=1e-6)
        touched |= pair.sensors.touching
    assert bool(touched.any(1).all()), "no foot touched the ground"
    velocity = pair.physics.qvel[:, :3]
    assert np.sign(float(velocity[0, 1])) == -np.sign(float(velocity[1, 1])) != 0
