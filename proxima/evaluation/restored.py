"""Builds the policy of a checkpoint and checks it, for `load_policy`, evaluation, videos and export.

A checkpoint may come from anybody: its checksums show that it is undamaged, not that Proxima wrote it.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxima.config import Config
from proxima.envs.action_hold import Hold
from proxima.errors import UsageError
from proxima.nets.policy import Policy, make_policy
from proxima.nets.spec import Spec
from proxima.runs import checkpoint
from proxima.runs.checkpoint import Checkpoint
from proxima.runs.layout import AGENT

_TRIES = 10
_NETWORKS = ("muscle",)


@dataclass(frozen=True)
class Restored:
    """A checkpoint with its policy."""

    checkpoint: Checkpoint
    policy: Policy
    """On the CPU, in eval mode."""
    config: Config
    hold: Hold
    """For how many env steps each action was held in training when the checkpoint was written."""
    networks: dict[str, dict[str, Tensor]]
    """Weights of the networks that are part of the env, by name."""

    def hand_networks(self, env: Any) -> None:
        """Give the env the networks that belong to it."""
        for name, weights in self.networks.items():
            env.set_weights(name, weights)


def restore_policy(path: str | Path) -> Restored:
    """The policy of a checkpoint folder, or of the newest checkpoint of a run folder or of a folder of runs.

    Raises:
        UsageError: there is no checkpoint, or it is damaged, or metadata and weights do not fit each other, or weights
            are not finite.
    """
    for _ in range(_TRIES):
        folder = checkpoint.find(path)
        try:
            with checkpoint.explained(folder):
                return _restore(folder)
        except UsageError:
            if folder == Path(path) or folder.exists():
                raise
    raise UsageError(f"the checkpoints in {path} are deleted faster than they can be read: try again.")


def _restore(folder: Path) -> Restored:
    saved = Checkpoint(folder)
    config, spec, state = saved.config, Spec.from_dict(saved.spec), saved.weights
    # The weights come from the file: no time for orthogonal ones, no draws from the caller's generator.
    quick = replace(config, policy=replace(config.policy, orthogonal_init=False))
    nets = config.policy
    layers = max(len(nets.hidden_sizes), len(nets.critic_hidden_sizes or []), nets.rnn_layers)
    if layers > max(1, len(state)):  # to build a billion of them would take hours, even without storage
        raise ValueError(f"agent.pt has {len(state)} tensors for {layers} layers")
    with torch.device("meta"):  # shapes only: absurd ones allocate nothing
        expected = make_policy(spec, quick).state_dict()
    check_weights(state, expected)
    with torch.random.fork_rng(devices=[]):
        policy = make_policy(spec, quick)
    policy.load_state_dict(state)
    policy.eval()
    _check_action(policy)
    networks = {name: _weights(saved, name) for name in _NETWORKS if saved.has(f"{name}.pt")}
    return Restored(saved, policy, config, Hold(**saved.hold), networks)


def _weights(saved: Checkpoint, name: str) -> dict[str, Tensor]:
    """The weights of a network that is part of the env; the env checks whether they fit it."""
    state = saved.state(f"{name}.pt")
    if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
        raise ValueError(f"{name}.pt does not hold weights by name")
    return state


def check_weights(state: Any, expected: dict[str, Any], *, file_name: str = AGENT) -> None:
    """Raise a ValueError unless the weights have the expected names, shapes and dtypes, and are finite."""
    for name in expected.keys() ^ state.keys():
        raise ValueError(f"{file_name} {'lacks' if name in expected else 'has an unknown'} {name!r}")
    for name, want in expected.items():
        found = state[name]
        if not isinstance(found, Tensor) or found.layout != torch.strided or found.device.type != "cpu":
            raise ValueError(f"{name!r} in {file_name} is not a plain tensor")
        if (found.shape, found.dtype) != (want.shape, want.dtype):
            raise ValueError(
                f"{name!r} in {file_name} is {found.dtype} {list(found.shape)}, but the policy's is {want.dtype} "
                f"{list(want.shape)}"
            )
        if found.untyped_storage().nbytes() < found.numel() * found.element_size():
            raise ValueError(f"{name!r} in {file_name} repeats its numbers")
        if found.is_floating_point() and not bool(found.isfinite().all()):
            raise ValueError(f"{name!r} in {file_name} has weights that are NaN or infinite")


@torch.no_grad()
def _check_action(policy: Policy) -> None:
    """Act once, on zeros: the action must fit the spec."""
    spec = policy.spec
    dtypes = {key: torch.uint8 if spec.obs[key].dtype == "uint8" else torch.float32 for key in policy.actor_keys}
    zeros = {key: torch.zeros(1, *spec.obs[key].shape, dtype=dtype) for key, dtype in dtypes.items()}
    action = spec.action.to_env(policy.act(zeros).env_action.numpy())
    if action.shape != (1, *spec.action.shape) or not np.isfinite(action).all():
        raise ValueError(f"the policy's action is {action.tolist()}, which the env cannot take")
