"""What a policy sees and does, as plain data: enough to build it again without the environment."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from proxima.errors import UsageError


@dataclass(frozen=True)
class ActionSpec:
    """The action space of one env."""

    kind: str
    """box, discrete, multi_discrete or multi_binary."""
    sizes: tuple[int, ...]
    """(A,) numbers or coins; or the number of choices a column."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    """Of one action as the env takes it; the policy's own are flat."""
    start: tuple[int, ...] = ()
    """First choice a column, where it is not 0."""
    dtype: str = "float32"

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """Actions `[B, A]` or `[B]`, already scaled and clipped, as the env's own space has them: `[B, *shape]`."""
        if self.start:
            action = action + np.array(self.start).reshape(action.shape[1:])
        action = action.reshape(len(action), *self.shape)
        dtype = np.dtype(self.dtype)
        action = (np.rint(action) if dtype.kind in "iu" else action).astype(dtype)
        if self.kind == "box":  # in the env's precision: the policy's bounds were rounded to float32
            low, high = (np.array(bound, dtype).reshape(self.shape) for bound in (self.low, self.high))
            action = np.clip(action, low, high)
        return action


@dataclass(frozen=True)
class ObsSpec:
    """One key of the observation."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Spec:
    """Observation keys and action."""

    obs: dict[str, ObsSpec]
    action: ActionSpec

    def to_dict(self) -> dict[str, Any]:
        """Lists and numbers only, for YAML."""
        return {
            "obs": {key: {"shape": list(o.shape), "dtype": o.dtype} for key, o in self.obs.items()},
            "action": {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self.action).items()},
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Spec":
        """What `to_dict` described."""
        obs = {key: ObsSpec(tuple(o["shape"]), o["dtype"]) for key, o in data["obs"].items()}
        action = data["action"]
        lists = {name: tuple(action[name]) for name in ("sizes", "low", "high", "shape", "start")}
        return cls(obs, ActionSpec(kind=action["kind"], dtype=action["dtype"], **lists))

    @classmethod
    def from_spaces(cls, observation_space: spaces.Dict, action_space: spaces.Space) -> "Spec":
        """The spec of a vector env's single-env spaces."""
        obs = {key: ObsSpec(tuple(box.shape), str(box.dtype)) for key, box in observation_space.spaces.items()}
        return cls(obs, _action_spec(action_space))


def _action_spec(space: spaces.Space) -> ActionSpec:
    form: dict[str, Any] = {"shape": tuple(space.shape or ()), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Box):
        low, high = (tuple(np.ravel(bound).astype(float).tolist()) for bound in (space.low, space.high))
        return ActionSpec("box", (len(low),), low, high, **form)
    start = tuple(int(first) for first in np.ravel(getattr(space, "start", ())))
    form["start"] = start if any(start) else ()
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", (int(space.n),), **form)
    if isinstance(space, spaces.MultiDiscrete):
        return ActionSpec("multi_discrete", tuple(int(n) for n in np.ravel(space.nvec)), **form)
    if isinstance(space, spaces.MultiBinary):
        return ActionSpec("multi_binary", (int(np.prod(space.shape)),), **form)
    raise UsageError(f"the action space {space} is not supported: use Box, Discrete, MultiDiscrete or MultiBinary.")
