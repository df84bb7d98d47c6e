"""Base class of policies: everything that collection, learners, evaluation and export need of one.

A policy of your own is a subclass, `--policy module:Class` or `train(policy=Class)`; DQN needs one of `QNetwork`,
distillation one of `ActorCritic`. docs/own-networks.md has an example.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from proxima.algo.distributions import Distribution
from proxima.algo.normalize import ObsNormalizer
from proxima.algorithms import find_algorithm
from proxima.compiling import float32_by_default
from proxima.config import Config
from proxima.config.sections import NormalizeOptions, PolicyOptions
from proxima.errors import UsageError
from proxima.masks import ACTION_MASK
from proxima.nets.encoders import is_image
from proxima.nets.own import build, check_outputs, find_class, policy_trial
from proxima.nets.spec import Spec
from proxima.nets.trunk import Obs, encoder_options
from proxima.own_parts import find_part


class Acted(NamedTuple):
    """The outputs of `Policy.act`."""

    action: Tensor  # [B, A] or [B], the raw action, which log-probabilities refer to
    env_action: Tensor  # the same in the env's units and within its bounds
    state: Tensor | None  # [B, S], the next recurrent state; None without recurrence
    log_prob: Tensor | None = None  # [B], on request
    value: Tensor | None = None  # [B], on request


class Policy(nn.Module, ABC):
    """Maps dictionary observations to actions and values, with its own normaliser.

    A subclass sets `noise_size` and defines `forward` and `to_env`; an `ActionHead` (`actor_critic.py`) has both the
    distribution and `to_env` of any action space. With a recurrent state it also sets `state_size` and
    `actor_state_size`, and defines `act` and `value`.

    It is stateless: a recurrent state is passed in and out. Its outputs depend on its weights and inputs only, row by
    row, in train and eval mode alike: no dropout, no batch statistics. It is compiled: no branches on values of
    tensors, and fixed tensors are buffers. A checkpoint holds its parameters and buffers; `spec` and the options build
    it again.
    """

    actor_keys: list[str]
    """Observation keys that `act` needs, all by default; the other `keys` are for the critic."""
    return_scale: Tensor
    """[], the divisor of rewards: a value times this is in the env's units."""
    noise_size: int
    """Standard normal numbers per sampled action."""
    state_size: int = 0
    """`S`, the size of the recurrent state; 0 without recurrence."""
    actor_state_size: int = 0
    """How many of its first columns `act` needs."""
    values_are_cheap: bool = False
    """Whether `act` can return values at little extra cost, because actor and critic share the convolutions."""

    def __init__(self, spec: Spec, options: PolicyOptions, normalize: NormalizeOptions):
        """Build the normaliser of all keys that are used, images and masks excepted."""
        super().__init__()
        self.spec = spec
        self.register_buffer("return_scale", torch.ones(()))
        self.encoder_options = encoder_options(options.encoders, spec)
        self.obs_specs = {key: o for key, o in spec.obs.items() if self.encoder_options[key].use != "none"}
        self.keys = self.actor_keys = self.with_mask(self.obs_specs)
        self.image_keys = frozenset(key for key, o in self.obs_specs.items() if is_image(o.shape))
        left_alone = self.image_keys | {ACTION_MASK} if spec.has_masks else self.image_keys
        shapes = {key: o.shape for key, o in self.obs_specs.items() if key not in left_alone}
        self.normalizer = ObsNormalizer(shapes if normalize.normalize_obs else {}, clip=normalize.clip_obs)

    @abstractmethod
    def forward(
        self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[Distribution, Tensor]:
        """Distribution of the raw action and value `[B]` of normalised observations.

        With `start`, the inputs are sequences: observations `[L * B, ...]`, time-major, the state `[B, S]` before the
        first step, and `start` `[L * B]` bool, where an episode begins and the state is set to zero.
        """

    def value(self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """The value of `forward`; to be overridden where it can be computed without the actor."""
        value: Tensor = self(obs, state, start)[1]
        return value

    @torch.no_grad()
    def act(
        self, obs: Obs, noise: Tensor | None = None, state: Tensor | None = None, *, with_value: bool = False
    ) -> Acted:
        """Choose actions for unnormalised observations `[B, ...]` and the state `[B, S]`, without gradients.

        Sampled with standard normal `noise` `[B, noise_size]`, else the most likely actions. Without values, the first
        `actor_state_size` columns of the state are enough; None is the state at the start of an episode. To be
        overridden by recurrent policies, and where actions need fewer keys than `forward`.
        """
        distribution, value = self(self.normalizer(obs))
        action = distribution.mode() if noise is None else distribution.sample(noise)
        acted = Acted(action, self.to_env(action), None)
        return acted._replace(log_prob=distribution.log_prob(action), value=value) if with_value else acted

    @abstractmethod
    def to_env(self, action: Tensor) -> Tensor:
        """Raw actions in the env's units and within its bounds."""

    def with_mask(self, keys: Iterable[str]) -> list[str]:
        """The keys, and that of the action mask if the env has one."""
        return list(dict.fromkeys([*keys, *([ACTION_MASK] if self.spec.has_masks else [])]))

    def action_mask(self, obs: Obs) -> Tensor | None:
        """`[B, sum(sizes)]` bool, the choices that are valid; None if the env has no masks."""
        return obs[ACTION_MASK].bool() if self.spec.has_masks else None

    def set_progress(self, progress: float) -> None:
        """Called before every iteration with the fraction of the run that is done; parts with schedules follow it."""
        for module in self.modules():
            if module is not self and callable(follow := getattr(module, "set_progress", None)):
                follow(progress)

    def metrics(self) -> dict[str, float]:
        """Numbers about the policy for the metrics of an iteration."""
        return {}

    def first_state(self, num_envs: int) -> Tensor | None:
        """The state `[N, S]` before an episode's first observation; None without recurrence."""
        return self.return_scale.new_zeros(num_envs, self.state_size) if self.state_size else None


def make_policy(spec: Spec, config: Config) -> Policy:
    """The policy of the configured algorithm, or the user's own, with random weights in float32."""
    entry = find_algorithm(config.algorithm.algorithm)
    own, kwargs = config.policy.policy_class, config.policy.policy_kwargs
    with float32_by_default():
        if own is not None:
            return make_own_policy(own, find_part(entry.policy_base), spec, config)
        if kwargs:
            raise UsageError(f"policy_kwargs are {kwargs}, but they are for a policy of your own: give policy_class.")
        policy: Policy = find_part(entry.policy)(spec, config.policy, config.normalize)
    return policy


def make_own_policy(name: str, base: type[Policy], spec: Spec, config: Config) -> Policy:
    """A user's policy, tried out on made-up observations; a UsageError if it does not do what `Policy` says."""
    what = f"policy_class {name}"
    kind = find_class(name, base, what="policy_class")

    def check(policy: Policy) -> None:
        if not hasattr(policy, "noise_size"):
            raise UsageError(f"{what} sets no noise_size: set it in __init__; an ActionHead has one.")
        if policy.state_size and not config.is_recurrent:
            raise UsageError(
                f"{what} has a recurrent state, but rnn is none, which learns from single steps: give rnn gru or lstm."
            )
        if policy.state_size and kind.act is Policy.act:
            raise UsageError(f"{what} has a recurrent state, but no act of its own, which returns the next one.")
        check_outputs(policy, policy_trial(policy, what), what)

    arguments = (spec, config.policy, config.normalize)
    return build(kind, *arguments, kwargs=config.policy.policy_kwargs, check=check, what=what)
