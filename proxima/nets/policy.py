"""The contract of a policy: all that collection, learners, evaluation and export ask of one."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

from proxima.algo.distributions import Distribution
from proxima.algo.normalize import ObsNormalizer
from proxima.nets.spec import Spec

Obs = dict[str, Tensor]


class Acted(NamedTuple):
    """What one forward pass of acting gives."""

    action: Tensor
    """`[B, A]` (or `[B]` for one discrete choice), raw: what log-probabilities are of."""
    env_action: Tensor
    """The same in the env's own units and within its bounds."""
    state: Tensor | None
    """`[B, S]`, the recurrent state after; None without recurrence."""
    log_prob: Tensor | None = None
    """`[B]`, where it was asked for."""
    value: Tensor | None = None
    """`[B]`, where it was asked for."""


class Policy(nn.Module, ABC):
    """Maps dictionary observations to actions and values, with its own normaliser.

    It keeps nothing between calls: a recurrent state is passed in and out. Its parameters and buffers are all that a
    checkpoint holds of it; `spec` and the options build it again.
    """

    spec: Spec
    """Observations and actions of the env."""
    keys: list[str]
    """Observation keys that it sees."""
    actor_keys: list[str]
    """Those that `act` needs; the others are for the critic alone."""
    image_keys: frozenset[str]
    """Those of `keys` that are images."""
    normalizer: ObsNormalizer
    return_scale: Tensor
    """[], rewards were divided by it: times this, a value is in units of the env's own reward."""
    noise_size: int
    """Standard normal numbers that one sampled action takes."""
    state_size: int
    """`S`, numbers of the recurrent state; 0 without recurrence."""
    actor_state_size: int
    """The first of them, which are all that `act` needs."""
    values_are_cheap: bool
    """Whether acting can give values at hardly more cost, because actor and critic share what is expensive."""

    @abstractmethod
    def forward(
        self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[Distribution, Tensor]:
        """Distribution of the raw action and value `[B]` of normalised observations.

        With `start` they are sequences: observations `[L * B, ...]`, time by time, the state `[B, S]` before the first
        step, and `start` `[L * B]` bool, where an episode begins and the state is zeroed.
        """

    @abstractmethod
    def value(self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """The value of `forward` without the actor."""

    @abstractmethod
    def act(
        self, obs: Obs, noise: Tensor | None = None, state: Tensor | None = None, *, with_value: bool = False
    ) -> Acted:
        """Choose actions for raw observations `[B, ...]` and the state `[B, S]` before them, without gradients.

        Sampled with standard normal `noise` `[B, noise_size]`, or the most likely ones without it. The first
        `actor_state_size` columns of the state are enough, unless values are asked for; no state at all is that of an
        episode's beginning.
        """

    @abstractmethod
    def to_env(self, action: Tensor) -> Tensor:
        """Raw actions in the env's own units and within its bounds."""

    def first_state(self, num_envs: int) -> Tensor | None:
        """The state `[N, S]` before an episode's first observation; None without recurrence."""
        return self.return_scale.new_zeros(num_envs, self.state_size) if self.state_size else None
