"""A policy of your own: one network in which actor and critic share all but the last layer."""

import math

import torch
from torch import Tensor, nn

from proxima import load_policy, train
from proxima.algo.distributions import Distribution
from proxima.config.sections import NormalizeOptions, PolicyOptions
from proxima.nets.actor_critic import ActionHead
from proxima.nets.policy import Policy
from proxima.nets.spec import Spec

Obs = dict[str, Tensor]


class ResidualPolicy(Policy):
    """Residual blocks with layer normalisation; `blocks` and `width` come from the option `policy_kwargs`."""

    def __init__(
        self, spec: Spec, options: PolicyOptions, normalize: NormalizeOptions, *, blocks: int = 2, width: int = 64
    ):
        super().__init__(spec, options, normalize)
        inputs = sum(math.prod(o.shape) for o in self.obs_specs.values())
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU()) for _ in range(blocks)
        )
        self.action_head = ActionHead(width, spec.action, options)
        self.value_head = nn.Linear(width, 1)
        self.noise_size = self.action_head.noise_size

    def forward(
        self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[Distribution, Tensor]:
        """Distribution of the raw action, and value `[B]`, of normalised observations."""
        x = self.first(torch.cat([obs[key].flatten(1) for key in self.obs_specs], -1))
        for block in self.blocks:
            x = x + block(x)
        return self.action_head(x, self.action_mask(obs)), self.value_head(x).squeeze(-1)

    def to_env(self, action: Tensor) -> Tensor:
        """Raw actions in the env's units and within its bounds."""
        return self.action_head.to_env(action)


if __name__ == "__main__":
    result = train(
        env="CartPole-v1",
        policy=ResidualPolicy,
        policy_kwargs={"blocks": 1, "width": 32},
        total_timesteps=16_384,
        num_envs=8,
        num_steps=128,
    )
    print(f"return {result.episode_return:.0f}")
    print("action", load_policy(result.run_dir).act([0.0, 0.0, 0.1, 0.0]))
