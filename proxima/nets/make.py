"""Which network an algorithm learns."""

import torch

from proxima.config import Config
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.q_network import QNetwork
from proxima.nets.spec import Spec

Agent = ActorCritic | QNetwork
"""Both act, value and normalise in the same way."""


def make_policy(spec: Spec, config: Config) -> Agent:
    """The policy of a run, with random weights."""
    kind: type[Agent] = ActorCritic if config.algorithm.algorithm == "PPO" else QNetwork
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # whatever the host program's is
    try:
        return kind(spec, config.policy, config.normalize)
    finally:
        torch.set_default_dtype(dtype)
