"""The table of algorithms: class, policy and section of options of each. No other code decides by name."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from proxima.errors import UsageError


@dataclass(frozen=True)
class AlgorithmEntry:
    """One algorithm. Classes are given as `module:attribute` and imported when needed."""

    algorithm: str
    policy: str
    section: str
    """Section of its own options in the config."""


ALGORITHMS = {
    "PPO": AlgorithmEntry("proxima.training.ppo:PPO", "proxima.nets.actor_critic:ActorCritic", "ppo"),
    "PPO+muscle": AlgorithmEntry("proxima.training.muscle:PPOMuscle", "proxima.nets.actor_critic:ActorCritic", "ppo"),
    "distillation": AlgorithmEntry(
        "proxima.training.distill:Distillation", "proxima.nets.actor_critic:ActorCritic", "distill"
    ),
    "DQN": AlgorithmEntry("proxima.training.dqn:DQN", "proxima.nets.q_network:QNetwork", "dqn"),
}


def find_attribute(name: str) -> Any:
    """Import `module:attribute`; a UsageError if there is no such module or attribute."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cannot import {name!r}: {error}.") from error
