"""An env whose step takes 5 ms of a core, as a simulator of contacts or traffic does; for benchmarks/cluster.py."""

import time
from typing import Any

import gymnasium as gym
import numpy as np

STEP_SECONDS = 0.005


class SlowEnv(gym.Env):
    """A point that is pushed around; the rest of every step is spent computing nothing."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (16,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)

    def __init__(self, config: Any = None) -> None:
        self._time, self._place = 0, np.zeros(16, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        """A random place."""
        super().reset(seed=seed)
        self._time, self._place = 0, self.np_random.standard_normal(16).astype(np.float32)
        return self._place, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Move, then keep the core busy until the time is up."""
        until = time.perf_counter() + STEP_SECONDS
        self._time += 1
        self._place = self._place + 0.1 * np.resize(action, 16).astype(np.float32)
        while time.perf_counter() < until:
            pass
        return self._place, -float(np.square(self._place).mean()), False, self._time >= 200, {}
