"""An env with a difficulty and with numbers in its `info`. No torch here: async workers import this file."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

HILL = "tests/Hill-v0"


class Hill(gym.Env):
    """Five steps; reward is the action minus the difficulty. With `opaque`, its state can only be replayed."""

    observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, opaque: bool = False) -> None:
        self.difficulty, self.count = 0.0, 0
        if opaque:
            self.lock = iter(())

    def set_difficulty(self, difficulty: float) -> float:
        before, self.difficulty = self.difficulty, difficulty
        return before

    def observe(self) -> np.ndarray:
        return np.array([self.count / 5, self.np_random.random()], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.count += 1
        info: dict[str, Any] = {"count": self.count, "note": "text", "sometimes": 3.0}
        if self.count < 5:
            del info["sometimes"]
        return self.observe(), float(action) - self.difficulty, self.count == 5, False, info


def register() -> None:
    if HILL not in gym.registry:
        gym.register(HILL, entry_point="tests.training.hill_env:Hill")
