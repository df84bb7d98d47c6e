"""The policy of DQN: observations in, the value of every action out. It acts on the highest, or now and then at random.

To whatever acts, evaluates or exports it is a policy like `ActorCritic`, with the highest Q as its value.
"""

import torch
from torch import Tensor, nn

from proxima.algo.distributions import EpsilonGreedy
from proxima.algo.normalize import ObsNormalizer
from proxima.config.sections import NormalizeOptions, PolicyOptions
from proxima.errors import UsageError
from proxima.nets.encoders import MLP, init_layer, is_image
from proxima.nets.policy import Acted, Obs, Policy
from proxima.nets.spec import Spec
from proxima.nets.trunk import Trunk, encoder_options


class QHead(nn.Module):
    """Features to the values of the actions, as the distribution of the policy that follows them."""

    epsilon: Tensor

    def __init__(self, features: int, choices: int, *, orthogonal: bool):
        super().__init__()
        self.register_buffer("epsilon", torch.ones(()))
        self.linear = nn.Linear(features, choices)
        init_layer(self.linear, gain=0.01, orthogonal=orthogonal)  # nothing is expected of any action yet

    def forward(self, features: Tensor) -> EpsilonGreedy:
        """Its `q` is `[B, A]`."""
        return EpsilonGreedy(self.linear(features).float(), self.epsilon)


class QNetwork(Policy):
    """Q over dictionary observations, for one discrete action; not recurrent."""

    noise_size = 2
    state_size = actor_state_size = 0
    values_are_cheap = True

    def __init__(self, spec: Spec, options: PolicyOptions, normalize: NormalizeOptions):
        super().__init__()
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
        self.spec = spec
        self.register_buffer("return_scale", torch.ones(()))
        encoders = encoder_options(options.encoders, spec.obs)
        for key, encoder in encoders.items():
            if encoder.use == "critic":
                raise UsageError(f"encoders give {key!r} to the critic alone, but DQN has none: use all or none.")
        seen = {key: o for key, o in spec.obs.items() if encoders[key].use == "all"}
        self.keys = self.actor_keys = list(seen)
        self.image_keys = frozenset(key for key, o in seen.items() if is_image(o.shape))
        numbers = {key: o.shape for key, o in seen.items() if key not in self.image_keys}
        normalized = numbers if normalize.normalize_obs else {}
        self.normalizer = ObsNormalizer(normalized, clip=normalize.clip_obs)
        self.actor_trunk = Trunk(seen, encoders, options)
        features, orthogonal = self.actor_trunk.out_features, options.orthogonal_init
        self.action_mlp = MLP(features, [], activation=options.activation, orthogonal=orthogonal)
        self.action_head = QHead(features, action.sizes[0], orthogonal=orthogonal)

    @property
    def epsilon(self) -> Tensor:
        """[], how often it acts at random where it is given noise; to be changed in place."""
        return self.action_head.epsilon

    def forward(
        self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[EpsilonGreedy, Tensor]:
        """Distribution, which holds Q `[B, A]`, and the highest Q `[B]` of normalised observations."""
        distribution = self.action_head(self.action_mlp(self.actor_trunk(obs)))
        return distribution, distribution.q.amax(-1)

    def value(self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """The highest Q `[B]` of normalised observations."""
        return self(obs)[1]

    @torch.no_grad()
    def act(
        self, obs: Obs, noise: Tensor | None = None, state: Tensor | None = None, *, with_value: bool = False
    ) -> Acted:
        """Actions `[B]` for raw observations: epsilon-greedy with `noise` `[B, 2]`, greedy without it."""
        distribution, value = self(self.normalizer(obs))
        action = distribution.mode() if noise is None else distribution.sample(noise)
        if not with_value:
            return Acted(action, action, None)
        return Acted(action, action, None, distribution.log_prob(action), value)

    def to_env(self, action: Tensor) -> Tensor:
        """A choice as it is; where the env counts from another number than 0, `ActionSpec.to_env` knows."""
        return action
