"""Which network an algorithm learns."""

from proxima.config import Config
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.q_network import QNetwork
from proxima.nets.spec import Spec


def make_policy(spec: Spec, config: Config) -> ActorCritic | QNetwork:
    """The policy of a run, with random weights: both kinds act, value and normalise in the same way."""
    kind = ActorCritic if config.algorithm.algorithm == "PPO" else QNetwork
    return kind(spec, config.policy, config.normalize)
