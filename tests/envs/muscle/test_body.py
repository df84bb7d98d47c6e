"""The body: torques of muscles against MuJoCo's own, tied joints, and models that cannot be used."""

from pathlib import Path

import mujoco
import numpy as np
import pytest

from proxima.envs.muscle.body import FILES, Array, Joints, MuscleMap, load_model, mass_places
from proxima.errors import UsageError

STEP = 1 / 480
MODELS = ["planar_legs", pytest.param("myolegs26", marks=pytest.mark.slow)]


def load(name: str) -> tuple[mujoco.MjModel, Joints]:
    if name == "myolegs26":
        pytest.importorskip("myo_sim")
    model = load_model(name, timestep=STEP, muscles=True)
    return model, Joints(model)


def random_states(model: mujoco.MjModel, joints: Joints, count: int) -> tuple[Array, Array]:
    """Joint angles over their whole ranges, and speeds that reach both ends of the force-velocity curve."""
    rng = np.random.default_rng(7)
    qpos, qvel = np.tile(model.qpos0, (count, 1)), rng.normal(0.0, 6.0, (count, model.nv))
    qpos[:, joints.qpos] = rng.uniform(joints.low, joints.high, (count, len(joints.qpos)))
    if joints.is_free:
        qpos[:, :7] = rng.normal(size=(count, 7))
        qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1, keepdims=True)
    else:
        qpos[:, :3] = rng.normal(size=(count, 3))
    joints.follow(qpos, qvel)
    return qpos, qvel


@pytest.mark.parametrize("name", MODELS)
def test_torques_are_those_of_mujoco(name: str) -> None:
    """`A a + p = B' qfrc_actuator`: B takes velocities of independent coordinates to those of all joints."""
    model, joints = load(name)
    muscles, data = MuscleMap(model, joints), mujoco.MjData(model)
    qpos, qvel = random_states(model, joints, 300)
    activation = np.random.default_rng(1).uniform(0.0, 1.0, (len(qpos), model.nu))
    activation[0], activation[1] = 0.0, 1.0
    rows = []
    for q, v, a in zip(qpos, qvel, activation, strict=True):
        data.qpos[:], data.qvel[:], data.ctrl[:] = q, v, a
        mujoco.mj_forward(model, data)
        found = data.actuator_length, data.actuator_velocity, data.actuator_moment, data.qfrc_actuator
        rows.append([np.array(x) for x in found])
    length, velocity, moment, force = (np.array(x) for x in zip(*rows, strict=True))
    entries, passive = muscles(length, velocity, moment, qpos)
    torque = (muscles.dense(entries) @ activation[:, :, None])[:, :, 0] + passive
    wanted = (joints.basis(qpos).transpose(0, 2, 1) @ force[:, :, None])[:, :, 0]
    np.testing.assert_allclose(torque, wanted[:, joints.num_root :], rtol=0, atol=1e-9)
    np.testing.assert_allclose(wanted[:, : joints.num_root], 0.0, atol=1e-9)  # muscles do not push the root
    assert np.abs(wanted).max() > 50.0 and np.abs(passive).max() > 1.0
    by_entry = (entries * activation[:, muscles.muscle]) @ muscles.sum_by_joint + passive
    np.testing.assert_allclose(by_entry, torque, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_the_basis_is_the_slope_of_the_tied_joints() -> None:
    model, joints = load("myolegs26")
    assert joints.are_tied
    qpos, qvel = random_states(model, joints, 20)
    basis, step = joints.basis(qpos), 1e-6
    for k, address in enumerate(joints.qpos):
        moved = []
        for sign in (-1.0, 1.0):
            q = qpos.copy()
            q[:, address] += sign * step
            joints.follow(q, qvel.copy())
            moved.append(q)
        slope = (moved[1] - moved[0])[:, 7:] / (2.0 * step)  # hinges and slides: one coordinate per dof
        np.testing.assert_allclose(basis[:, 6:, 6 + k], slope, atol=1e-7)
    assert (np.abs(basis).sum(1) > 1.0 + 1e-3).any()  # some coordinate moves more than itself
    np.testing.assert_allclose((basis @ qvel[:, joints.independent, None])[:, :, 0], qvel, atol=1e-12)


@pytest.mark.slow
def test_tied_joints_fulfil_the_constraints_of_mujoco() -> None:
    model, joints = load("myolegs26")
    data = mujoco.MjData(model)
    for q, v in zip(*random_states(model, joints, 20), strict=True):
        data.qpos[:], data.qvel[:] = q, v
        mujoco.mj_forward(model, data)
        equality = data.efc_type == int(mujoco.mjtConstraint.mjCNSTR_EQUALITY)
        assert equality.sum() == len(joints._tied)
        np.testing.assert_allclose(data.efc_pos[equality], 0.0, atol=1e-12)
        np.testing.assert_allclose(data.efc_vel[equality], 0.0, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_the_sparse_mass_matrix_is_that_of_mujoco(name: str) -> None:
    model, joints = load(name)
    data, full = mujoco.MjData(model), np.zeros((model.nv, model.nv))
    data.qpos[:] = random_states(model, joints, 1)[0][0]
    mujoco.mj_forward(model, data)
    mujoco.mj_fullM(model, data, full)
    np.testing.assert_allclose(np.append(data.M, 0.0)[mass_places(model)].reshape(full.shape), full, atol=1e-12)


def test_the_control_is_the_activation() -> None:
    model = load_model("planar_legs", timestep=STEP, muscles=True)
    assert model.na == 0 and model.nu == 18 and model.opt.timestep == STEP
    without = load_model("planar_legs", timestep=STEP, muscles=False)
    assert without.nu == without.ntendon == 0 and without.nv == model.nv
    assert without.body_mass.tolist() == model.body_mass.tolist()


BODY = """<mujoco><worldbody><body name="trunk" pos="0 0 1">{root}<geom size="0.1"/>
<body name="leg" pos="0 0 -0.3">{joint}<geom size="0.1"/></body></body></worldbody>{more}</mujoco>"""
PLANAR = """<joint name="root_x" type="slide" axis="1 0 0"/><joint name="root_z" type="slide" axis="0 0 1"/>
<joint name="root_pitch" axis="0 1 0"/>"""
HINGE = '<joint name="hip" axis="0 1 0" range="-60 60"/>'
MOTOR = '<actuator><motor name="engine" joint="hip"/></actuator>'


def write(path: Path, root: str = PLANAR, joint: str = HINGE, more: str = "") -> str:
    path.write_text(BODY.format(root=root, joint=joint, more=more))
    return str(path)


def test_models_that_cannot_be_used_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "body.xml"
    for more, muscles, message in (
        ("", True, "has no muscles: use control mode direct"),
        (MOTOR, True, "the actuator 'engine' is not a muscle"),
        ("<nonsense/>", False, "cannot be read"),
        ('<actuator><motor joint="knee"/></actuator>', True, "is not a muscle"),
        ('<equality><joint joint1="knee"/></equality>', False, "cannot be built"),
    ):
        with pytest.raises(UsageError, match=message) as error:
            load_model(write(path, more=more), timestep=STEP, muscles=muscles)
        assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match=r"there is no model '.*gone.xml'"):
        load_model(str(tmp_path / "gone.xml"), timestep=STEP, muscles=False)
    for root, joint, message in (
        ("", HINGE, "it needs a free joint, or root_x, root_z and root_pitch"),
        (PLANAR.replace("root_x", "sideways"), HINGE, "the joints sideways, root_z, root_pitch, but"),
        ("<freejoint/>", '<joint name="hip" type="ball"/>', "the joint 'hip' is a ball joint"),
    ):
        with pytest.raises(UsageError, match=message):
            Joints(load_model(write(path, root, joint), timestep=STEP, muscles=False))


def test_a_body_without_a_floor_gets_one_and_motors_are_removed(tmp_path: Path) -> None:
    model = load_model(write(tmp_path / "body.xml", more=MOTOR), timestep=STEP, muscles=False)
    assert model.nu == 0 and (model.geom_type == int(mujoco.mjtGeom.mjGEOM_PLANE)).sum() == 1
    own = load_model(str(FILES / "planar_legs.xml"), timestep=STEP, muscles=True)
    assert (own.geom_type == int(mujoco.mjtGeom.mjGEOM_PLANE)).sum() == 1
