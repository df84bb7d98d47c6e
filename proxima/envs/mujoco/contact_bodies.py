"""Ant, Humanoid and HumanoidStandup: tasks that may observe or penalise contact forces (`cfrc_ext`)."""

from typing import Any, ClassVar

import numpy as np

from proxima.envs.mujoco.physics import Array, Physics
from proxima.envs.mujoco.tasks import Locomotion, Rows, Task, between, squared_sum

FORCE = 6
"""Numbers per body in `cfrc_ext`: a torque and a force."""


class Ant(Locomotion):
    """Healthy while its state is finite and the height of its torso is within a range."""

    hidden = 2
    normal_velocity = True

    def __init__(self, template: Any, physics: Physics) -> None:
        super().__init__(template, physics)
        if self.is_v4:
            body, observed, first_body = "torso", template._use_contact_forces, 0
        else:
            body, observed, first_body = template._main_body, template._include_cfrc_ext_in_observation, 1
        self.body_x = physics.bind("xpos")[:, 3 * template.model.body(body).id]
        self.first_force = FORCE * first_body if observed else None

    @classmethod
    def needs_contact_forces(cls, template: Any) -> bool:
        """In v4 one option is for both the observation and the cost."""
        if hasattr(template, "_use_contact_forces"):
            return bool(template._use_contact_forces)
        return bool(template._include_cfrc_ext_in_observation or template._contact_cost_weight != 0)

    def measure(self, rows: Rows) -> Array:
        """Forward position of the main body, which lags the coordinates by a substep."""
        return self.body_x[rows]

    def _healthy(self) -> Array:
        low, high = self.template._healthy_z_range
        z = self.qpos[:, 2]
        finite = np.isfinite(self.qpos).all(axis=1) & np.isfinite(self.qvel).all(axis=1)
        return finite & (low <= z) & (z <= high)

    def _contact_cost(self) -> Array | None:
        if self.forces is None:
            return None
        return self.template._contact_cost_weight * squared_sum(self._clipped(self.forces))

    def observation(self, rows: Rows) -> tuple[Array, ...]:
        """Positions, velocities and, optionally, clipped contact forces."""
        parts = super().observation(rows)
        if self.first_force is None or self.forces is None:
            return parts
        return *parts, self._clipped(self.forces[rows, self.first_force :])

    def _clipped(self, forces: Array) -> Array:
        return np.clip(forces, *self.template._contact_force_range)


class HumanoidBody(Task):
    """Observation of both humanoid tasks: positions, velocities, inertias, and forces of actuators and contacts."""

    hidden = 2
    noise_scale = 1e-2
    optional: ClassVar[dict[str, int]] = {"cinert": 10, "cvel": 6, "qfrc_actuator": 6, "cfrc_ext": FORCE}
    """Fields, each with the number of leading values that v5 omits: those of the world body, or of the free joint."""

    def __init__(self, template: Any, physics: Physics) -> None:
        super().__init__(template, physics)
        self.derived = [
            physics.bind(name)[:, 0 if self.is_v4 else omitted :]
            for name, omitted in self.optional.items()
            if observes(template, name)
        ]

    @classmethod
    def needs_contact_forces(cls, template: Any) -> bool:
        """Contact forces are observed by default, and in most versions penalised."""
        return observes(template, "cfrc_ext") or contact_weight(template) != 0

    def _contact_sum(self) -> Array | float:
        """Sum of squared contact forces `[N]`; 0 if they are not used."""
        return 0.0 if self.forces is None else squared_sum(self.forces)

    def observation(self, rows: Rows) -> tuple[Array, ...]:
        """Positions, velocities and the derived fields that are included."""
        return *super().observation(rows), *(field[rows] for field in self.derived)


class Humanoid(HumanoidBody, Locomotion):
    """Moves its centre of mass forward; healthy while the height of the torso is within a range."""

    def __init__(self, template: Any, physics: Physics) -> None:
        super().__init__(template, physics)
        self.contact_weight = contact_weight(template)
        self.contact_range = getattr(template, "_contact_cost_range", (-np.inf, np.inf))
        self.mass = template.model.body_mass.copy()
        self.total_mass = self.mass.sum()
        self.body_centres = physics.bind("xipos").reshape(len(self.qpos), -1, 3)

    def measure(self, rows: Rows) -> Array:
        """Forward position of the centre of mass; einsum over all three axes, or the last bits differ."""
        return (np.einsum("b,nbj->nj", self.mass, self.body_centres[rows]) / self.total_mass)[:, 0]

    def _healthy(self) -> Array:
        return between(self.qpos[:, 2], self.template._healthy_z_range)

    def _control_cost(self, action: Array) -> Array:
        """From the float64 controls, unlike the other tasks."""
        return self.control_weight * squared_sum(self.ctrl)

    def _contact_cost(self) -> Array | None:
        if self.is_v4:
            return None
        return np.clip(self.contact_weight * self._contact_sum(), *self.contact_range)


class HumanoidStandup(HumanoidBody):
    """Rewarded for the height of its torso; never terminates."""

    def __init__(self, template: Any, physics: Physics) -> None:
        super().__init__(template, physics)
        self.control_weight = getattr(template, "_ctrl_cost_weight", 0.1)
        self.impact_weight = contact_weight(template)
        self.impact_range = getattr(template, "_impact_cost_range", (-np.inf, 10))

    def evaluate(self, action: Array) -> tuple[Array, Array | None]:
        """Height, control cost and impact cost. Like Gymnasium, it ignores `uph_cost_weight`."""
        control_cost = self.control_weight * squared_sum(self.ctrl)
        impact_cost = np.clip(self.impact_weight * self._contact_sum(), *self.impact_range)
        return self.qpos[:, 2] / self.template.model.opt.timestep - control_cost - impact_cost + 1, None


def observes(template: Any, name: str) -> bool:
    """Whether a field is observed: v4 has every field; v5 compares its option with `True` itself."""
    return getattr(template, f"_include_{name}_in_observation", True) is True


def contact_weight(template: Any) -> float:
    """Weight of squared contact forces; HumanoidStandup-v4 has a fixed one."""
    for name in ("_contact_cost_weight", "_impact_cost_weight"):
        if hasattr(template, name):
            return float(getattr(template, name))
    return 0.5e-6
