"""The policy of a checkpoint, built again and checked: what `load_policy`, evaluation, videos and export start from.

A checkpoint may come from anybody. Its checksums say that it is as it was written, not that it was written by Proxima.
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

_TRIES = 10


@dataclass(frozen=True)
class Restored:
    """A checkpoint with the policy that it holds."""

    checkpoint: Checkpoint
    policy: Policy
    """On the CPU, in eval mode."""
    config: Config
    hold: Hold
    """For how many env steps each action was held when the checkpoint was written."""


def restore_policy(path: str | Path) -> Restored:
    """The policy of a checkpoint folder, or of the newest checkpoint of a run or of a name.

    Raises:
        UsageError: there is none, or it is not valid: files that are damaged, metadata or weights that do not fit
            each other, weights that are not finite.
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
    # The weights come from the file: drawing them first would take time, and move the caller's generator.
    quick = replace(config, policy=replace(config.policy, orthogonal_init=False))
    _check_layers(config, state)
    with torch.device("meta"):  # shapes alone, so that absurd ones cost no memory
        expected = make_policy(spec, quick).state_dict()
    check_weights(state, expected)
    with torch.random.fork_rng(devices=[]):
        policy = make_policy(spec, quick)
    policy.load_state_dict(state)
    policy.eval()
    _check_action(policy)
    return Restored(saved, policy, config, Hold(**saved.hold))


def _check_layers(config: Config, state: Any) -> None:
    """Refuse more layers than there are tensors: to build a billion of them would take hours, even without memory."""
    layers = max(len(config.policy.hidden_sizes), config.policy.rnn_layers)
    if layers > max(1, len(state)):
        raise ValueError(f"agent.pt has {len(state)} tensors for {layers} layers")


def check_weights(state: Any, expected: dict[str, Any]) -> None:
    """The weights are those that the policy has, in shape and dtype, stored in full, and finite."""
    for name in expected.keys() ^ state.keys():
        raise ValueError(f"agent.pt {'lacks' if name in expected else 'has an unknown'} {name!r}")
    for name, want in expected.items():
        found = state[name]
        if not isinstance(found, Tensor) or found.layout != torch.strided or found.device.type != "cpu":
            raise ValueError(f"{name!r} in agent.pt is not a plain tensor")
        if (found.shape, found.dtype) != (want.shape, want.dtype):
            raise ValueError(
                f"{name!r} in agent.pt is {found.dtype} {list(found.shape)}, but the policy's is {want.dtype} "
                f"{list(want.shape)}"
            )
        if found.untyped_storage().nbytes() < found.numel() * found.element_size():
            raise ValueError(f"{name!r} in agent.pt repeats its numbers")
        if found.is_floating_point() and not bool(found.isfinite().all()):
            raise ValueError(f"{name!r} in agent.pt has weights that are NaN or infinite")


@torch.no_grad()
def _check_action(policy: Policy) -> None:
    """Act once, on zeros: what the spec says of the action must fit what the policy gives."""
    spec = policy.spec
    shapes = {key: spec.obs[key] for key in policy.actor_keys}
    zeros = {
        key: torch.zeros(1, *o.shape, dtype=torch.uint8 if o.dtype == "uint8" else torch.float32)
        for key, o in shapes.items()
    }
    action = spec.action.to_env(policy.act(zeros).env_action.numpy())
    if action.shape != (1, *spec.action.shape) or not np.isfinite(action).all():
        raise ValueError(f"the policy's action is {action.tolist()}, which the env cannot take")
