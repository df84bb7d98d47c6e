"""Which network an algorithm learns."""

from proxima.config import Config
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.q_network import QNetwork
from proxima.nets.spec import Spec

Agent = ActorCritic | QNetwork
"""Both act, value and normalise in the same way."""


def make_policy(spec: Spec, config: Config) -> Agent:
    """The policy of a run, with random weights."""
    kind: type[Agent] = ActorCritic if config.algorithm.algorithm == "PPO" else QNetwork
    return kind(spec, config.policy, config.normalize)
