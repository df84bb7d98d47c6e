"""The policy of DQN: observations in, the value of every action out. It acts on the highest, or now and then at random.

To whatever acts, evaluates or exports it is a policy like `ActorCritic`, with the highest Q as its value.
"""

import torch
from torch import Tensor, nn

from proxima.algo.distributions import EpsilonGreedy
from proxima.algo.normalize import ObsNormalizer
from proxima.algo.policy import QPolicy
from proxima.config.sections import NormalizeOptions, PolicyOptions
from proxima.errors import UsageError
from proxima.nets.encoders import MLP, init_layer, is_image
from proxima.nets.spec import Spec
from proxima.nets.trunk import Obs, Trunk, encoder_options


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

    def to_env(self, action: Tensor) -> Tensor:
        """A choice as it is; where the env counts from another number than 0, `ActionSpec.to_env` knows."""
        return action


class QNetwork(QPolicy):
    """Q over dictionary observations, for one discrete action and without a memory."""

    noise_size = 2
    state_size = actor_state_size = 0
    shared = True

    def __init__(self, spec: Spec, options: PolicyOptions, normalize: NormalizeOptions):
        super().__init__()
        action = spec.action
        if action.kind != "discrete":
            raise UsageError(
                f"DQN needs a Discrete action space, but the env's is {action.kind} {list(action.sizes)}: use "
                "algorithm PPO."
            )
        if options.memory != "none" or options.distribution != "auto":
            raise UsageError("DQN has no memory and its own distribution: leave memory at none, distribution at auto.")
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
    def epsilon(self) -> Tensor:  # type: ignore[override]
        """[], how often it acts at random where it is given noise; to be changed in place."""
        return self.action_head.epsilon

    def first_state(self, envs: int) -> Tensor | None:
        """There is no memory."""
        return None

    def forward(
        self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[EpsilonGreedy, Tensor]:
        """Distribution, which holds Q `[B, A]`, and the highest Q `[B]` of normalised observations."""
        distribution = self.action_head(self.action_mlp(self.actor_trunk(obs)))
        return distribution, distribution.q.amax(-1)

    def q(self, obs: Obs) -> Tensor:
        """Q `[B, A]` of normalised observations."""
        return self(obs)[0].q

    @torch.no_grad()
    def act(
        self, obs: Obs, noise: Tensor | None = None, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Actions `[B]` for raw observations, twice, and no state: as `ActorCritic.act` gives them.

        With standard normal `noise` `[B, 2]` they are epsilon-greedy, without it greedy.
        """
        distribution, _ = self(self.normalizer(obs))
        action = distribution.mode() if noise is None else distribution.sample(noise)
        return action, self.action_head.to_env(action), None

    def critic(self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """The highest Q `[B]` of normalised observations."""
        return self(obs)[1]

    @torch.no_grad()
    def value(self, obs: Obs, state: Tensor | None = None) -> Tensor:
        """The highest Q `[B]` of raw observations."""
        return self.critic(self.normalizer(obs))
