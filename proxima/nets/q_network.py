"""DQN's policy: the Q-network, acting epsilon-greedily. Its value is the highest Q."""

import torch
from torch import Tensor, nn

from proxima.algo.distributions import EpsilonGreedy, valid_choices
from proxima.config.sections import NormalizeOptions, PolicyOptions
from proxima.errors import UsageError
from proxima.nets.encoders import init_layer
from proxima.nets.masked_linear import masked_linear
from proxima.nets.policy import Policy
from proxima.nets.spec import Spec
from proxima.nets.trunk import Obs, Trunk


class QHead(nn.Module):
    """Maps features to Q-values, as an epsilon-greedy distribution."""

    epsilon: Tensor

    def __init__(self, features: int, choices: int, *, orthogonal: bool):
        super().__init__()
        self.register_buffer("epsilon", torch.ones(()))
        self.linear = nn.Linear(features, choices)
        init_layer(self.linear, gain=0.01, orthogonal=orthogonal)  # Q is near 0 at first

    def forward(self, features: Tensor, mask: Tensor | None = None) -> EpsilonGreedy:
        """The distribution; its `q` is `[B, A]`, lowest where the `mask` `[B, A]` is false."""
        q = masked_linear(self.linear, features, mask, (self.linear.out_features,))
        return EpsilonGreedy(q, self.epsilon, None if mask is None else valid_choices(mask))


class QNetwork(Policy):
    """Q-values for dictionary observations and one discrete action; not recurrent."""

    noise_size = 2
    values_are_cheap = True

    def __init__(self, spec: Spec, options: PolicyOptions, normalize: NormalizeOptions):
        super().__init__(spec, options, normalize)
        action = spec.action
        if action.kind != "discrete":
            raise UsageError(
                f"DQN needs a Discrete action space, but the env's is {action.kind} {list(action.sizes)}: use "
                "algorithm PPO."
            )
        if options.rnn != "none" or options.distribution != "auto":
            raise UsageError(
                "DQN has no recurrent policy and no distribution: leave rnn at none, distribution at auto."
            )
        if options.critic_hidden_sizes is not None:
            raise UsageError(
                f"critic_hidden_sizes is {options.critic_hidden_sizes}, but DQN has no critic: use hidden_sizes."
            )
        for key, encoder in self.encoder_options.items():
            if encoder.use == "critic":
                raise UsageError(f"encoders give {key!r} to the critic alone, but DQN has none: use all or none.")
        self.actor_trunk = Trunk(self.obs_specs, self.encoder_options, options, hidden_sizes=options.hidden_sizes)
        features, orthogonal = self.actor_trunk.out_features, options.orthogonal_init
        self.action_head = QHead(features, action.sizes[0], orthogonal=orthogonal)

    @property
    def epsilon(self) -> Tensor:
        """[], probability of a random action if noise is given; to be changed in place."""
        return self.action_head.epsilon

    def forward(
        self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[EpsilonGreedy, Tensor]:
        """The distribution, with Q `[B, A]`, and the highest Q `[B]` of normalised observations."""
        distribution = self.action_head(self.actor_trunk(obs), self.action_mask(obs))
        return distribution, distribution.q.amax(-1)

    def to_env(self, action: Tensor) -> Tensor:
        """The action unchanged; `ActionSpec.to_env` adds the start of the env's Discrete space."""
        return action
