"""What the learner asks of a policy."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from proxima.algo.distributions import Distribution
from proxima.algo.normalize import ObsNormalizer


class Policy(nn.Module, ABC):
    """A module that maps normalised observations to an action distribution and a value, with its own normaliser."""

    normalizer: ObsNormalizer
    return_scale: Tensor
    """[], rewards were divided by it: times this, a value is in units of the env's own reward."""

    @abstractmethod
    def forward(self, obs: dict[str, Tensor]) -> tuple[Distribution, Tensor]:
        """Distribution of the raw action and value `[B]` of normalised observations."""

    @abstractmethod
    def critic(self, obs: dict[str, Tensor]) -> Tensor:
        """Value `[B]` of normalised observations, without the actor."""

    @abstractmethod
    def value(self, obs: dict[str, Tensor]) -> Tensor:
        """Value `[B]` of raw observations."""
