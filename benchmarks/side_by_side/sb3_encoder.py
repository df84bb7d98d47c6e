"""A network of one's own for one key of a dict observation."""

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from tasks import FindTheGap
from torch import nn


class LidarExtractor(BaseFeaturesExtractor):
    """Convolutions over the beams, beside the heading as it is."""

    def __init__(self, observation_space, lidar_features=32, channels=4):
        heading = observation_space["heading"].shape[0]
        super().__init__(observation_space, features_dim=lidar_features + heading)
        self.convolutions = nn.Sequential(
            nn.Conv1d(1, channels, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(channels, channels, 5, stride=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            flat = self.convolutions(torch.zeros(1, 1, *observation_space["lidar"].shape)).shape[1]
        self.linear = nn.Linear(flat, lidar_features)

    def forward(self, observations):
        """Features of both keys."""
        lidar = self.linear(self.convolutions(observations["lidar"][:, None]))
        return torch.cat([lidar, observations["heading"]], dim=1)


model = PPO(
    "MultiInputPolicy",
    make_vec_env(FindTheGap, n_envs=8, seed=1),
    n_steps=128,
    learning_rate=1e-3,
    gamma=0.95,
    policy_kwargs={
        "features_extractor_class": LidarExtractor,
        "features_extractor_kwargs": {"lidar_features": 32, "channels": 4},
    },
    seed=1,
    device="cpu",
)
model.learn(20_000)
model.save("gap")

mean, _ = evaluate_policy(model, make_vec_env(FindTheGap, n_envs=8, seed=1000), n_eval_episodes=100)
print("steps", model.num_timesteps)
print("return", mean)
