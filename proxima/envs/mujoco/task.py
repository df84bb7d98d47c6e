"""What every task on the batch physics shares; the tasks follow Gymnasium's arithmetic to the last bit.

The order of operations and the dtypes therefore matter: actions are float32 and so are sums of their squares.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator

from proxima.envs.mujoco.physics import Array, Physics

ALL = slice(None)
Rows = Array | slice
"""Which simulations: `ALL`, or sorted indices."""


class Task:
    """Observation, reward, termination and start of one Gymnasium task, for N simulations at once.

    `template` is one env of Gymnasium's own, made with the user's keyword arguments: every weight is read from it.
    """

    noise_scale: ClassVar[float] = 0.0
    """Of the start state, where the Gymnasium class keeps none of its own."""

    def __init__(self, template: Any, physics: Physics) -> None:
        self.qpos, self.qvel, self.ctrl = physics.qpos, physics.qvel, physics.ctrl
        self.is_v4 = type(template).__module__.endswith("_v4")
        self.dt: float = template.dt
        self.init_qpos: Array = template.init_qpos.copy()
        self.init_qvel: Array = template.init_qvel.copy()
        self.scale: float = getattr(template, "_reset_noise_scale", self.noise_scale)
        self.last: Array = np.zeros((len(self.qpos), 0))
        """`[N, ...]`: `measure` as it was after the previous step, for tasks that reward a difference."""

    @classmethod
    def needs_contact_forces(cls, template: Any) -> bool:
        """Whether `cfrc_ext` is observed or costs something, which not every physics can give."""
        return False

    def observation(self, rows: Rows) -> tuple[Array, ...]:
        """The parts `[n, ...]` that make up the observation of `rows`, side by side."""
        raise NotImplementedError

    def evaluate(self, action: Array) -> tuple[Array, Array | None]:
        """Reward `[N]` and termination `[N]` (None: never) of the step just taken with `action`."""
        raise NotImplementedError

    def measure(self, rows: Rows) -> Array:
        """What the next step's reward is a difference to."""
        return self.last[rows]

    def start(self, rng: Generator) -> tuple[Array, Array]:
        """Positions and velocities of a new episode: uniform noise around the model's own."""
        low, high = -self.scale, self.scale
        qpos = self.init_qpos + rng.uniform(low, high, self.init_qpos.size)
        return qpos, self.init_qvel + rng.uniform(low, high, self.init_qvel.size)


class NormalVelocityStart(Task):
    """A start whose velocities are normally distributed."""

    def start(self, rng: Generator) -> tuple[Array, Array]:
        """Uniform noise on the positions, normal noise on the velocities."""
        qpos = self.init_qpos + rng.uniform(-self.scale, self.scale, self.init_qpos.size)
        return qpos, self.init_qvel + self.scale * rng.standard_normal(self.init_qvel.size)


def squared_sum(values: Array) -> Array:
    """`[N, k] -> [N]`, in the dtype of `values`; rows must be contiguous, or numpy adds in another order."""
    return np.add.reduce(np.square(values), axis=1)
