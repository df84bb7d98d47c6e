"""The table of algorithms: class, policy and section of options of each. No other code decides by name."""

from dataclasses import dataclass


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
