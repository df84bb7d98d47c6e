"""The table of algorithms: class, policy and section of options of each. No other code decides by name."""

from dataclasses import dataclass, replace

from proxima.errors import UsageError
from proxima.own_parts import find_part


@dataclass(frozen=True)
class AlgorithmEntry:
    """One algorithm. Classes are given as `module:attribute` and imported when needed."""

    algorithm: str
    policy: str
    section: str
    """Section of its own options in the config."""
    policy_base: str
    """The class that a policy of the user's own (`policy_class`) must be derived from."""


_POLICY, _ACTOR_CRITIC = "proxima.nets.policy:Policy", "proxima.nets.actor_critic:ActorCritic"
_Q_NETWORK = "proxima.nets.q_network:QNetwork"

ALGORITHMS = {
    "PPO": AlgorithmEntry("proxima.training.ppo:PPO", _ACTOR_CRITIC, "ppo", _POLICY),
    "PPO+muscle": AlgorithmEntry("proxima.training.muscle:PPOMuscle", _ACTOR_CRITIC, "ppo", _POLICY),
    "distillation": AlgorithmEntry("proxima.training.distill:Distillation", _ACTOR_CRITIC, "distill", _ACTOR_CRITIC),
    "DQN": AlgorithmEntry("proxima.training.dqn:DQN", _Q_NETWORK, "dqn", _Q_NETWORK),
}


def find_algorithm(name: str) -> AlgorithmEntry:
    """The entry of an algorithm; a subclass of one of ours, given as `module:Class`, has the options of that one."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    own = find_part(name, what="algorithm")
    entries = {entry.algorithm: entry for entry in ALGORITHMS.values()}
    for base in own.__mro__ if isinstance(own, type) else ():
        if (entry := entries.get(f"{base.__module__}:{base.__qualname__}")) is not None:
            return replace(entry, algorithm=name)
    raise UsageError(f"algorithm is {name!r}, but that is not a subclass of ours: derive it from {', '.join(entries)}.")
