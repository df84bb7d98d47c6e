"""The quadruped's env: its reward against a plain reference, its curriculum, its state."""

import mujoco
import numpy as np
import pytest
import torch

from proxima.envs.locomotion.env import JOINTS, Quadruped
from proxima.envs.locomotion.robot import STANCE
from proxima.envs.make import make_env
from proxima.errors import UsageError

PLAIN = {"noise": 0.0, "push_speed": 0.0, "payload": 0.0, "gains": 0.0, "centre_of_mass": 0.0}


def stepped(env: Quadruped, steps: int, seed: int = 0) -> Quadruped:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        env.step(torch.randn(env.num_envs, JOINTS, generator=generator))
    return env


@pytest.mark.parametrize("kind", ["plane", "rough"])
def test_observation_and_reward_are_those_of_a_plain_single_robot(kind: str) -> None:
    env = Quadruped(num_envs=3, ground={"kind": kind}, randomise=PLAIN, rewards={"clip_at_zero": False})
    env.reset(seed=0)
    stepped(env, 7)
    before = {name: x[1].clone().numpy() for name, x in env._world.items()}
    action = torch.randn(3, JOINTS, generator=torch.Generator().manual_seed(5))
    step = env.step(action)
    data = mujoco.MjData(env.model)
    data.qpos[:], data.qvel[:] = env.qpos[1].numpy(), env.physics.qvel[1].numpy()
    mujoco.mj_forward(env.model, data)
    rotation = data.xmat[env.model.body("trunk").id].reshape(3, 3)
    velocity, turn, gravity = rotation.T @ data.qvel[:3], data.qvel[3:6], rotation.T @ [0.0, 0.0, -1.0]
    joint, joint_velocity = data.qpos[7:], data.qvel[6:]

    touching = env.sensors.touching[1].numpy()
    air_time = before["air_time"] + 0.02
    collisions = env.sensors.colliding[1].numpy().sum()
    low, high = env.model.jnt_range[1:].T
    middle, half = (low + high) / 2, 0.45 * (high - low)
    command = before["command"]
    reward = np.exp(-((command[:2] - velocity[:2]) ** 2).sum() / 0.25)
    reward += 0.5 * np.exp(-((command[2] - turn[2]) ** 2) / 0.25)
    reward += -2.0 * velocity[2] ** 2 - 0.05 * (turn[:2] ** 2).sum()
    reward += -2e-4 * (env.sensors.torque[1].numpy() ** 2).sum()
    reward += -2.5e-7 * (((before["joint_velocity"] - joint_velocity) / 0.02) ** 2).sum()
    reward += -0.01 * ((action[1].double().numpy() - before["action"]) ** 2).sum()
    reward -= collisions
    reward += ((air_time - 0.5) * (touching & (air_time > 0.02))).sum() * (np.linalg.norm(command[:2]) > 0.1)
    reward += -10.0 * (np.maximum(middle - half - joint, 0) + np.maximum(joint - middle - half, 0)).sum()
    assert float(step.reward[1]) == pytest.approx(reward, abs=1e-9)

    seen = np.concatenate((2 * velocity, 0.25 * turn, gravity, joint - STANCE, 0.05 * joint_velocity, action[1]))
    assert np.allclose(step.obs["proprioception"][1].numpy(), seen, atol=1e-5)
    yaw = np.arctan2(rotation[1, 0], rotation[0, 0])
    down, hit, heights = np.array([0.0, 0.0, -1.0]), np.zeros(1, np.int32), []
    for x in np.linspace(-0.45, 1.2, 12):
        for y in np.linspace(-0.75, 0.75, 11):
            turned = np.array([x * np.cos(yaw) - y * np.sin(yaw), x * np.sin(yaw) + y * np.cos(yaw)])
            at = data.qpos[:2] + turned
            ground = env.model.geom("ground").id
            ray = mujoco.mj_ray(
                env.model, data, np.array([*at, 10.0]), down, None, 1, env.model.body("trunk").id, hit, None
            )
            assert ray > 0
            heights.append(10.0 - ray if hit[0] == ground else np.nan)
    scan = 2.5 * np.clip(data.qpos[2] - 0.3 - np.array(heights), -1, 1)
    seen_ground = ~np.isnan(scan)  # where no leg is in the way
    assert seen_ground.sum() > 100
    assert np.allclose(step.obs["scandots"][1].numpy()[seen_ground], scan[seen_ground], atol=1e-4)


def test_a_state_in_the_middle_goes_on_to_the_same_bits() -> None:
    env = stepped(make_env("proxima/Quadruped-v0", num_envs=3), 0)
    env.reset(seed=3)
    stepped(env, 20)
    state = env.get_state()
    first = stepped(env, 20, seed=1).qpos.clone()
    other = Quadruped(num_envs=3, num_threads=1)
    other.set_state(state)
    assert torch.equal(stepped(other, 20, seed=1).qpos, first)


def test_env_i_does_not_depend_on_the_number_of_envs_on_a_plane() -> None:
    several, alone = (Quadruped(num_envs=n, ground={"kind": "plane"}) for n in (3, 1))
    several.reset(seed=5)
    alone.reset(seed=7)
    action = torch.randn(30, 1, JOINTS, generator=torch.Generator().manual_seed(0))
    for a in action:
        step, one = several.step(a.repeat(3, 1)), alone.step(a)
        assert torch.equal(step.obs["proprioception"][2], one.obs["proprioception"][0])
        assert torch.equal(step.reward[2], one.reward[0])


def test_a_fallen_robot_ends_its_episode_and_says_so() -> None:
    env = Quadruped(num_envs=2, ground={"kind": "plane"})
    env.reset(seed=0)
    env.physics.qpos[1, 3:7] = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)  # on its back
    step = env.step(torch.zeros(2, JOINTS))
    assert step.terminated.tolist() == [False, True] and not bool(step.truncated.any())
    assert float(step.episodes.info["fell"][1]) == 1.0 and step.final_obs is not None
    assert float(step.final_obs["proprioception"][1, 8]) > 0.5 and float(step.obs["proprioception"][1, 8]) < -0.9


def test_settings_with_mistakes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"there is no setting rewards.torqe. Did you mean torque"):
        Quadruped(rewards={"torqe": 1.0})
    with pytest.raises(UsageError, match=r"control.kp is -1, but it must be above 0"):
        Quadruped(control={"kp": -1})
    with pytest.raises(UsageError, match=r"ground.shares.lava: there is no such terrain"):
        Quadruped(ground={"shares": {"lava": 1.0}})
