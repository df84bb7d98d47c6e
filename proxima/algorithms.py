"""The algorithms, each named here and nowhere else: which class iterates, and which policy it trains."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from proxima.errors import UsageError


@dataclass(frozen=True)
class AlgorithmEntry:
    """What belongs to one algorithm, as `module:attribute`, imported where it is needed."""

    algorithm: str
    policy: str
    section: str
    """The section of its own options."""


ALGORITHMS = {
    "PPO": AlgorithmEntry("proxima.training.ppo:PPO", "proxima.nets.actor_critic:ActorCritic", "ppo"),
    "DQN": AlgorithmEntry("proxima.training.dqn:DQN", "proxima.nets.q_network:QNetwork", "dqn"),
}


def find_attribute(name: str) -> Any:
    """The object that `module:attribute` names.

    Raises:
        UsageError: there is no such module or attribute.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cannot import {name!r}: {error}.") from error
