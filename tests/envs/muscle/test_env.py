"""The muscle env: batched and single, states, holds, ends of episodes, reward and stable PD by hand.

Trajectories are equal to the bit wherever the number of envs is. Between different numbers of envs, those without a
network are; a network's matrix product may differ in its last bits (float32) with the number of rows.
"""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from proxima.config.env_file import read_env_file
from proxima.config.muscle_settings import parse_settings, to_dict
from proxima.envs.action_hold import Hold
from proxima.envs.contract import Step
from proxima.envs.make import make_env
from proxima.envs.muscle.body import FILES, Array, Joints, load_model
from proxima.envs.muscle.control import StablePD
from proxima.envs.muscle.env import MUSCLE, MuscleVecEnv
from proxima.envs.muscle.gait import make_reference
from proxima.errors import UsageError
from proxima.nets.muscle_net import MuscleNet


def make(num_envs: int, *, file: str = "base_lonly", net: str = "random", **options: Any) -> MuscleVecEnv:
    """`net`: random, none (all activations 0), or constant (the same activations in every state)."""
    env = MuscleVecEnv(num_envs=num_envs, num_threads=1, **{**to_dict(read_env_file(file)), **options})
    if env.is_hierarchical and net != "none":
        env.set_weights(MUSCLE, network(env, constant=net == "constant").state_dict())
    return env


def network(env: MuscleVecEnv, *, constant: bool = False) -> MuscleNet:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        net = MuscleNet(**env.network_shape(MUSCLE))
        last = net.layers[-1]
        torch.nn.init.uniform_(last.bias, -0.5, 0.5)  # type: ignore[arg-type]
        if constant:
            torch.nn.init.zeros_(last.weight)  # type: ignore[arg-type]
    return net


def actions(count: int, num_envs: int, size: int = 6) -> Tensor:
    return torch.randn(count, num_envs, size, generator=torch.Generator().manual_seed(2))


def copied(step: Step) -> dict[str, Tensor]:
    """Everything of a step, as copies."""
    parts = {"obs": step.obs["obs"], "reward": step.reward, "ended": step.ended, "terminated": step.terminated}
    return {name: x.clone() for name, x in {**parts, **step.aux}.items()}


def rows(steps: list[dict[str, Tensor]], i: int) -> list[dict[str, Tensor]]:
    return [{name: x[i : i + 1] for name, x in step.items()} for step in steps]


def same(one: list[dict[str, Tensor]], two: list[dict[str, Tensor]]) -> bool:
    return len(one) == len(two) and all(
        a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in zip(one, two, strict=True)
    )


# Batches -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "net"),
    [("base_lonly", "constant"), ("torque_legs", "none")],
)
def test_env_i_is_an_env_alone_with_seed_plus_i(file: str, net: str) -> None:
    """To the bit, over the ends of episodes."""
    many, acts = make(3, file=file, net=net), actions(30, 3)
    first = many.reset(40)["obs"].clone()
    steps = [copied(many.step(a)) for a in acts]
    for i in range(3):
        alone = make(1, file=file, net=net)
        assert torch.equal(alone.reset(40 + i)["obs"], first[i : i + 1])
        assert same([copied(alone.step(a[i : i + 1])) for a in acts], rows(steps, i))
    assert sum(int(step["ended"].sum()) for step in steps) >= 1 and len(set(first[:, 0].tolist())) == 3


def test_env_i_is_an_env_alone_with_a_network() -> None:
    """The network's products differ by about 1e-7 with the number of rows; contacts make that larger."""
    many, acts = make(3), actions(8, 3)
    many.reset(40)
    steps = [copied(many.step(a)) for a in acts]
    for i in range(3):
        alone = make(1)
        alone.reset(40 + i)
        for a, wanted in zip(acts, rows(steps, i), strict=True):
            found = copied(alone.step(a[i : i + 1]))
            assert torch.equal(found["ended"], wanted["ended"])
            torch.testing.assert_close(found["obs"], wanted["obs"], rtol=0, atol=1e-4)
            torch.testing.assert_close(found["reward"], wanted["reward"], rtol=0, atol=1e-4)


def test_threads_do_not_matter() -> None:
    found = []
    for threads in (1, 2):
        env = MuscleVecEnv(num_envs=4, num_threads=threads, **to_dict(read_env_file("base_lonly")))
        env.set_weights(MUSCLE, network(env).state_dict())
        env.reset(0)
        found.append([copied(env.step(a)) for a in actions(10, 4)])
    assert same(*found)


def test_a_restart_of_one_env_does_not_touch_the_others() -> None:
    found = []
    for falls in (False, True):
        env = make(3)
        env.reset(8)
        steps = []
        for k, a in enumerate(actions(6, 3)):
            if falls and k == 1:
                env.qpos[1, 2] = 1.5  # the pitch of env 1
            steps.append(copied(env.step(a)))
        found.append(steps)
    assert found[1][1]["terminated"].tolist() == [False, True, False]
    for i in (0, 2):
        assert same(rows(found[0], i), rows(found[1], i))
    assert not same(rows(found[0], 1), rows(found[1], 1))


def test_the_single_env_of_gymnasium_is_the_same() -> None:
    settings = to_dict(read_env_file("torque_legs"))
    env, one = make(1, file="torque_legs"), make_env("proxima/Muscle-v0", num_envs=1, mode="sync", env_kwargs=settings)
    assert torch.equal(env.reset(3)["obs"], one.reset(3)["obs"])
    for a in actions(5, 1):
        found, wanted = one.step(a), env.step(a)
        assert torch.equal(found.obs["obs"], wanted.obs["obs"]) and torch.equal(found.reward, wanted.reward)
    one.close()


def test_muscles_without_a_network_are_refused() -> None:
    env = MuscleVecEnv(num_envs=1, **to_dict(read_env_file("base_lonly")))
    env.reset(0)
    with pytest.raises(UsageError, match="the muscles have no network yet"):
        env.step(actions(1, 1)[0])


# Holds, ends, state --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["base_lonly", "torque_legs"])
def test_a_held_action_is_the_same_action_repeated(file: str) -> None:
    held, plain = make(2, file=file), make(2, file=file)
    held.hold = Hold(3, 3, 0.5)
    held.reset(1)
    plain.reset(1)
    for a in actions(2, 2):
        step = held.step(a)
        single = [copied(plain.step(a)) for _ in range(3)]
        assert not any(x["ended"].any() for x in single), "another seed: this is about steps within an episode"
        assert torch.equal(step.obs["obs"], single[-1]["obs"])
        wanted = single[0]["reward"] + 0.5 * single[1]["reward"] + 0.25 * single[2]["reward"]
        torch.testing.assert_close(step.reward, wanted, rtol=0, atol=1e-15)
        assert all(torch.equal(x, single[-1][name]) for name, x in step.aux.items())  # of the last env step


def test_envs_wait_for_those_that_hold_longer() -> None:
    """Each env as if alone with holds of these lengths: to the bit, since activations do not depend on the batch."""
    env = make(3, net="constant")
    env.hold = Hold(1, 4, 1.0)
    env.reset(20)
    alone = [make(1, net="constant") for _ in range(3)]
    for i, one in enumerate(alone):
        one.reset(20 + i)
    lengths = []
    for a in actions(8, 3):
        step = env.step(a)
        assert step.duration is not None
        lengths.append(step.duration.tolist())
        for i, one in enumerate(alone):
            single = [copied(one.step(a[i : i + 1])) for _ in range(lengths[-1][i])]
            assert torch.equal(step.obs["obs"][i : i + 1], single[-1]["obs"])
            assert float(step.reward[i]) == pytest.approx(sum(float(x["reward"]) for x in single), abs=1e-12)
            assert all(torch.equal(x[i : i + 1], single[-1][name]) for name, x in step.aux.items())
    assert len({tuple(x) for x in lengths}) > 3


@pytest.mark.parametrize("file", ["base_lonly", "torque_legs"])
def test_a_state_in_the_middle_goes_on_to_the_same_bits(file: str) -> None:
    env, acts = make(3, file=file, max_episode_steps=6), actions(18, 3)  # so that some are in their second episode
    env.hold = Hold(1, 2, 0.9)
    env.reset(6)
    for a in acts[:5]:
        env.step(a)
    state = env.get_state()
    wanted = [copied(env.step(a)) for a in acts[5:]]
    fresh = make(3, file=file, net="none", max_episode_steps=6)  # the network is part of the state
    obs = fresh.set_state(state)["obs"].clone()
    found = [copied(fresh.step(a)) for a in acts[5:]]
    assert same(found, wanted) and any(x["ended"].any() for x in found)
    again = env.set_state(state)["obs"]
    assert torch.equal(obs, again) and same([copied(env.step(a)) for a in acts[5:]], wanted)


def test_a_state_of_another_body_is_refused() -> None:
    env = make(2, file="torque_legs")
    other = make(2)
    other.reset(0)
    with pytest.raises(UsageError, match="does not fit"):
        env.set_state(other.get_state())


def test_weights_of_another_network_are_refused() -> None:
    env = make(1)
    weights = network(env).state_dict()
    with pytest.raises(UsageError, match="are not those of a muscle network"):
        env.set_weights(MUSCLE, {name: x for name, x in weights.items() if name != "layers.0.bias"})
    with pytest.raises(UsageError, match="NaN or infinite"):
        env.set_weights(MUSCLE, {name: x * float("nan") for name, x in weights.items()})
    with pytest.raises(UsageError, match="has no network 'brain'"):
        env.set_weights("brain", weights)
    with pytest.raises(UsageError, match="in direct mode has no network"):
        make(1, file="torque_legs").set_weights(MUSCLE, weights)


def test_a_time_limit_gives_the_last_observation_and_starts_anew() -> None:
    short, long = make(2, max_episode_steps=4), make(2)
    start = short.reset(9)["obs"].clone()
    long.reset(9)
    for k, a in enumerate(actions(4, 2)):
        step, wanted = short.step(a), long.step(a)
        assert not wanted.ended.any()
        if k < 3:
            assert step.final_obs is None and torch.equal(step.obs["obs"], wanted.obs["obs"])
    assert step.truncated.tolist() == [True, True] and not step.terminated.any() and step.final_obs is not None
    assert torch.equal(step.final_obs["obs"], wanted.obs["obs"])
    assert torch.equal(step.aux["muscle_torque"], wanted.aux["muscle_torque"])  # of the ended episode
    assert step.episodes.length.tolist() == [4, 4]
    new = step.obs["obs"]
    assert not torch.equal(new, start)  # another random phase
    reference = short.reference
    np.testing.assert_allclose(new[:, 5:11], reference.at(reference.joints, short.phase), atol=1e-12)


def test_without_a_random_start_all_episodes_begin_at_phase_0() -> None:
    env = make(3, reference={"random_start": False}, max_episode_steps=2)
    first = env.reset(1)["obs"].clone()
    assert (env.phase == 0.0).all() and torch.equal(first[0], first[2])
    env.step(actions(1, 3)[0])
    assert torch.equal(env.step(actions(1, 3)[0]).obs["obs"], first)


def test_random_phases_cover_the_cycle() -> None:
    env = make(512)
    env.reset(0)
    counts = np.histogram(env.phase, bins=8, range=(0.0, 1.0))[0]
    assert counts.sum() == 512 and counts.min() > 40  # 64 each


@pytest.mark.parametrize("file", ["base_lonly", "torque_legs"])
def test_a_body_that_is_low_tilted_or_nan_has_fallen(file: str) -> None:
    env = make(5, file=file)
    env.reset(0)
    env.qpos[1, 1] = 0.6 * env.reference.height.mean() - 0.95  # root_z counts from the trunk's place in the model
    env.qpos[2, 2] = 1.2
    env.qpos[3, 4] = np.nan
    env.qvel[4] = np.nan
    step = env.step(torch.zeros(5, 6))
    assert step.terminated.tolist() == [False, True, True, True, True] and step.final_obs is not None
    assert bool(step.reward.isfinite().all()) and step.reward[3:].tolist() == [0.0, 0.0]
    seen = (step.obs["obs"], step.final_obs["obs"], *step.aux.values())  # a collector refuses what is not finite
    assert all(bool(x.isfinite().all()) for x in seen)
    assert bool(env.step(torch.zeros(5, 6)).obs["obs"].isfinite().all())


# Reward --------------------------------------------------------------------------------------------------------------


def test_the_reference_motion_without_activation_has_reward_1() -> None:
    env = make(1, net="none", reference={"random_start": False})
    env.reset(0)
    np.testing.assert_allclose(env._reward(np.array([env.reference.speed])), 1.0, atol=1e-12)
    everywhere = make(64, net="none")
    everywhere.reset(0)  # between two samples of the motion, feet are interpolated
    np.testing.assert_allclose(everywhere._reward(np.full(64, env.reference.speed)), 1.0, atol=1e-4)


def test_the_reward_is_the_product_of_its_terms() -> None:
    """`prod(0.1 + 0.9 exp(-k e))`, with errors from the positions that MuJoCo computes."""
    weights = {"pose": 2.0, "velocity": 0.02, "end_effector": 20.0, "root": 10.0, "metabolic": 8.0}
    for left_out in (None, *weights):
        k = {name: 0.0 if name == left_out else value for name, value in weights.items()}
        env = make(2, net="constant", reward=k)
        env.reset(4)
        x = env.qpos[:, 0].copy()
        reward = env.step(0.3 * actions(1, 2)[0]).reward.numpy()
        model, data, reference = env.model, mujoco.MjData(env.model), env.reference
        for i in range(2):
            data.qpos[:] = env.qpos[i]
            mujoco.mj_kinematics(model, data)
            where = env.phase[i : i + 1]
            wanted = {name: reference.at(getattr(reference, name), where)[0] for name in ("joints", "velocity", "feet")}
            feet = [data.body(name).xpos - data.body("trunk").xpos for name in ("foot_r", "foot_l")]
            height = data.body("trunk").xpos[2] - reference.at(reference.height, where)[0]
            speed = (env.qpos[i, 0] - x[i]) * 30.0 - reference.speed
            errors = {
                "pose": ((env.qpos[i, 3:] - wanted["joints"]) ** 2).sum(),
                "velocity": ((env.qvel[i, 3:] - wanted["velocity"]) ** 2).sum(),
                "end_effector": ((np.array(feet) - wanted["feet"]) ** 2).sum(),
                "root": height**2 + env.qpos[i, 2] ** 2 + 0.1 * speed**2,
                "metabolic": (env.activation[i] ** 2).mean(),  # the same in every substep
            }
            assert errors["metabolic"] > 0.01
            product = np.prod([0.1 + 0.9 * np.exp(-k[name] * error) for name, error in errors.items()])
            assert reward[i] == pytest.approx(product, rel=1e-7)  # activations are float32


def test_the_metabolic_term_is_1_in_direct_mode() -> None:
    found = []
    for k in (0.0, 50.0):
        env = make(2, file="torque_legs", reward={"metabolic": k})
        env.reset(4)
        found.append(env.step(actions(1, 2)[0]).reward)
    assert torch.equal(*found)


# Torques -------------------------------------------------------------------------------------------------------------


def test_stable_pd_is_that_of_one_robot_in_a_plain_loop() -> None:
    """Tan, Liu and Turk (2011), with a dense mass matrix, 16 substeps per action."""
    env = make(
        2, file="torque_legs", control={**to_dict(read_env_file("torque_legs"))["control"], "torque_limit": None}
    )
    env.reset(3)
    model, h, kp, kd = env.model, 1.0 / 480.0, 300.0, np.sqrt(600.0)
    robots = [mujoco.MjData(model) for _ in range(2)]
    for i, data in enumerate(robots):
        data.qpos[:], data.qvel[:] = env.qpos[i], env.qvel[i]
    phase, last = env.phase.copy(), np.zeros((2, model.nv))
    gains = np.append(np.zeros(3), np.full(6, h * kd))  # none on the root
    for a in 0.5 * actions(6, 2):
        step = env.step(a)
        assert not step.ended.any()
        phase = (phase + 1.0 / 30.0 / 1.1) % 1.0
        target = env.reference.at(env.reference.joints, phase) + 0.1 * a.double().numpy()
        for i, data in enumerate(robots):
            for _ in range(16):
                mujoco.mj_fwdPosition(model, data)
                mujoco.mj_fwdVelocity(model, data)
                mass = np.zeros((model.nv, model.nv))
                mujoco.mj_fullM(model, data, mass)
                q, qd = data.qpos[3:], data.qvel[3:]
                pull = kp * (target[i] - q - h * qd) - kd * qd
                force = last[i] - data.qfrc_bias + np.append(np.zeros(3), pull)
                qdd = np.linalg.solve(mass + np.diag(gains), force)[3:]
                data.qfrc_applied[3:] = torque = kp * (target[i] - q - h * qd) - kd * (qd + h * qdd)
                mujoco.mj_step(model, data)
                last[i] = data.qfrc_constraint
            np.testing.assert_allclose(env.qpos[i], data.qpos, rtol=0, atol=1e-9)
            np.testing.assert_allclose(env.qvel[i], data.qvel, rtol=0, atol=1e-7)
            np.testing.assert_allclose(env.torque[i], torque, rtol=0, atol=1e-6)
    assert np.abs(last).max() > 10.0  # the feet touched the ground


@pytest.mark.slow
def test_stable_pd_of_tied_joints() -> None:
    """The same in the independent coordinates: mass `B' M B`, forces `B' f`."""
    pytest.importorskip("myo_sim")
    settings = read_env_file("myolegs26")
    model = load_model("myolegs26", timestep=1.0 / 480.0, muscles=True)
    joints, data, rng = Joints(model), mujoco.MjData(model), np.random.default_rng(0)
    pd = StablePD(settings, model, joints)
    assert pd.kp.tolist() == [50.0 if name.startswith("mtp") else 300.0 for name in joints.names]
    np.testing.assert_allclose(pd.kv, np.sqrt(2.0 * pd.kp))
    count, h = 4, 1.0 / 480.0
    qpos, qvel = np.tile(model.qpos0, (count, 1)), rng.normal(size=(count, model.nv))
    qpos[:, joints.qpos] = rng.uniform(joints.low, joints.high, (count, len(joints.qpos)))
    joints.follow(qpos, qvel)
    target, constraint = rng.normal(size=(count, len(joints.names))), rng.normal(size=(count, model.nv))
    sparse, bias, wanted = [], [], []
    for i in range(count):
        data.qpos[:], data.qvel[:] = qpos[i], qvel[i]
        mujoco.mj_forward(model, data)
        full, basis = np.zeros((model.nv, model.nv)), joints.basis(qpos[i : i + 1])[0]
        mujoco.mj_fullM(model, data, full)
        q, qd = qpos[i, joints.qpos], qvel[i, joints.dof]
        pull = pd.kp * (target[i] - q - h * qd) - pd.kv * qd
        force = basis.T @ (constraint[i] - data.qfrc_bias) + np.append(np.zeros(6), pull)
        qdd = np.linalg.solve(basis.T @ full @ basis + np.diag(np.append(np.zeros(6), h * pd.kv)), force)
        wanted.append(pull - h * pd.kv * qdd[6:])
        sparse.append(data.M.copy())
        bias.append(data.qfrc_bias.copy())
    found = pd.torque(target, qpos, qvel, mass=np.array(sparse), bias=np.array(bias), constraint=constraint)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-7)


def test_gains_of_joints_come_before_those_of_all() -> None:
    joints = {"hip_r": {"kp": 90}, "knee_l": {"kp": 8, "kv": 3}, "ankle_l": {}}
    pd = make(1, file="torque_legs", joints=joints)._pd
    assert pd.kp.tolist() == [90.0, 300.0, 300.0, 300.0, 8.0, 300.0]
    np.testing.assert_allclose(pd.kv, [180**0.5, 600**0.5, 600**0.5, 600**0.5, 3.0, 600**0.5])
    control = {"mode": "direct", "kv": 7.0}
    assert make(1, file="torque_legs", joints=joints, control=control)._pd.kv.tolist() == [7.0] * 4 + [3.0, 7.0]


def test_direct_mode_applies_torques_up_to_the_limit() -> None:
    control = to_dict(read_env_file("torque_legs"))["control"]
    env = make(3, file="torque_legs", control=control | {"torque_limit": 20.0})
    env.reset(0)
    env.step(5.0 * actions(1, 3)[0])
    assert np.abs(env.torque).max() > 25.0 and np.abs(env.torque).min() < 20.0
    np.testing.assert_array_equal(env.delivered(), np.clip(env.torque, -20.0, 20.0))
    assert np.array_equal(env.ctrl[:, :3], np.zeros((3, 3)))  # nothing on the root
    free = make(3, file="torque_legs", control=control | {"torque_limit": None})
    free.reset(0)
    free.step(5.0 * actions(1, 3)[0])
    np.testing.assert_array_equal(free.delivered(), free.torque)


def test_the_network_of_the_env_is_the_network() -> None:
    env = make(7)
    net, tuples = network(env), env.random_tuples(7, seed=0)
    with torch.no_grad():
        wanted = net(tuples["muscle_entries"], tuples["muscle_torque"]).tanh().relu()
    assert env.network is not None
    found = env.network(tuples["muscle_entries"].double().numpy(), tuples["muscle_torque"].double().numpy())
    np.testing.assert_allclose(found, wanted.numpy(), rtol=0, atol=1e-6)
    assert 0.05 < (found == 0.0).mean() < 0.95 and found.min() == 0.0 and found.max() < 1.0


def test_tuples_are_of_a_substep_and_what_muscles_deliver_is_mujocos() -> None:
    env = make(2)
    env.reset(0)
    joints = env.joints
    for a in actions(3, 2):
        step = env.step(a)
    entries, torque = step.aux["muscle_entries"], step.aux["muscle_torque"]
    assert entries.shape == (2, len(env.map.joint)) and torque.shape == (2, 6)  # type: ignore[union-attr]
    # With one substep per action, the tuple's demand is the torque asked for, less what the muscles do by themselves.
    slow = make(2, control={"rate": 480.0, "simulation_rate": 480.0})
    slow.reset(0)
    now = mujoco.MjData(slow.model)
    now.qpos[:], now.qvel[:] = slow.qpos[1], slow.qvel[1]
    mujoco.mj_forward(slow.model, now)
    step = slow.step(actions(1, 2)[0])
    wanted = slow.torque[1] - now.qfrc_actuator[joints.dof]  # the control was 0: passive torque
    np.testing.assert_allclose(step.aux["muscle_torque"][1], wanted, rtol=1e-5, atol=1e-3)
    now.ctrl[:] = slow.ctrl[1]
    mujoco.mj_forward(slow.model, now)
    np.testing.assert_allclose(slow.delivered()[1], now.qfrc_actuator[joints.dof], rtol=0, atol=1e-9)


def test_random_tuples_are_feasible_and_follow_their_seed() -> None:
    one, two, other = (make(8).random_tuples(50, seed) for seed in (1, 1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one) and len(one["muscle_torque"]) == 50
    assert not torch.equal(one["muscle_torque"], other["muscle_torque"])
    fewer = make(64).random_tuples(50, 1)  # in one go
    assert fewer["muscle_torque"].shape == one["muscle_torque"].shape


# Reference motion ----------------------------------------------------------------------------------------------------


def reference(**settings: Any) -> tuple[Any, Joints, mujoco.MjModel]:
    parsed = parse_settings({**to_dict(read_env_file("base_lonly")), **settings})
    model = load_model("planar_legs", timestep=1.0 / 480.0, muscles=False)
    joints = Joints(model)
    return make_reference(parsed, model, joints), joints, model


def test_the_gait_is_one_that_textbooks_have() -> None:
    found, joints, _ = reference()
    degrees: Array = np.degrees(found.joints)
    hip, knee, ankle = (degrees[:, joints.names.index(f"{name}_r")] for name in ("hip", "knee", "ankle"))
    assert 28 < hip.max() < 34 and -13 < hip.min() < -8
    assert 57 < knee.max() < 63 and knee.min() > -2
    assert 8 < ankle.max() < 12 and -20 < ankle.min() < -15
    half = len(degrees) // 2  # the legs alternate
    np.testing.assert_allclose(np.roll(degrees[:, :3], -half, 0), degrees[:, 3:], atol=1e-9)
    slope = (np.roll(found.joints, -1, 0) - np.roll(found.joints, 1, 0)) / (2 * 1.1 / len(degrees))
    np.testing.assert_allclose(found.velocity, slope, atol=0.02)
    assert 0.9 < found.speed < 1.4 and found.forward.tolist() == [1.0, 0.0]


def test_the_lowest_foot_of_the_reference_is_near_the_ground() -> None:
    found, joints, model = reference()
    data = mujoco.MjData(model)
    lowest = []
    for k in range(0, len(found.height), 20):
        data.qpos[joints.qpos] = found.joints[k]
        data.qpos[1] = found.height[k] - 0.95
        mujoco.mj_forward(model, data)
        soles = [i for i in range(model.ngeom) if model.geom(i).name.startswith("sole")]
        ends = []
        for i in soles:
            axis = data.geom_xmat[i].reshape(3, 3)[2, 2]
            ends.append(data.geom_xpos[i, 2] - abs(axis) * model.geom_size[i, 1] - model.geom_size[i, 0])
        lowest.append(min(ends))
    assert np.abs(lowest).max() < 0.01  # m; the height is smoothed


def test_standing_has_all_joints_at_0() -> None:
    found, _, _ = reference(reference={"motion": "stand"})
    assert not found.joints.any() and not found.velocity.any() and found.speed == 0.0
    np.testing.assert_allclose(found.height, 0.92, atol=0.03)


def test_a_mirrored_joint_and_a_slower_gait() -> None:
    plain, _, _ = reference()
    joints = to_dict(read_env_file("base_lonly"))["joints"]
    joints["knee_r"] = {**joints["knee_r"], "sign": -1}
    mirrored, known, _ = reference(joints=joints, reference={"period": 2.2})
    knee = known.names.index("knee_r")
    np.testing.assert_allclose(mirrored.joints[:, knee], -plain.joints[:, knee])
    np.testing.assert_allclose(mirrored.velocity[:, 0], plain.velocity[:, 0] / 2.0)


def test_a_path_as_model_is_the_same_as_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.xml").write_text((FILES / "planar_legs.xml").read_text())
    found = []
    for model in ("planar_legs", str(tmp_path / "mine.xml")):
        env = make(1, model=model)
        env.reset(0)
        found.append([copied(env.step(a)) for a in actions(3, 1)])
    assert same(*found)
