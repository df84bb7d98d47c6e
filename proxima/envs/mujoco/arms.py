"""Reacher and Pusher: arms rewarded for how near something is to its goal."""

from typing import Any

import numpy as np
from numpy.random import Generator

from proxima.envs.mujoco.physics import Array, Physics
from proxima.envs.mujoco.task import ALL, Rows, Task, squared_sum


class Reacher(Task):
    """A fingertip and a target in the plane."""

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
        """Distance and control cost. v4 takes the distance from before the step."""
        vector = self.measure(ALL)
        distance = norm(self.last if self.is_v4 else vector)
        self.last[:] = vector
        return -distance * self.distance_weight + -squared_sum(action) * self.control_weight, None

    def observation(self, rows: Rows) -> tuple[Array, ...]:
        """Joint angles as cosine and sine, target, joint velocities, and the way to the target."""
        angle = self.qpos[rows, :2]
        way = self.measure(rows)[:, : self.observed_axes]
        return np.cos(angle), np.sin(angle), self.qpos[rows, 2:], self.qvel[rows, :2], way

    def start(self, rng: Generator) -> tuple[Array, Array]:
        """Noise around the straight arm; a target uniform in a disc, drawn until it is in it."""
        qpos = rng.uniform(-0.1, 0.1, self.init_qpos.size) + self.init_qpos
        while True:
            goal = rng.uniform(-0.2, 0.2, 2)
            if np.linalg.norm(goal) < 0.2:
                break
        qpos[-2:] = goal
        qvel = self.init_qvel + rng.uniform(-0.005, 0.005, self.init_qvel.size)
        qvel[-2:] = 0
        return qpos, qvel


class Pusher(Task):
    """A cylinder, to be pushed to a goal with the tip of an arm."""

    def __init__(self, template: Any, physics: Physics) -> None:
        super().__init__(template, physics)
        self.near_weight = template._reward_near_weight
        self.distance_weight = template._reward_dist_weight
        self.control_weight = template._reward_control_weight
        self.tip, self.object, self.goal = body_positions(template, physics, "tips_arm", "object", "goal")

    def evaluate(self, action: Array) -> tuple[Array, Array | None]:
        """How far the object is from the goal and the tip from the object, and control cost."""
        near = -norm(self.object - self.tip) * self.near_weight
        distance = -norm(self.object - self.goal) * self.distance_weight
        return distance + -squared_sum(action) * self.control_weight + near, None

    def observation(self, rows: Rows) -> tuple[Array, ...]:
        """The arm's joints, then tip, object and goal in space."""
        return self.qpos[rows, :7], self.qvel[rows, :7], self.tip[rows], self.object[rows], self.goal[rows]

    def start(self, rng: Generator) -> tuple[Array, Array]:
        """The arm at rest but for noise in its velocities; a cylinder drawn until it is away from the goal."""
        qpos = self.init_qpos.copy()
        while True:
            cylinder = np.concatenate([rng.uniform(-0.3, 0, 1), rng.uniform(-0.2, 0.2, 1)])
            if np.linalg.norm(cylinder) > 0.17:
                break
        qpos[-4:-2] = cylinder
        qpos[-2:] = 0
        qvel = self.init_qvel + rng.uniform(-0.005, 0.005, self.init_qvel.size)
        qvel[-4:] = 0
        return qpos, qvel


def body_positions(template: Any, physics: Physics, *names: str) -> list[Array]:
    """A live `[N, 3]` view for each body."""
    xpos = physics.bind("xpos")
    starts = [3 * template.model.body(name).id for name in names]
    return [xpos[:, start : start + 3] for start in starts]


def norm(vectors: Array) -> Array:
    """`[N, 3] -> [N]`, by the same BLAS dot product as `np.linalg.norm` of one vector; a plain sum has other bits."""
    return np.sqrt(np.vecdot(vectors, vectors))
