"""PPO's policy: actor and critic."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxima.algo import distributions
from proxima.algo.distributions import BETA_NOISE, Categorical, Distribution
from proxima.config.sections import NormalizeOptions, PolicyOptions
from proxima.errors import UsageError
from proxima.nets.encoders import MLP, init_layer
from proxima.nets.masked_linear import full_precision_linear, masked_linear
from proxima.nets.policy import Acted, Policy
from proxima.nets.spec import ActionSpec, Spec
from proxima.nets.trunk import Encoders, Obs, Trunk

# Fraction of the run; the learning rate is low then, so that the policy keeps what it has learned under noise.
_MIN_STD_FALLS_IN_LAST = 0.2


class ActionHead(nn.Module):
    """Maps features to a distribution of raw actions, and raw actions to the env's actions."""

    log_min_std: Tensor | float
    bounds: Tensor
    """`[4, A]`: centre and half width of the env's range, lowest and highest action."""

    def __init__(self, features: int, action: ActionSpec, options: PolicyOptions):
        super().__init__()
        self.action = action
        self.kind = _distribution_kind(action, options)
        self.std_mode = options.std_mode
        self.min_std, self.log_max_std = options.min_std, math.log(options.max_std)
        if self._is_gaussian and len(self.min_std) > 1:  # a tensor, so that a change does not recompile
            self.register_buffer("log_min_std", torch.tensor(math.log(self.min_std[0])))
        else:
            self.log_min_std = math.log(self.min_std[0])
        size = sum(action.sizes)
        self.noise_size = BETA_NOISE * size if self.kind == "beta" else size
        two = self.kind == "beta" or (self._is_gaussian and self.std_mode == "state")
        self.linear = nn.Linear(features, 2 * size if two else size)
        init_layer(self.linear, gain=0.01, orthogonal=options.orthogonal_init)
        if self._is_gaussian:
            initial = math.log(options.initial_std)
            if self.std_mode == "state":
                log_min, log_max = math.log(self.min_std[0]), self.log_max_std
                share = (initial - log_min) / (log_max - log_min)
                with torch.no_grad():
                    self.linear.bias[size:] = math.log(max(share, 1e-4) / max(1 - share, 1e-4))
            else:
                self.log_std = nn.Parameter(torch.full((size,), initial), requires_grad=self.std_mode == "learned")
        if action.kind == "box":
            low, high = torch.tensor(action.low), torch.tensor(action.high)
            bounded = torch.isfinite(high - low)  # False if the range overflows float32, too
            scaled = bounded & (options.scale_actions or self.kind != "gaussian")
            # Raw action x to centre + half * x.
            centre = torch.where(scaled, 0.5 * (low + high), 0.0)
            half = torch.where(scaled, 0.5 * (high - low), 1.0)
            self.register_buffer("bounds", torch.stack((centre, half, low, high)), persistent=False)

    @property
    def _is_gaussian(self) -> bool:
        return self.kind in ("gaussian", "tanh_gaussian")

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Distribution:
        """The distribution of the raw action; `mask` `[B, sum(sizes)]` bool is false for choices of probability 0."""
        out = masked_linear(self.linear, features, mask, self.action.sizes)
        if self._is_gaussian:
            gaussian = distributions.Gaussian if self.kind == "gaussian" else distributions.TanhGaussian
            return gaussian(*self._mean_and_log_std(out))
        if self.kind == "beta":
            alpha, beta = (1.0 + 1e-3 + F.softplus(out)).chunk(2, -1)
            return distributions.Beta(alpha, beta)
        if self.kind == "multi_binary":
            return distributions.Bernoulli(out)
        parts = [Categorical(logits.log_softmax(-1)) for logits in out.split(self.action.sizes, -1)]
        return parts[0] if self.kind == "discrete" else distributions.MultiCategorical(parts)

    def _mean_and_log_std(self, out: Tensor) -> tuple[Tensor, Tensor]:
        if self.std_mode == "state":
            mean, raw = out.chunk(2, -1)
            return mean, self.log_min_std + (self.log_max_std - self.log_min_std) * raw.sigmoid()
        # Clamped in value but not in gradient: a std at its limit can still move back.
        return out, self.log_std + (self.limited_log_std() - self.log_std).detach()

    def limited_log_std(self) -> Tensor:
        """`[A]`, the learned or fixed log-std within its limits."""
        return self.log_std.clamp(max=self.log_max_std).clamp(min=self.log_min_std)

    def min_std_at(self, progress: float) -> float:
        """The lower bound of the std at this fraction of the run."""
        first, last = self.min_std[0], self.min_std[-1]
        share = 1.0 - (1.0 - min(1.0, progress)) / _MIN_STD_FALLS_IN_LAST
        return first + (last - first) * max(0.0, share)

    def set_progress(self, progress: float) -> None:
        """Set the lower bound of the std for this fraction of the run."""
        if isinstance(self.log_min_std, Tensor):
            self.log_min_std.fill_(math.log(self.min_std_at(progress)))

    def to_env(self, action: Tensor) -> Tensor:
        """Raw actions in the env's units and within its bounds."""
        if self.action.kind != "box":
            return action
        centre, half, low, high = self.bounds.unbind()
        return torch.addcmul(centre, half, self.scaled(action)).clamp(low, high)

    def scaled(self, action: Tensor) -> Tensor:
        """Raw Box actions on the scale on which -1..1 is the env's range, if it has one; not clipped."""
        if self.kind == "beta":
            return 2.0 * action - 1.0
        return action.tanh() if self.kind == "tanh_gaussian" else action

    def from_env(self, action: Tensor) -> Tensor:
        """Box actions in the env's units on the scale of `scaled`."""
        centre, half = self.bounds[:2]
        return (action - centre) / torch.where(half > 0, half, 1.0)


class ActorCritic(Policy):
    """Actor and critic for dictionary observations.

    If recurrent, the MLPs of `hidden_sizes` and `critic_hidden_sizes` follow the recurrent layers. A shared trunk
    without recurrent layers ends with the hidden layers, or, if the critic has widths of its own, at the encoders. The
    state `[B, S]` is that of all recurrent layers: the actor's, then the critic's if it has its own trunk.
    """

    def __init__(self, spec: Spec, options: PolicyOptions, normalize: NormalizeOptions):
        super().__init__(spec, options, normalize)
        encoders, seen, images = self.encoder_options, self.obs_specs, self.image_keys
        acted_on = {key: o for key, o in seen.items() if encoders[key].use == "all"}
        self.actor_keys = self.with_mask(acted_on)
        recurrent = options.rnn != "none"
        joined = recurrent or any(key in images for key in acted_on)
        shared = options.share_trunk == "on" or (options.share_trunk == "auto" and joined)
        hidden, critic_hidden = options.hidden_sizes, options.critic_hidden_sizes
        after_trunk = recurrent or (shared and critic_hidden is not None)
        if critic_hidden is None:
            critic_hidden = hidden
        in_trunk = ([], []) if after_trunk else (hidden, critic_hidden)
        self.actor_trunk = Trunk(acted_on, encoders, options, hidden_sizes=in_trunk[0])
        self.critic_trunk = self.actor_trunk if shared else Trunk(seen, encoders, options, hidden_sizes=in_trunk[1])
        self.actor_state_size = self.actor_trunk.state_size
        self.state_size = self.actor_state_size if shared else self.actor_state_size + self.critic_trunk.state_size
        # With a shared trunk, keys for the critic only bypass the trunk.
        beside = {key: o for key, o in seen.items() if shared and key not in acted_on}
        self.beside = Encoders(beside, encoders, options) if beside else None
        style: dict[str, Any] = {"activation": options.activation, "orthogonal": options.orthogonal_init}
        self.action_mlp = MLP(self.actor_trunk.out_features, hidden if after_trunk else [], **style)
        value_inputs = self.critic_trunk.out_features + (self.beside.out_features if self.beside else 0)
        self.value_mlp = MLP(value_inputs, critic_hidden if after_trunk else [], **style)
        self.action_head = ActionHead(self.action_mlp.out_features, spec.action, options)
        self.value_head = nn.Linear(self.value_mlp.out_features, 1)
        init_layer(self.value_head, gain=1.0, orthogonal=options.orthogonal_init)
        self.noise_size = self.action_head.noise_size
        self.values_are_cheap = self.shared and bool(images)

    @property
    def shared(self) -> bool:
        """Whether actor and critic share a trunk."""
        return self.critic_trunk is self.actor_trunk

    def forward(
        self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[Distribution, Tensor]:
        """Distribution of the raw action and value `[B]` of normalised observations."""
        actor_state, critic_state = self._split(state)
        features = self.actor_trunk(obs, actor_state, start)
        critic_features = features if self.shared else self.critic_trunk(obs, critic_state, start)
        distribution = self.action_head(self.action_mlp(features), self.action_mask(obs))
        return distribution, self._value(critic_features, obs)

    def value(self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """Value `[B]` of normalised observations, without the actor."""
        return self._value(self.critic_trunk(obs, self._split(state)[1], start), obs)

    @torch.no_grad()
    def act(
        self, obs: Obs, noise: Tensor | None = None, state: Tensor | None = None, *, with_value: bool = False
    ) -> Acted:
        """Actions for unnormalised observations; a shared trunk also yields the value in the same pass."""
        obs = self.normalizer(obs)
        actor_state, critic_state = self._split(state)
        features, after = self.actor_trunk.step(obs, actor_state)
        distribution = self.action_head(self.action_mlp(features), self.action_mask(obs))
        action = distribution.mode() if noise is None else distribution.sample(noise)
        critic_features = features
        has_critic_state = critic_state is not None and bool(critic_state.shape[-1])
        if not self.shared and (with_value or has_critic_state):
            critic_features, critic_after = self.critic_trunk.step(obs, critic_state)
            if after is not None and critic_after is not None:
                after = torch.cat((after, critic_after), -1)
        env_action = self.action_head.to_env(action)
        if not with_value:
            return Acted(action, env_action, after)
        return Acted(action, env_action, after, distribution.log_prob(action), self._value(critic_features, obs))

    def to_env(self, action: Tensor) -> Tensor:
        """Raw actions in the env's units and within its bounds."""
        return self.action_head.to_env(action)

    def metrics(self) -> dict[str, float]:
        """The mean standard deviation of Gaussian actions, if it does not depend on the observation."""
        head = self.action_head
        if not hasattr(head, "log_std"):
            return {}
        return {"action_std": float(head.limited_log_std().detach().exp().mean())}

    def freeze_all_but_mean(self) -> None:
        """Freeze what the mean action does not depend on: the std, and the critic's own layers."""
        own = [self.value_mlp, self.value_head, self.beside, None if self.shared else self.critic_trunk]
        for module in own:
            if module is not None:
                module.requires_grad_(False)
        if isinstance(log_std := getattr(self.action_head, "log_std", None), Tensor):
            log_std.requires_grad_(False)

    def _split(self, state: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The actor's and the critic's part of a state; the same if they share a trunk."""
        if state is None or self.shared:
            return state, state
        return state[..., : self.actor_state_size], state[..., self.actor_state_size :]

    def _value(self, features: Tensor, obs: Obs) -> Tensor:
        if self.beside is not None:
            features = torch.cat((features, self.beside(obs)), -1)
        return full_precision_linear(self.value_head, self.value_mlp(features)).squeeze(-1)


def _distribution_kind(action: ActionSpec, options: PolicyOptions) -> str:
    chosen = options.distribution
    if action.kind != "box":
        if chosen != "auto":
            raise UsageError(f"distribution is {chosen}, but the actions are {action.kind}: leave it at auto.")
        return action.kind
    unbounded = not all(math.isfinite(bound) for bound in (*action.low, *action.high))
    if chosen in ("tanh_gaussian", "beta") and unbounded:
        raise UsageError(f"distribution {chosen} needs finite action bounds, and the env has none: use gaussian.")
    return "gaussian" if chosen == "auto" else chosen
