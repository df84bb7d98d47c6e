"""Base class of policies: everything that collection, learners, evaluation and export need of one."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from proxima.algo.distributions import Distribution
from proxima.algo.normalize import ObsNormalizer
from proxima.algorithms import ALGORITHMS
from proxima.compiling import float32_by_default
from proxima.config import Config
from proxima.config.sections import NormalizeOptions, PolicyOptions
from proxima.masks import ACTION_MASK
from proxima.nets.encoders import is_image
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

    It is stateless: a recurrent state is passed in and out. A checkpoint holds its parameters and buffers; `spec` and
    the options build it again.
    """

    actor_keys: list[str]
    """Observation keys that `act` needs; the other `keys` are for the critic."""
    return_scale: Tensor
    """[], the divisor of rewards: a value times this is in the env's units."""
    noise_size: int
    """Standard normal numbers per sampled action."""
    state_size: int
    """`S`, the size of the recurrent state; 0 without recurrence."""
    actor_state_size: int
    """How many of its first columns `act` needs."""
    values_are_cheap: bool
    """Whether `act` can return values at little extra cost, because actor and critic share the convolutions."""

    def __init__(self, spec: Spec, options: PolicyOptions, normalize: NormalizeOptions):
        """Build the normaliser of all keys that are used, images and masks excepted."""
        super().__init__()
        self.spec = spec
        self.register_buffer("return_scale", torch.ones(()))
        self.encoder_options = encoder_options(options.encoders, spec)
        self.obs_specs = {key: o for key, o in spec.obs.items() if self.encoder_options[key].use != "none"}
        self.keys = self.with_mask(self.obs_specs)
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

    @abstractmethod
    def value(self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """The value of `forward` without the actor."""

    @abstractmethod
    def act(
        self, obs: Obs, noise: Tensor | None = None, state: Tensor | None = None, *, with_value: bool = False
    ) -> Acted:
        """Choose actions for unnormalised observations `[B, ...]` and the state `[B, S]`, without gradients.

        Sampled with standard normal `noise` `[B, noise_size]`, else the most likely actions. Without values, the first
        `actor_state_size` columns of the state are enough; None is the state at the start of an episode.
        """

    @abstractmethod
    def to_env(self, action: Tensor) -> Tensor:
        """Raw actions in the env's units and within its bounds."""

    def with_mask(self, keys: Iterable[str]) -> list[str]:
        """The keys, and that of the action mask if the env has one."""
        return list(dict.fromkeys([*keys, *([ACTION_MASK] if self.spec.has_masks else [])]))

    def action_mask(self, obs: Obs) -> Tensor | None:
        """`[B, sum(sizes)]` bool, the choices that are valid; None if the env has no masks."""
        return obs[ACTION_MASK].bool() if self.spec.has_masks else None

    def metrics(self) -> dict[str, float]:
        """Numbers about the policy for the metrics of an iteration."""
        return {}

    def first_state(self, num_envs: int) -> Tensor | None:
        """The state `[N, S]` before an episode's first observation; None without recurrence."""
        return self.return_scale.new_zeros(num_envs, self.state_size) if self.state_size else None


def make_policy(spec: Spec, config: Config) -> Policy:
    """The policy of the configured algorithm, with random weights in float32."""
    kind = find_part(ALGORITHMS[config.algorithm.algorithm].policy)
    with float32_by_default():
        policy: Policy = kind(spec, config.policy, config.normalize)
    return policy
