"""A network of your own for one observation key: 1-d convolutions over the beams of a distance sensor."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from proxima import load_policy, train

BEAMS = 32


class FindTheGap(gym.Env):
    """Turn towards the gap in a wall, which 32 beams see; the reward is minus the distance from it."""

    observation_space = spaces.Dict(
        {"lidar": spaces.Box(0.0, 2.0, (BEAMS,), np.float32), "heading": spaces.Box(-1.0, 1.0, (1,), np.float32)}
    )
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict[str, Any], dict]:
        """A new gap."""
        super().reset(seed=seed)
        self.gap, self.heading = self.np_random.uniform(-0.8, 0.8), 0.0
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict]:
        """Turn by up to half a unit."""
        self.heading = float(np.clip(self.heading + 0.5 * action[0], -1.0, 1.0))
        return self.observe(), -abs(self.heading - self.gap), False, False, {}

    def observe(self) -> dict[str, Any]:
        """Distances along the beams, and the heading."""
        angles = np.linspace(-1.0, 1.0, BEAMS)
        distances = np.where(np.abs(angles - self.gap) < 0.15, 2.0, 1.0).astype(np.float32)
        return {"lidar": distances, "heading": np.array([self.heading], np.float32)}


class LidarNet(nn.Module):
    """Made as `LidarNet(shape, out, **kwargs)`; maps `[B, *shape]`, float32 and normalised, to `[B, out]`."""

    def __init__(self, shape: tuple[int, ...], out: int, *, channels: int = 8):
        super().__init__()
        (beams,) = shape
        self.convolutions = nn.Sequential(
            nn.Conv1d(1, channels, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(channels, channels, 5, stride=2),
            nn.ReLU(),
        )
        features = self.convolutions(torch.zeros(1, 1, beams)).numel()
        self.linear = nn.Linear(features, out)

    def forward(self, beams: Tensor) -> Tensor:
        """`[B, beams]` to `[B, out]`."""
        features: Tensor = self.linear(self.convolutions(beams[:, None]).flatten(1))
        return features


if __name__ == "__main__":
    gym.register("FindTheGap-v0", FindTheGap, max_episode_steps=16)
    result = train(
        env="FindTheGap-v0",
        encoders={"lidar": {"network": LidarNet, "out": 32, "kwargs": {"channels": 4}}},
        total_timesteps=8_192,
        num_envs=8,
        num_steps=128,
        learning_rate=1e-3,
    )
    print(f"return {result.episode_return:.2f}")
    observation, _ = gym.make("FindTheGap-v0").reset(seed=0)
    print("first action", load_policy(result.run_dir).act(observation))
