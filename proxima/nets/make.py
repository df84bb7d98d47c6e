"""Builds the policy that an algorithm trains."""

from proxima.algorithms import ALGORITHMS, find_attribute
from proxima.compiling import float32_by_default
from proxima.config import Config
from proxima.nets.policy import Policy
from proxima.nets.spec import Spec


def make_policy(spec: Spec, config: Config) -> Policy:
    """The policy of a run, with random weights in float32."""
    kind = find_attribute(ALGORITHMS[config.algorithm.algorithm].policy)
    with float32_by_default():
        policy: Policy = kind(spec, config.policy, config.normalize)
    return policy
