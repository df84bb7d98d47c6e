"""A network of one's own for one key of a dict observation."""

import torch
from tasks import FindTheGap
from torch import nn

from proxima import evaluate, train


class LidarNet(nn.Module):
    """Convolutions over the beams."""

    def __init__(self, shape, out, channels=4):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv1d(1, channels, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(channels, channels, 5, stride=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            flat = self.convolutions(torch.zeros(1, 1, *shape)).shape[1]
        self.linear = nn.Linear(flat, out)

    def forward(self, beams):
        """`[B, beams]` to `[B, out]`."""
        return self.linear(self.convolutions(beams[:, None]))


run = train(
    env=FindTheGap,
    total_timesteps=20_000,
    num_envs=8,
    num_steps=128,
    learning_rate=1e-3,
    lr_schedule="constant",
    gamma=0.95,
    encoders={"lidar": {"network": LidarNet, "out": 32, "kwargs": {"channels": 4}}},
)
print("steps", run.global_step)
print("return", evaluate(run.run_dir, episodes=100, seed=1000).returns.mean)
