"""Bodies rewarded for their forward speed: what they share, and the planar HalfCheetah, Swimmer, Hopper, Walker2d."""

from typing import Any, ClassVar

import numpy as np

from proxima.envs.mujoco.physics import Array, Physics
from proxima.envs.mujoco.task import ALL, NormalVelocityStart, Rows, Task, squared_sum


class Locomotion(Task):
    """Forward speed, plus a bonus for staying healthy, less the cost of the controls and of contacts."""

    hidden: ClassVar[int] = 1
    """Leading position coordinates that the observation leaves out by default."""

    def __init__(self, template: Any, physics: Physics) -> None:
        super().__init__(template, physics)
        self.forward_weight = getattr(template, "_forward_reward_weight", 1)
        self.control_weight = template._ctrl_cost_weight
        self.first = self.hidden if template._exclude_current_positions_from_observation else 0
        self.healthy_weight = getattr(template, "_healthy_reward", None)
        self.ends_unhealthy = bool(getattr(template, "_terminate_when_unhealthy", False))
        # In v4 an episode that unhealthiness ends pays the bonus for its last step too.
        self.always_bonus = self.ends_unhealthy and self.is_v4
        self.last = np.zeros(len(self.qpos))

    def measure(self, rows: Rows) -> Array:
        """Forward position."""
        return self.qpos[rows, 0]

    def healthy(self) -> Array:
        """[N] bool."""
        raise NotImplementedError

    def control_cost(self, action: Array) -> Array:
        """[N]."""
        return self.control_weight * squared_sum(action)

    def contact_cost(self) -> Array | None:
        """[N], or None where contacts cost nothing."""
        return None

    def evaluate(self, action: Array) -> tuple[Array, Array | None]:
        """Reward and termination."""
        position = self.measure(ALL)
        reward = (position - self.last) / self.dt
        if self.forward_weight != 1:
            reward *= self.forward_weight
        self.last[:] = position
        costs = self.control_cost(action)
        contact_cost = self.contact_cost()
        if contact_cost is not None:
            costs = costs + contact_cost
        if self.healthy_weight is None:
            reward -= costs
            return reward, None
        healthy = self.healthy()
        reward += self.healthy_weight if self.always_bonus else healthy * self.healthy_weight
        reward -= costs
        return reward, ~healthy if self.ends_unhealthy else None

    def observation(self, rows: Rows) -> tuple[Array, ...]:
        """Positions, but for those hidden, and velocities."""
        return self.qpos[rows, self.first :], self.qvel[rows]


class HalfCheetah(NormalVelocityStart, Locomotion):
    """Never ends by itself."""


class Swimmer(Locomotion):
    """Never ends by itself; swims in a plane, so two coordinates say where it is."""

    hidden = 2


class Walker2d(Locomotion):
    """Healthy while the torso is at a good height and angle; observed velocities are clipped."""

    def __init__(self, template: Any, physics: Physics) -> None:
        super().__init__(template, physics)
        self.z_range = template._healthy_z_range
        self.angle_range = template._healthy_angle_range

    def healthy(self) -> Array:
        """[N] bool."""
        return between(self.qpos[:, 1], self.z_range) & between(self.qpos[:, 2], self.angle_range)

    def observation(self, rows: Rows) -> tuple[Array, ...]:
        """Positions and clipped velocities."""
        return self.qpos[rows, self.first :], np.clip(self.qvel[rows], -10, 10)


class Hopper(Walker2d):
    """As Walker2d, and every coordinate but the first two within a range."""

    def __init__(self, template: Any, physics: Physics) -> None:
        super().__init__(template, physics)
        self.state_range = template._healthy_state_range

    def healthy(self) -> Array:
        """[N] bool."""
        state = np.concatenate((self.qpos[:, 2:], self.qvel), axis=1)
        return super().healthy() & between(state, self.state_range).all(axis=1)


def between(values: Array, bounds: tuple[float, float]) -> Array:
    """Strictly within `bounds`."""
    low, high = bounds
    return (low < values) & (values < high)
