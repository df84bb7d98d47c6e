"""Train on an env of your own: a function or class that makes one env is all that `train` needs."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from proxima import load_policy, train


class Corridor(gym.Env):
    """Walk right to the door: -0.01 a step, 1 at the door."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 5):
        self.length = length

    def reset(self, *, seed=None, options=None):
        """Start at the left end."""
        super().reset(seed=seed)
        self.place = 0
        return self._see(), {}

    def step(self, action):
        """Action 1 goes right, 0 left."""
        self.place = max(0, self.place + (1 if action else -1))
        at_door = self.place == self.length
        return self._see(), 1.0 if at_door else -0.01, at_door, False, {}

    def _see(self):
        return np.array([self.place / self.length], np.float32)


def make_corridor(length: int = 5):
    """One env, with its time limit."""
    return gym.wrappers.TimeLimit(Corridor(length), max_episode_steps=50)


if __name__ == "__main__":
    result = train(env=make_corridor, env_kwargs={"length": 4}, total_timesteps=6_000, num_envs=4, quiet=True)
    print(f"mean return {result.episode_return:.2f}")

    policy = load_policy(result.run_dir)  # needs no env
    print("at the left end it goes", "right" if policy.act(np.zeros(1, np.float32)) == 1 else "left")
