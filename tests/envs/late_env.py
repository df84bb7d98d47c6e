"""An env whose attributes stop being plain data after a while. No torch here: workers import this file."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Late(gym.Env):
    """From step 20 on, `what` is "iterator": an attribute that is no data; "object": an object that a new env lacks."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    class Thing:
        def __init__(self) -> None:
            self.x = 0.5

    def __init__(self, what: str):
        self.what, self.time, self.thing = what, 0, None

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple:
        self.time += 1
        if self.time > 300:
            self.thing = iter([1]) if self.what == "iterator" else self.Thing()
        return np.zeros(1, np.float32), 0.0, False, False, {}


gym.register("Late-v0", Late, max_episode_steps=50)
