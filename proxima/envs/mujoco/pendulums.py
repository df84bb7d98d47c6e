"""InvertedPendulum and InvertedDoublePendulum: poles on a cart."""

from typing import Any

import numpy as np

from proxima.envs.mujoco.physics import Array, Physics
from proxima.envs.mujoco.task import NormalVelocityStart, Rows, Task


class InvertedPendulum(Task):
    """One pole: 1 for every step upright."""

    noise_scale = 0.01

    def evaluate(self, action: Array) -> tuple[Array, Array | None]:
        """v4 pays for the last step too."""
        finite = np.isfinite(self.qpos).all(axis=1) & np.isfinite(self.qvel).all(axis=1)
        terminated = ~finite | (np.abs(self.qpos[:, 1]) > 0.2)
        reward = np.ones(len(terminated)) if self.is_v4 else (~terminated).astype(np.float64)
        return reward, terminated

    def observation(self, rows: Rows) -> tuple[Array, ...]:
        """Positions and velocities."""
        return self.qpos[rows], self.qvel[rows]


class InvertedDoublePendulum(NormalVelocityStart):
    """Two poles: a bonus for standing, less the distance of the tip from upright and the poles' speed."""

    noise_scale = 0.1

    def __init__(self, template: Any, physics: Physics) -> None:
        super().__init__(template, physics)
        self.healthy_weight = getattr(template, "_healthy_reward", 10)
        self.constraint = physics.bind("qfrc_constraint")[:, : None if self.is_v4 else 1]
        self.tip = physics.bind("site_xpos")

    def evaluate(self, action: Array) -> tuple[Array, Array | None]:
        """v4 pays the bonus for the last step too."""
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


def square(values: Array) -> Array:
    """C's `pow`, which Gymnasium's `**` of a scalar calls: the product differs from it in one case of a thousand."""
    return np.float_power(values, 2)
