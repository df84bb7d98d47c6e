"""The tasks on the batch physics that do not use contact forces; they compute what Gymnasium does, to the last bit.

The order of operations and the dtypes therefore matter: actions are float32 and so are sums of their squares.
Ant and the humanoids, which may use contact forces, are in `contact_bodies.py`.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator

from proxima.envs.mujoco.physics import Array, Physics

ALL = slice(None)
Rows = Array | slice
"""Which simulations: `ALL`, or sorted indices."""


class Task:
    """Observation, reward, termination and start state of one Gymnasium task, for N simulations at once.

    `template` is a Gymnasium env made with the user's keyword arguments; every weight is read from it.
    """

    noise_scale: ClassVar[float] = 0.0
    """Of the start state, if the Gymnasium class has no `_reset_noise_scale`."""
    normal_velocity: ClassVar[bool] = False
    """Whether the start velocities have normal noise instead of uniform noise."""
    hidden: ClassVar[int] = 0
    """Number of leading position coordinates that are not observed by default."""

    def __init__(self, template: Any, physics: Physics) -> None:
        self.template = template
        self.qpos, self.qvel, self.ctrl = physics.qpos, physics.qvel, physics.ctrl
        self.is_v4 = type(template).__module__.endswith("_v4")
        self.dt: float = template.dt
        self.init_qpos: Array = template.init_qpos.copy()
        self.init_qvel: Array = template.init_qvel.copy()
        self.scale: float = getattr(template, "_reset_noise_scale", self.noise_scale)
        self.first = self.hidden if getattr(template, "_exclude_current_positions_from_observation", True) else 0
        self.forces = physics.bind("cfrc_ext") if self.needs_contact_forces(template) else None
        self.last: Array = np.zeros((len(self.qpos), 0))
        """`[N, ...]`: `measure` after the previous step, for tasks that reward a difference."""

    @classmethod
    def needs_contact_forces(cls, template: Any) -> bool:
        """Whether `cfrc_ext` is observed or penalised, which needs `ContactForcePhysics`."""
        return False

    def observation(self, rows: Rows) -> tuple[Array, ...]:
        """The parts `[n, ...]` of the observation of `rows`, to be concatenated: positions and velocities."""
        return self.qpos[rows, self.first :], self.qvel[rows]

    def evaluate(self, action: Array) -> tuple[Array, Array | None]:
        """Reward `[N]` and termination `[N]` (None: never) of the step just taken with `action`."""
        raise NotImplementedError

    def info(self, action: Array, before: Array) -> dict[str, Array]:
        """Numbers `[N]` of Gymnasium's `info` of the step just taken; `before` is `last` before it. None by default."""
        return {}

    def measure(self, rows: Rows) -> Array:
        """The quantity whose change the next step rewards."""
        return self.last[rows]

    def start(self, rng: Generator) -> tuple[Array, Array]:
        """Positions and velocities of a new episode: the model's own plus noise."""
        qpos = self.init_qpos + rng.uniform(-self.scale, self.scale, self.init_qpos.size)
        if self.normal_velocity:
            return qpos, self.init_qvel + self.scale * rng.standard_normal(self.init_qvel.size)
        return qpos, self.init_qvel + rng.uniform(-self.scale, self.scale, self.init_qvel.size)


class Locomotion(Task):
    """Rewards forward speed and staying healthy, minus control and contact costs."""

    hidden = 1

    def __init__(self, template: Any, physics: Physics) -> None:
        super().__init__(template, physics)
        self.forward_weight = getattr(template, "_forward_reward_weight", 1)
        self.control_weight = template._ctrl_cost_weight
        self.healthy_weight = getattr(template, "_healthy_reward", None)
        self.ends_unhealthy = bool(getattr(template, "_terminate_when_unhealthy", False))
        # In v4 the step that ends an episode as unhealthy still gets the bonus.
        self.always_bonus = self.ends_unhealthy and self.is_v4
        self.last = np.zeros(len(self.qpos))

    def measure(self, rows: Rows) -> Array:
        """Forward position."""
        return self.qpos[rows, 0]

    def _healthy(self) -> Array:  # [N] bool
        raise NotImplementedError

    def _control_cost(self, action: Array) -> Array:  # [N]
        return self.control_weight * squared_sum(action)

    def _contact_cost(self) -> Array | None:  # [N], None if contacts cost nothing
        return None

    def evaluate(self, action: Array) -> tuple[Array, Array | None]:
        """Reward and termination."""
        position = self.measure(ALL)
        reward = (position - self.last) / self.dt
        if self.forward_weight != 1:
            reward *= self.forward_weight
        self.last[:] = position
        costs = self._control_cost(action)
        if (contact_cost := self._contact_cost()) is not None:
            costs = costs + contact_cost
        if self.healthy_weight is None:
            reward -= costs
            return reward, None
        healthy = self._healthy()
        reward += self.healthy_weight if self.always_bonus else healthy * self.healthy_weight
        reward -= costs
        return reward, ~healthy if self.ends_unhealthy else None

    def info(self, action: Array, before: Array) -> dict[str, Array]:
        """Position, speed and, as v5 has them, the terms of the reward."""
        after = self.measure(ALL)
        speed = (after - before) / self.dt
        if self.is_v4:
            return {"x_position": after, "x_velocity": speed}
        found = {"x_position": self.qpos[:, 0], "x_velocity": speed}
        found |= {"reward_forward": self.forward_weight * speed, "reward_ctrl": -self._control_cost(action)}
        if (contact_cost := self._contact_cost()) is not None:
            found["reward_contact"] = -contact_cost
        if self.healthy_weight is not None:
            found["reward_survive"] = self._healthy() * self.healthy_weight
        return found


class HalfCheetah(Locomotion):
    """Never terminates."""

    normal_velocity = True


class Swimmer(Locomotion):
    """Never terminates; two coordinates are its place in the plane."""

    hidden = 2


class Walker2d(Locomotion):
    """Healthy while the torso's height and angle are within ranges; observed velocities are clipped."""

    def _healthy(self) -> Array:
        high_enough = between(self.qpos[:, 1], self.template._healthy_z_range)
        return high_enough & between(self.qpos[:, 2], self.template._healthy_angle_range)

    def observation(self, rows: Rows) -> tuple[Array, ...]:
        """Positions and clipped velocities."""
        return self.qpos[rows, self.first :], np.clip(self.qvel[rows], -10, 10)


class Hopper(Walker2d):
    """As Walker2d; to be healthy, all coordinates except the first two must be within a range too."""

    def _healthy(self) -> Array:
        state = np.concatenate((self.qpos[:, 2:], self.qvel), axis=1)
        return super()._healthy() & between(state, self.template._healthy_state_range).all(axis=1)


class InvertedPendulum(Task):
    """One pole on a cart: reward 1 for every step upright."""

    noise_scale = 0.01

    def evaluate(self, action: Array) -> tuple[Array, Array | None]:
        """In v4 the last step is rewarded too."""
        finite = np.isfinite(self.qpos).all(axis=1) & np.isfinite(self.qvel).all(axis=1)
        terminated = ~finite | (np.abs(self.qpos[:, 1]) > 0.2)
        reward = np.ones(len(terminated)) if self.is_v4 else (~terminated).astype(np.float64)
        return reward, terminated


class InvertedDoublePendulum(Task):
    """Two poles on a cart: a bonus for standing, minus the tip's distance from upright and the poles' speed."""

    noise_scale = 0.1
    normal_velocity = True

    def __init__(self, template: Any, physics: Physics) -> None:
        super().__init__(template, physics)
        self.healthy_weight = getattr(template, "_healthy_reward", 10)
        self.constraint = physics.bind("qfrc_constraint")[:, : None if self.is_v4 else 1]
        self.tip = physics.bind("site_xpos")

    def evaluate(self, action: Array) -> tuple[Array, Array | None]:
        """In v4 the last step gets the bonus too."""
        x, y = self.tip[:, 0], self.tip[:, 2]
        terminated = y <= 1
        distance_penalty = 0.01 * square(x) + square(y - 2)
        speed_penalty = 1e-3 * square(self.qvel[:, 1]) + 5e-3 * square(self.qvel[:, 2])
        bonus = self.healthy_weight if self.is_v4 else self.healthy_weight * ~terminated
        return bonus - distance_penalty - speed_penalty, terminated

    def observation(self, rows: Rows) -> tuple[Array, ...]:
        """Cart, sines and cosines of the poles, and clipped velocities and constraint forces."""
        angle = self.qpos[rows, 1:]
        velocity, constraint = np.clip(self.qvel[rows], -10, 10), np.clip(self.constraint[rows], -10, 10)
        return self.qpos[rows, :1], np.sin(angle), np.cos(angle), velocity, constraint


class Reacher(Task):
    """An arm rewarded for how near its fingertip is to a target in the plane."""

    def __init__(self, template: Any, physics: Physics) -> None:
        super().__init__(template, physics)
        self.distance_weight = getattr(template, "_reward_dist_weight", 1)
        self.control_weight = getattr(template, "_reward_control_weight", 1)
        self.fingertip, self.target = body_positions(template, physics, "fingertip", "target")
        self.observed_axes = 3 if self.is_v4 else 2
        self.last = np.zeros((len(self.qpos), 3))

    def measure(self, rows: Rows) -> Array:
        """From target to fingertip, `[n, 3]`."""
        return self.fingertip[rows] - self.target[rows]

    def evaluate(self, action: Array) -> tuple[Array, Array | None]:
        """Distance and control cost. v4 uses the distance before the step."""
        vector = self.measure(ALL)
        distance = norm(self.last if self.is_v4 else vector)
        self.last[:] = vector
        return -distance * self.distance_weight + -squared_sum(action) * self.control_weight, None

    def observation(self, rows: Rows) -> tuple[Array, ...]:
        """Joint angles as cosine and sine, target, joint velocities, and the vector from target to fingertip."""
        angle = self.qpos[rows, :2]
        vector = self.measure(rows)[:, : self.observed_axes]
        return np.cos(angle), np.sin(angle), self.qpos[rows, 2:], self.qvel[rows, :2], vector

    def start(self, rng: Generator) -> tuple[Array, Array]:
        """The straight arm with noise; a target uniform in a disc, by rejection sampling."""
        qpos = rng.uniform(-0.1, 0.1, self.init_qpos.size) + self.init_qpos
        qpos[-2:] = 1.0
        while np.linalg.norm(qpos[-2:]) >= 0.2:
            qpos[-2:] = rng.uniform(-0.2, 0.2, 2)
        qvel = self.init_qvel + rng.uniform(-0.005, 0.005, self.init_qvel.size)
        qvel[-2:] = 0
        return qpos, qvel


class Pusher(Task):
    """An arm rewarded for pushing a cylinder to a goal."""

    def __init__(self, template: Any, physics: Physics) -> None:
        super().__init__(template, physics)
        self.tip, self.object, self.goal = body_positions(template, physics, "tips_arm", "object", "goal")

    def evaluate(self, action: Array) -> tuple[Array, Array | None]:
        """Distances from object to goal and from tip to object, and control cost."""
        near = -norm(self.object - self.tip) * self.template._reward_near_weight
        distance = -norm(self.object - self.goal) * self.template._reward_dist_weight
        return distance + -squared_sum(action) * self.template._reward_control_weight + near, None

    def observation(self, rows: Rows) -> tuple[Array, ...]:
        """Angles and velocities of the arm's joints; positions of tip, object and goal."""
        return self.qpos[rows, :7], self.qvel[rows, :7], self.tip[rows], self.object[rows], self.goal[rows]

    def start(self, rng: Generator) -> tuple[Array, Array]:
        """The arm at rest with noise on its velocities; a cylinder away from the goal, by rejection sampling."""
        qpos = self.init_qpos.copy()
        qpos[-4:] = 0
        while np.linalg.norm(qpos[-4:-2]) <= 0.17:
            qpos[-4:-2] = np.concatenate([rng.uniform(-0.3, 0, 1), rng.uniform(-0.2, 0.2, 1)])
        qvel = self.init_qvel + rng.uniform(-0.005, 0.005, self.init_qvel.size)
        qvel[-4:] = 0
        return qpos, qvel


def squared_sum(values: Array) -> Array:
    """`[N, k] -> [N]`, in the dtype of `values`; rows must be contiguous, or numpy adds in another order."""
    return np.add.reduce(np.square(values), axis=1)


def square(values: Array) -> Array:
    """C's `pow`, which Gymnasium's `**` of a scalar calls: the product differs from it in one of a thousand cases."""
    return np.float_power(values, 2)


def norm(vectors: Array) -> Array:
    """`[N, 3] -> [N]`, with the BLAS dot product of `np.linalg.norm`; a plain sum differs in the last bits."""
    return np.sqrt(np.vecdot(vectors, vectors))


def between(values: Array, bounds: tuple[float, float]) -> Array:
    """Whether values are strictly within `bounds`."""
    low, high = bounds
    return (low < values) & (values < high)


def body_positions(template: Any, physics: Physics, *names: str) -> list[Array]:
    """A live `[N, 3]` view for each body."""
    xpos = physics.bind("xpos")
    starts = [3 * template.model.body(name).id for name in names]
    return [xpos[:, start : start + 3] for start in starts]
