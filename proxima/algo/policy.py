"""What the learner asks of a policy."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from proxima.algo.distributions import Distribution, EpsilonGreedy
from proxima.algo.normalize import ObsNormalizer


class Policy(nn.Module, ABC):
    """A module that maps normalised observations to an action distribution and a value, with its own normaliser."""

    normalizer: ObsNormalizer
    return_scale: Tensor
    """[], rewards were divided by it: times this, a value is in units of the env's own reward."""

    image_keys: frozenset[str]
    """Of the observations that it sees, those that are images."""

    @abstractmethod
    def forward(
        self, obs: dict[str, Tensor], state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[Distribution, Tensor]:
        """Distribution of the raw action and value `[B]` of normalised observations.

        A policy with a memory is given sequences: observations `[L * B, ...]`, time by time, the state `[B, S]` before
        the first step, and `[L * B]` bools, where an episode begins and the state is to be zeroed.
        """

    @abstractmethod
    def critic(self, obs: dict[str, Tensor], state: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """Value `[B]` of normalised observations, without the actor."""

    @abstractmethod
    def value(self, obs: dict[str, Tensor], state: Tensor | None = None) -> Tensor:
        """Value `[B]` of raw observations, each seen with the memory `[B, S]` of what came before it."""


class QPolicy(Policy):
    """A policy that follows the values of its actions."""

    epsilon: Tensor
    """[], how often it acts at random where it is given noise."""

    @abstractmethod
    def forward(
        self, obs: dict[str, Tensor], state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[EpsilonGreedy, Tensor]:
        """Distribution, which holds Q `[B, A]`, and value `[B]`, the highest Q, of normalised observations."""
