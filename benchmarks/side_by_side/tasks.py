"""The envs of the four tasks: both libraries import them, so that they are not counted as code of either."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

EPISODE = 50  # steps
VALUES = np.array([1.0, 2.0, 3.0, 4.0])
BEAMS = 32


class Cart(gym.Env):
    """Push a cart to a target, in centimetres, and keep it there; the reward is minus the distance in metres."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, max_force: float = 1.0, mass: float = 1.0):
        self.action_space = spaces.Box(-max_force, max_force, (1,), np.float32)
        self.mass = mass

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """A cart at rest, and a target up to a metre away."""
        super().reset(seed=seed)
        self.place, self.speed, self.steps = 0.0, 0.0, 0
        self.target = self.np_random.uniform(-1.0, 1.0)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """A fifth of a second with a constant force."""
        self.speed += 0.2 * float(action[0]) / self.mass
        self.place += 0.2 * self.speed
        self.steps += 1
        distance = abs(self.place - self.target)
        return self._observe(), -distance, False, self.steps == EPISODE, {"distance": distance}

    def _observe(self) -> np.ndarray:
        return np.array([100 * self.place, 100 * self.speed, 100 * self.target], np.float32)


class Piles(gym.Env):
    """Take 8 coins from four piles, one at a time. To reach into an empty pile ends the game."""

    observation_space = spaces.Box(0, 5, (4,), np.float32)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Fill the piles."""
        super().reset(seed=seed)
        self.coins, self.taken = self.np_random.integers(1, 5, 4), 0
        return self.coins.astype(np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Take a coin from the pile `action`."""
        if not self.coins[action]:
            return self.coins.astype(np.float32), 0.0, True, False, {}
        self.coins[action] -= 1
        self.taken += 1
        over = self.taken == 8 or not self.coins.any()
        return self.coins.astype(np.float32), VALUES[action], over, False, {}

    def action_masks(self) -> np.ndarray:
        """The piles with coins."""
        return self.coins > 0


class FindTheGap(gym.Env):
    """Turn towards the gap in a wall, which 32 beams see; the reward is minus the distance from it."""

    observation_space = spaces.Dict(
        {"lidar": spaces.Box(0.0, 2.0, (BEAMS,), np.float32), "heading": spaces.Box(-1.0, 1.0, (1,), np.float32)}
    )
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict[str, Any], dict]:
        """A new gap."""
        super().reset(seed=seed)
        self.gap, self.heading, self.steps = self.np_random.uniform(-0.8, 0.8), 0.0, 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict]:
        """Turn by up to half a unit."""
        self.heading = float(np.clip(self.heading + 0.5 * action[0], -1.0, 1.0))
        self.steps += 1
        return self._observe(), -abs(self.heading - self.gap), False, self.steps == 16, {}

    def _observe(self) -> dict[str, Any]:
        angles = np.linspace(-1.0, 1.0, BEAMS)
        distances = np.where(np.abs(angles - self.gap) < 0.15, 2.0, 1.0).astype(np.float32)
        return {"lidar": distances, "heading": np.array([self.heading], np.float32)}
