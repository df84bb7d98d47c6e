"""An env with invalid actions, and its mask in any of the ways that an env can have one. No torch here."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SPACES = {
    "discrete": spaces.Discrete(5),
    "shifted": spaces.Discrete(5, start=2),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
}
LENGTH = 20


class Maze(gym.Env):
    """About half of the choices are invalid, other ones after every step. An invalid action ends the episode.

    A valid choice `a` in state `s` is rewarded by `((a + s) % K) / (K - 1)`, so that the best valid one is learned from
    the state, without seeing the mask.
    """

    invalid_actions: ClassVar[int] = 0
    """Taken so far in this process."""
    dt = 0.1

    def __init__(
        self,
        kind: str = "discrete",
        *,
        way: str = "info",
        all_valid: bool = False,
        image: bool = False,
        stuck_at: int | None = None,
        truncates: bool = False,
    ):
        """`way`: observation, method, info, or none; at step `stuck_at` no action is valid."""
        self.action_space = SPACES[kind]
        sizes = getattr(self.action_space, "nvec", None)
        self.sizes = [int(self.action_space.n)] if sizes is None else sizes.tolist()
        self.first = 2 if kind == "shifted" else 0
        self.way, self.all_valid, self.image = way, all_valid, image
        self.stuck_at, self.truncates = stuck_at, truncates
        seen: spaces.Space = spaces.Box(0, 255, (1, 12, 12), np.uint8) if image else spaces.Box(0, 1, (3,), np.float32)
        self.observation_space = seen
        if way == "observation":
            self.observation_space = spaces.Dict({"seen": seen, "action_mask": spaces.MultiBinary(sum(self.sizes))})
        if way == "method":
            self.action_masks = self._action_masks

    def _action_masks(self) -> np.ndarray:
        return self.mask

    def _draw(self) -> None:
        self.state = int(self.np_random.integers(3))
        columns = []
        for size in self.sizes:
            valid = self.np_random.random(size) < 0.5
            valid[self.np_random.integers(size)] = True
            columns.append(valid | self.all_valid)
        self.mask = np.concatenate(columns)
        if self.time == self.stuck_at:
            self.mask = np.zeros_like(self.mask)

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        seen: Any = np.eye(3, dtype=np.float32)[self.state]
        if self.image:
            seen = np.full((1, 12, 12), 100 * self.state, np.uint8)
        obs = {"seen": seen, "action_mask": self.mask.astype(np.int8)} if self.way == "observation" else seen
        # As Gymnasium's `MultiDiscrete.sample` takes it: one array per column.
        given = tuple(np.split(self.mask, np.cumsum(self.sizes)[:-1])) if len(self.sizes) > 1 else self.mask
        return obs, {"action_mask": given} if self.way == "info" else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        self._draw()
        return self._observe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = np.ravel(action) - self.first
        valid = all(
            column[a] for column, a in zip(np.split(self.mask, np.cumsum(self.sizes)[:-1]), chosen, strict=True)
        )
        Maze.invalid_actions += not valid
        reward = float(np.mean([((a + self.state) % k) / (k - 1) for a, k in zip(chosen, self.sizes, strict=True)]))
        self.time += 1
        self._draw()
        obs, info = self._observe()
        over = self.time == LENGTH
        return obs, reward if valid else 0.0, not valid or (over and not self.truncates), over and self.truncates, info


ENV = "tests.masked_envs:masked/Maze-v0"
"""Its id; the module is imported first, also in a process of its own."""
if "masked/Maze-v0" not in gym.registry:
    gym.register("masked/Maze-v0", Maze, disable_env_checker=True)
