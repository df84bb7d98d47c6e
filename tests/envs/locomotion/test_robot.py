"""The robot's kinematics against MuJoCo's, and what differs between robots."""

import dataclasses
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from proxima.envs.action_hold import Hold
from proxima.envs.locomotion.env import Quadruped
from proxima.envs.locomotion.rewards import TERMS
from proxima.envs.locomotion.robot import JOINTS, LEGS, STANCE, Motion, build_model, foot_places, rotations
from proxima.envs.locomotion.settings import Rewards, parse
from proxima.envs.physics.cpu import CpuPhysics
from proxima.errors import UsageError

SAME = {"noise": 0.0, "push_speed": 0.0, "payload": 0.0, "gains": 0.0, "centre_of_mass": 0.0, "friction": [0.8, 0.8]}


def test_motion_is_that_of_mujoco() -> None:
    model = build_model(parse({}), None)
    physics, data = CpuPhysics(model, 5), mujoco.MjData(model)
    generator = torch.Generator().manual_seed(0)
    physics.qpos[:] = torch.randn(5, model.nq, generator=generator, dtype=torch.float64)
    physics.qpos[:, 3:7] /= physics.qpos[:, 3:7].norm(dim=1, keepdim=True)
    physics.qvel[:] = torch.randn(5, model.nv, generator=generator, dtype=torch.float64)
    motion, trunk = Motion.of(physics), model.body("trunk").id
    for i in range(5):
        data.qpos[:], data.qvel[:] = physics.qpos[i].numpy(), physics.qvel[i].numpy()
        mujoco.mj_forward(model, data)
        frame = data.xmat[trunk].reshape(3, 3)
        assert np.allclose(
            foot_places(physics.qpos)[i].numpy(), [data.site(f"{leg}_foot").xpos for leg in LEGS], atol=1e-12
        )
        assert np.allclose(motion.velocity[i].numpy(), frame.T @ data.qvel[:3], atol=1e-12)
        assert np.allclose(motion.gravity[i].numpy(), frame.T @ [0, 0, -1], atol=1e-12)
        assert np.allclose(rotations(physics.qpos[i : i + 1, 3:7])[0].numpy(), frame, atol=1e-12)


def test_the_motion_of_robots_that_start_is_that_of_their_state() -> None:
    env = Quadruped(num_envs=3)
    env.reset(seed=0)
    expected = Motion.of(env.physics)
    for f in dataclasses.fields(Motion):
        assert torch.allclose(getattr(env._motion, f.name), getattr(expected, f.name), atol=1e-12), f.name


def test_every_weight_is_of_a_term_and_every_term_has_a_weight() -> None:
    weights = {f.name for f in dataclasses.fields(Rewards)} - {
        "clip_at_zero",
        "tracking_width",
        "long_step",
        "clearance",
    }
    assert weights == set(TERMS)


def test_feet_that_slip_clear_and_collide() -> None:
    weights = {"foot_clearance": -1.0, "foot_slip": -1.0}
    env = Quadruped(num_envs=1, ground={"kind": "plane"}, randomise=SAME, rewards=weights)
    env.reset(seed=0)
    for _ in range(50):  # until it stands
        env.step(torch.zeros(1, JOINTS))
    step = env._transition(torch.zeros(1, JOINTS))
    assert bool(step.touching.all()) and not bool(step.colliding.any())
    assert float(step.foot_height.abs().max()) < 0.01
    assert float(TERMS["foot_slip"](step)) < 1e-3 and float(TERMS["collision"](step)) == 0.0
    env.physics.qpos[0, 2] = 0.06  # on its belly
    env.physics.qpos[0, 7:] = torch.tensor([0.0, 3.0, -2.7] * 4)
    env.physics.step(1)
    assert bool(env.sensors.trunk) and float(TERMS["collision"](env._transition(torch.zeros(1, JOINTS)))) >= 1.0


@pytest.mark.parametrize(
    "change", [{"payload": 2.0}, {"friction": [0.1, 0.3]}, {"centre_of_mass": 0.1}, {"gains": 0.5}]
)
def test_what_differs_between_robots_changes_how_they_move(change: dict[str, object]) -> None:
    def moved(randomise: dict[str, object]) -> torch.Tensor:
        env = Quadruped(num_envs=2, ground={"kind": "plane"}, randomise=randomise)
        env.reset(seed=1)
        env.physics.qpos[:, :7] = env.physics.qpos[:1, :7].clone()
        for i in range(10):
            env.step(torch.full((2, JOINTS), (-1.0) ** i))
        return env.qpos.clone()

    same, different = moved(SAME), moved({**SAME, **change})
    assert torch.equal(same[0], same[1])
    assert not torch.allclose(different[0], different[1], atol=1e-4)


def test_privileged_observations_are_the_truth() -> None:
    env = Quadruped(num_envs=2, privileged=True, randomise={"payload": 1.0})
    obs = env.reset(seed=0)
    for _ in range(3):
        obs = env.step(torch.zeros(2, JOINTS)).obs
    seen = obs["privileged"]
    assert seen.shape == (2, 145) == (2, *env.observation_space["privileged"].shape)
    assert torch.allclose(seen[:, :3], 2.0 * env._motion.velocity.float())
    trunk = env.model.body("trunk").id
    assert torch.allclose(seen[:, 8], (env.physics.per_world("body_mass")[:, trunk] - 5.204).float(), atol=1e-5)
    assert float((seen[:, 13:] - obs["scandots"]).abs().max()) <= 0.25 + 1e-6  # without the noise


def test_feet_do_not_sink_into_the_ground() -> None:
    env = Quadruped(num_envs=32)
    env.reset(seed=0)
    generator, sunk = torch.Generator().manual_seed(0), []
    for _ in range(80):
        env.step(torch.randn(32, JOINTS, generator=generator))
        foot = foot_places(env.qpos)
        sunk.append(foot[..., 2] < env._ground_height(foot[..., :2]))
    assert float(torch.stack(sunk).float().mean()) < 0.01  # centres; 0.2 with MuJoCo's default contacts


def test_an_action_takes_effect_after_the_latency() -> None:
    prompt, late = (
        Quadruped(num_envs=1, ground={"kind": "plane"}, randomise=SAME, control={"latency": [x, x]})
        for x in (0.0, 0.02)
    )
    actions = [torch.full((1, JOINTS), x) for x in (0.0, 1.0, -1.0, 0.5)]
    for env, shift in ((prompt, 0), (late, 1)):
        env.reset(seed=0)
        for action in [*actions, torch.zeros(1, JOINTS)][: len(actions) + shift]:
            env.step(action)
    # A step late: with the stance before the first action, that of the action 0.
    reference = Quadruped(num_envs=1, ground={"kind": "plane"}, randomise=SAME)
    reference.reset(seed=0)
    for action in [torch.zeros(1, JOINTS), *actions]:
        reference.step(action)
    assert torch.allclose(late.qpos, reference.qpos, atol=1e-12)
    with pytest.raises(UsageError, match=r"control.latency is \[0.0, 0.5\], but it must be a lower and an upper end"):
        Quadruped(control={"latency": [0.0, 0.5]})


def test_robots_that_wait_for_a_longer_hold_do_not_move() -> None:
    env = Quadruped(num_envs=2, ground={"kind": "plane"}, randomise=SAME)
    env.reset(seed=0)
    action = torch.full((2, JOINTS), 0.3)
    env._clock += 1
    env._advance(action, None)
    before, world = env.qpos.clone(), {name: x.clone() for name, x in env._world.items()}
    env._clock += 1
    env._advance(action, torch.tensor([True, False]))
    assert torch.equal(env.qpos[1], before[1]) and not torch.equal(env.qpos[0], before[0])
    for name, x in world.items():
        assert torch.equal(env._world[name][1], x[1]), name
    held = Quadruped(num_envs=1, ground={"kind": "plane"}, randomise=SAME)
    held.hold = Hold(3, 3, gamma=0.9)
    held.reset(seed=0)
    step = held.step(action[:1])
    single = Quadruped(num_envs=1, ground={"kind": "plane"}, randomise=SAME)
    single.reset(seed=0)
    rewards = [float(single.step(action[:1]).reward) for _ in range(3)]
    assert float(step.reward) == pytest.approx(rewards[0] + 0.9 * rewards[1] + 0.81 * rewards[2])
    assert torch.equal(held.qpos, single.qpos)


def test_failed_physics_ends_the_episode_of_its_robot_only() -> None:
    env = Quadruped(num_envs=3, ground={"kind": "plane"})
    env.reset(seed=0)
    env.physics.qvel[1, 8] = 1e6
    env.physics.qvel[2, 0] = float("nan")
    step = env.step(torch.zeros(3, JOINTS))
    assert step.terminated.tolist() == [False, True, True]
    assert all(bool(x.isfinite().all()) for obs in (step.obs, step.final_obs) for x in obs.values())  # type: ignore[union-attr]
    assert bool(step.reward.isfinite().all()) and env.counters()["physics_failures"] == 2


def test_few_robots_see_every_kind_of_ground_in_turn() -> None:
    env = Quadruped(num_envs=1, max_episode_steps=1)
    env.reset(seed=0)
    seen = set()
    for _ in range(60):
        seen.add(int(env._kind))
        step = env.step(torch.zeros(1, JOINTS))
    assert seen == {0, 1, 2, 3, 4}
    info = step.episodes.info
    known = [name for name in info if name.startswith("level_") and bool(info[name].isfinite())]
    assert len(known) == 1 and set(info) == set(env.episode_info)


def test_a_fixed_level_is_kept() -> None:
    env = Quadruped(num_envs=4, max_episode_steps=2, ground={"level": 7})
    env.reset(seed=0)
    for _ in range(6):
        env.step(torch.zeros(4, JOINTS))
        assert env._world["level"].tolist() == [7] * 4
    with pytest.raises(UsageError, match=r"ground.level is 10, but there are levels 0 to 9"):
        Quadruped(ground={"level": 10})


def test_stands_with_pd_control() -> None:
    env = Quadruped(num_envs=2, ground={"kind": "plane"}, randomise=SAME)
    env.reset(seed=0)
    for _ in range(100):
        step = env.step(torch.zeros(2, JOINTS))
    assert not bool(step.ended.any())
    assert float((env._motion.joint - torch.tensor(STANCE)).abs().max()) < 0.3
    assert float(env.qpos[:, 2].min()) > 0.2 and float(env._motion.gravity[:, 2].max()) < -0.99


def test_the_same_seed_is_the_same_episode_again() -> None:
    env = Quadruped(
        num_envs=3,
        max_episode_steps=4,
        camera={"height": 8, "width": 12},
        ground={"curriculum": "success", "episodes": 1, "raise_at": 0.0},
    )
    found = []
    for _ in range(2):
        env.reset(seed=4)
        steps = [env.step(torch.zeros(3, JOINTS)) for _ in range(11)]
        found.append(torch.cat([x.flatten() for step in steps for x in (*step.obs.values(), step.reward)]))
        assert int(env._by_success.table[0].max()) > 0
    assert torch.equal(*found)


def test_success_counts_for_the_ground_on_which_it_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Quadruped(num_envs=1, max_episode_steps=1, ground={"curriculum": "success"})
    env.reset(seed=0)
    recorded = []
    monkeypatch.setattr(env._by_success, "record", lambda kind, *_: recorded.append(int(kind)))
    walked = []
    for _ in range(12):
        walked.append(int(env._kind))
        env.step(torch.zeros(1, JOINTS))
    assert recorded == walked and len(set(walked)) > 1


def test_a_fall_in_a_held_action_is_not_forgotten() -> None:
    env = Quadruped(num_envs=2, ground={"kind": "plane"}, randomise=SAME)
    env.hold = Hold(4, 4, gamma=0.9)
    env.reset(seed=0)
    env.physics.qpos[1, 3:7] = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)  # on its back
    step = env.step(torch.zeros(2, JOINTS))
    assert step.terminated.tolist() == [False, True]
    assert step.duration is not None and step.duration.tolist() == [4, 1]
    assert step.episodes.info["fell"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("clip", [True, False])
def test_a_fall_costs_what_it_costs(clip: bool) -> None:
    def reward(**weights: object) -> float:
        env = Quadruped(num_envs=1, ground={"kind": "plane"}, rewards={"clip_at_zero": clip, **weights})
        env.reset(seed=0)
        env.physics.qpos[0, 3:7] = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
        return float(env.step(torch.zeros(1, JOINTS)).reward)

    assert reward(fall=-100.0) == pytest.approx(reward() - 100.0)


def test_robots_do_not_walk_off_the_map() -> None:
    env = Quadruped(num_envs=1, ground={"levels": 1, "columns": 1, "shares": {"flat": 1}}, randomise=SAME)
    env.reset(seed=0)
    env.physics.qpos[0, :2] += 18.0  # more than a robot walks in 20 s
    for _ in range(20):
        step = env.step(torch.zeros(1, JOINTS))
    assert not bool(step.ended.any()) and float(env.qpos[0, 2]) > 0.15


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"control": {"rate": 60}}, "control.rate is 60, but it must divide 200"),
        ({"control": {"rate": 500}}, "control.rate is 500, but it must divide 200"),
        ({"commands": {"seconds": 0.001}}, "commands.seconds is 0.001, but it must be at least 0.02"),
        ({"randomise": {"push_seconds": 0.001}}, "randomise.push_seconds is 0.001"),
        ({"randomise": {"payload": 20}}, "randomise.payload is 20, but it must be at most 4"),
        ({"randomise": {"gains": 2}}, "randomise.gains is 2, but it must be at most 0.9"),
        ({"randomise": {"friction": [1.0, 0.5]}}, "randomise.friction is .* a lower and an upper end, at least 0"),
        ({"ground": {"shares": {}}}, "ground.shares is empty"),
        ({"ground": {"raise_at": 5}}, "ground.raise_at is 5, but it must be at most 1"),
        ({"ground": {"tile_size": 3.14}}, "ground.tile_size is 3.14, but it must be a multiple of 0.1"),
        ({"commands": {"standing": 2}}, "commands.standing is 2, but it must be at most 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Quadruped(**settings)
