"""The musculoskeletal model: which joints are driven, and how muscle activations become joint torques.

Driven joints are those that no equality constraint ties to another joint. Torques of tied joints act on the joint that
they follow, by the slope of the constraint's polynomial. The root's joints are driven by nothing.
"""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from proxima.config.muscle_settings import MYO_MODELS, OWN_MODEL
from proxima.errors import UsageError

Array = NDArray[np.float64]
FILES = Path(__file__).parent / "files"
_STATES_FOR_STRUCTURE = 50
_DRIVEN_TYPES = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))


def load_model(model: str, *, timestep: float, muscles: bool) -> mujoco.MjModel:
    """A body by name or as the path of an MJCF file, on a floor, with a control that is the muscle's activation.

    Without `muscles`, actuators and tendons are removed.
    """
    spec = _read_spec(model)
    spec.option.timestep = timestep
    # MuJoCo would put a diverged body back to its first position, in the middle of the episode.
    spec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    if not any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in spec.geoms):
        spec.worldbody.add_geom(name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1])
    unused = [*spec.keys, *spec.sensors, *([] if muscles else [*spec.actuators, *_tendon_equalities(spec)])]
    for element in unused:
        spec.delete(element)
    for actuator in spec.actuators:
        if actuator.gaintype != mujoco.mjtGain.mjGAIN_MUSCLE or actuator.biastype != mujoco.mjtBias.mjBIAS_MUSCLE:
            raise UsageError(f"model {model}: the actuator {actuator.name!r} is not a muscle (gaintype, biastype).")
        actuator.dyntype, actuator.actdim = mujoco.mjtDyn.mjDYN_NONE, 0
        # Limits would make the torque a function of the activation that is not linear.
        actuator.forcelimited, actuator.ctrllimited = (int(mujoco.mjtLimited.mjLIMITED_FALSE),) * 2
    for joint in spec.joints:
        joint.actfrclimited = int(mujoco.mjtLimited.mjLIMITED_FALSE)
    if not muscles:
        for tendon in list(spec.tendons):
            spec.delete(tendon)
    elif not spec.actuators:
        raise UsageError(f"model {model} has no muscles: use control mode direct, or another model.")
    try:
        with _quiet():
            return spec.compile()
    except ValueError as error:
        raise UsageError(f"model {model} cannot be built: {_first_line(error)}.") from None


def _tendon_equalities(spec: mujoco.MjSpec) -> list[Any]:
    return [equality for equality in spec.equalities if equality.type == mujoco.mjtEq.mjEQ_TENDON]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of MuJoCo about a spec that would not be saved correctly: it is not saved."""
    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        mujoco.set_mju_user_warning(handler)


def _read_spec(model: str) -> mujoco.MjSpec:
    if model in MYO_MODELS:
        try:
            from myo_sim import load_spec
        except ImportError:
            raise UsageError(
                f'model {model} is part of the package myo_sim: pip install "proxima-rl[muscle]".'
            ) from None
        with _quiet():
            return load_spec(model)
    path = FILES / f"{OWN_MODEL}.xml" if model == OWN_MODEL else Path(model)
    if not path.is_file():
        known = ", ".join((OWN_MODEL, *MYO_MODELS))
        raise UsageError(f"there is no model {model!r}: give {known}, or the path of an MJCF file.")
    try:
        return mujoco.MjSpec.from_file(str(path))
    except ValueError as error:
        raise UsageError(f"model {model} cannot be read: {_first_line(error)}.") from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__


class Joints:
    """Root, driven and tied joints of a model, as indices into qpos and qvel.

    The independent coordinates are those of the root, then the driven joints; `basis` has the others' velocities.
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        self.model = model
        tied = {int(model.eq_obj1id[i]): i for i in self._couplings()}
        root_body = next((int(model.jnt_bodyid[j]) for j in range(model.njnt)), 0)
        root = [j for j in range(model.njnt) if model.jnt_bodyid[j] == root_body]
        driven = [j for j in range(model.njnt) if j not in tied and j not in root]
        for j in driven:
            if model.jnt_type[j] not in _DRIVEN_TYPES:
                raise UsageError(f"the joint {model.joint(j).name!r} is a ball joint, which cannot be driven.")
        self.names = tuple(model.joint(j).name for j in driven)
        self.root_body = root_body
        self.is_free = bool(root) and model.jnt_type[root[0]] == int(mujoco.mjtJoint.mjJNT_FREE)
        names = [model.joint(j).name for j in root]
        if not self.is_free and names != ["root_x", "root_z", "root_pitch"]:
            raise UsageError(
                f"the root of the body has the joints {', '.join(names) or 'none'}, but it needs a free joint, or "
                "root_x, root_z and root_pitch."
            )
        self.qpos = np.array([model.jnt_qposadr[j] for j in driven])
        self.dof = np.array([model.jnt_dofadr[j] for j in driven])
        self.num_root = 6 if self.is_free else 3
        self.independent = np.concatenate((np.arange(self.num_root), self.dof))
        """Dofs of the independent coordinates."""
        self.low, self.high = model.jnt_range[driven].T.copy()
        free = ~model.jnt_limited[driven].astype(bool)
        self.low[free], self.high[free] = -np.pi, np.pi
        for j, i in tied.items():
            if int(model.eq_obj2id[i]) not in driven:
                pair = f"{model.joint(j).name!r} to {model.joint(int(model.eq_obj2id[i])).name!r}"
                raise UsageError(f"an equality ties {pair}, which is not a driven joint: tie it to one.")
        columns = {j: k for k, j in enumerate(driven)}
        self._tied = [
            (
                int(model.jnt_dofadr[j]),
                int(model.jnt_qposadr[j]),
                self.num_root + columns[int(model.eq_obj2id[i])],
                int(model.jnt_qposadr[model.eq_obj2id[i]]),
                model.eq_data[i, :5].copy(),
            )
            for j, i in tied.items()
        ]

    def _couplings(self) -> list[int]:
        """Equality constraints that tie one joint to another."""
        model, found = self.model, []
        for i in range(model.neq):
            if model.eq_type[i] == int(mujoco.mjtEq.mjEQ_JOINT) and model.eq_obj2id[i] >= 0:
                found.append(i)
        return found

    @property
    def are_tied(self) -> bool:
        """Whether some joints follow others."""
        return bool(self._tied)

    def basis(self, qpos: Array) -> Array:
        """`[N, nv, I]`: the velocity of every dof per velocity of each independent coordinate."""
        basis = np.zeros((len(qpos), self.model.nv, len(self.independent)))
        basis[:, self.independent, np.arange(len(self.independent))] = 1.0
        powers = np.arange(1, 5)
        for dof, _, column, follows, polynomial in self._tied:
            x = qpos[:, follows] - self.model.qpos0[follows]
            basis[:, dof, column] = (powers * polynomial[1:] * x[:, None] ** (powers - 1)).sum(1)
        return basis

    def follow(self, qpos: Array, qvel: Array) -> None:
        """Set positions and velocities of the tied joints to those that the constraints ask for, in place."""
        if not self._tied:
            return
        for _, address, _, follows, polynomial in self._tied:
            x = qpos[:, follows] - self.model.qpos0[follows]
            qpos[:, address] = self.model.qpos0[address] + (polynomial * x[:, None] ** np.arange(5)).sum(1)
        basis, free = self.basis(qpos), qvel[:, self.independent]
        qvel[:] = (basis @ free[:, :, None])[:, :, 0]


class MuscleMap:
    """Torque of the driven joints as a function of activations: `tau = A a + p`.

    `A [J, M]` has few non-zero entries; they are kept as `[N, E]`, entry e in row `joint[e]` and column `muscle[e]`.
    """

    def __init__(self, model: mujoco.MjModel, joints: Joints) -> None:
        self.joints, self.num_muscles = joints, model.nu
        short, long = model.actuator_lengthrange.T
        if not (long > short).all():
            missing = [model.actuator(i).name for i in range(model.nu) if long[i] <= short[i]]
            raise UsageError(f"these muscles have no lengthrange: {', '.join(missing)}.")
        low, high, _, _, lmin, lmax, vmax, _, fvmax = model.actuator_gainprm.T[:9]
        fibre = (long - short) / (high - low)  # at rest
        # Everything about length is a function of x = (fibre length / fibre length at rest) - 1.
        self._length = 1.0 / fibre, low - 1.0 - short / fibre
        self._ends = 1.0 / (lmin - 1.0), 1.0 / (lmax - 1.0)
        self._speed, self._excess, self._fastest = 1.0 / (fibre * vmax), np.maximum(fvmax - 1.0, 1e-15), fvmax
        self._gain = -_peak_force(model.actuator_gainprm.T, model.actuator_acc0)
        low, high, _, _, _, lmax, _, fpmax = model.actuator_biasprm.T[:8]
        fibre = (long - short) / (high - low)
        self._bias_length = 1.0 / fibre, low - 1.0 - short / fibre
        self._stretch = 2.0 / (lmax - 1.0)
        self._bias = -_peak_force(model.actuator_biasprm.T, model.actuator_acc0) * fpmax
        self._find_structure(model)

    def _find_structure(self, model: mujoco.MjModel) -> None:
        """Which entries of the moment matrix, and of A, can differ from zero."""
        data, rng = mujoco.MjData(model), np.random.default_rng(0)
        mujoco.mj_forward(model, data)
        rows = np.repeat(np.arange(model.nu), data.moment_rownnz)
        adr = np.concatenate([np.arange(a, a + n) for a, n in zip(data.moment_rowadr, data.moment_rownnz, strict=True)])
        self._moment_at, self._moment_row, self._moment_col = adr, rows, data.moment_colind[adr].copy()
        self._size = (model.nu, model.nv)
        joints = self.joints
        qpos = np.tile(model.qpos0, (_STATES_FOR_STRUCTURE, 1))
        qpos[:, joints.qpos] = rng.uniform(joints.low, joints.high, (_STATES_FOR_STRUCTURE, len(joints.qpos)))
        joints.follow(qpos, np.zeros((len(qpos), model.nv)))
        moments = []
        for q in qpos:
            data.qpos[:] = q
            mujoco.mj_fwdPosition(model, data)
            moments.append(data.actuator_moment.copy())
        reach = np.abs(self._dense(np.array(moments), qpos)).max(0)  # [M, J]
        self.joint, self.muscle = np.nonzero(reach.T > 1e-9)
        if not len(self.joint):
            raise UsageError("no muscle of the model moves a driven joint.")
        if not joints.are_tied:  # the place of each entry in MuJoCo's sparse moment matrix
            places = {(r, c): a for r, c, a in zip(rows, self._moment_col, adr, strict=True)}
            self._entry = np.array([places[m, joints.dof[j]] for j, m in zip(self.joint, self.muscle, strict=True)])
        self.sum_by_joint = np.zeros((len(self.joint), len(joints.dof)))
        """`[E, J]`: entries of A, each times something, summed by joint."""
        self.sum_by_joint[np.arange(len(self.joint)), self.joint] = 1.0

    def _dense(self, moment: Array, qpos: Array) -> Array:
        """`[N, M, J]`: moment arms on the driven joints, those of tied joints included."""
        dense = np.zeros((len(moment), *self._size))
        dense[:, self._moment_row, self._moment_col] = moment[:, self._moment_at]
        return dense @ self.joints.basis(qpos)[:, :, self.joints.num_root :]

    def __call__(self, length: Array, velocity: Array, moment: Array, qpos: Array) -> tuple[Array, Array]:
        """Entries of A `[N, E]` and p `[N, J]`, from lengths and velocities `[N, M]` and MuJoCo's sparse moments."""
        if self.joints.are_tied:
            arm = self._dense(moment, qpos)[:, self.muscle, self.joint]
        else:
            arm = moment.take(self._entry, 1)
        gain, bias = self._forces(length, velocity)
        return arm * gain.take(self.muscle, 1), (arm * bias.take(self.muscle, 1)) @ self.sum_by_joint

    def _forces(self, length: Array, velocity: Array) -> tuple[Array, Array]:
        """Active force at full activation and passive force `[N, M]`, as MuJoCo's muscles have them; pulling is < 0."""
        x = length * self._length[0] + self._length[1]
        # Force-length: 1 at rest, parabolas on both sides, 0 at the ends.
        t = np.minimum(np.maximum(x * self._ends[0], x * self._ends[1]), 1.0)
        by_length = np.where(t <= 0.5, 1.0 - 2.0 * t * t, 2.0 * np.square(1.0 - t))
        # Force-velocity: 0 when shortening at full speed, 1 at rest, more when lengthening.
        v = velocity * self._speed
        lengthening = self._fastest - np.square(np.maximum(self._excess - v, 0.0)) / self._excess
        by_velocity = np.where(v <= 0.0, np.square(np.maximum(v, -1.0) + 1.0), lengthening)
        stretch = np.maximum(length * self._bias_length[0] + self._bias_length[1], 0.0) * self._stretch
        near = np.minimum(stretch, 1.0)
        return self._gain * by_length * by_velocity, self._bias * near * (stretch - 0.5 * near)

    def dense(self, entries: Array) -> Array:
        """A `[N, J, M]` of its entries `[N, E]`."""
        dense = np.zeros((len(entries), len(self.joints.dof), self.num_muscles))
        dense[:, self.joint, self.muscle] = entries
        return dense


def mass_places(model: mujoco.MjModel) -> NDArray[np.int64]:
    """`[nv * nv]`: where each entry of the mass matrix is in MuJoCo's sparse one; its length where it is zero."""
    rows = np.repeat(np.arange(model.nv), model.M_rownnz)
    columns, place = model.M_colind[: len(rows)], np.arange(len(rows))
    places = np.full((model.nv, model.nv), len(rows))
    places[rows, columns] = places[columns, rows] = place
    return places.flatten()


def _peak_force(parameters: Array, acceleration: Array) -> Array:
    """The third parameter; where it is negative, MuJoCo scales the fourth by the acceleration of unit force."""
    return np.where(parameters[2] < 0, parameters[3] / np.maximum(acceleration, 1e-15), parameters[2])


def lowest_point(model: mujoco.MjModel, data: mujoco.MjData, bodies: Sequence[int]) -> float:
    """Height of the lowest point of the colliding geoms of these bodies, by their bounding boxes."""
    heights: list[Any] = []
    for geom in range(model.ngeom):
        if model.geom_bodyid[geom] in bodies and (model.geom_contype[geom] or model.geom_conaffinity[geom]):
            centre, half = model.geom_aabb[geom, :3], model.geom_aabb[geom, 3:]
            up = data.geom_xmat[geom].reshape(3, 3)[2]
            if model.geom_type[geom] == int(mujoco.mjtGeom.mjGEOM_CAPSULE):  # round ends
                radius, length = model.geom_size[geom, :2]
                heights.append(data.geom_xpos[geom, 2] - abs(up[2]) * length - radius)
            else:
                heights.append(data.geom_xpos[geom, 2] + up @ centre - np.abs(up) @ half)
    return float(min(heights, default=0.0))
