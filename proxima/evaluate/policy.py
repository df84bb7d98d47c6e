"""A trained policy in a few lines of a user's own script, without the trainer."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Generator

from proxima import checkpoint
from proxima.config import config_from_dict
from proxima.envs.action_hold import Hold
from proxima.errors import UsageError
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.spec import Spec


class LoadedPolicy:
    """Acts on NumPy observations, one or a batch, with the normaliser statistics of its checkpoint."""

    def __init__(self, policy: ActorCritic, *, seed: int = 0, hold: Hold | None = None):
        self.policy = policy.eval()
        self.hold = hold or Hold()
        """For how many env steps each action is to be held, as it was in training when the checkpoint was written."""
        self.spec = policy.spec
        self._generator = Generator().manual_seed(seed)

    def act(self, obs: ArrayLike | Mapping[str, ArrayLike], *, deterministic: bool = True) -> NDArray:
        """The action in the env's own units for one observation, or one a row for a batch `[B, ...]`."""
        given = obs if isinstance(obs, Mapping) else {"obs": obs}
        batched, tensors = True, {}
        for key, spec in self.spec.obs.items():
            if key not in given:
                raise UsageError(f"the observation lacks {key!r}; the policy was trained on {sorted(self.spec.obs)}.")
            array = np.asarray(given[key])
            batched = array.ndim == len(spec.shape) + 1
            if array.shape[batched:] != spec.shape:
                raise UsageError(f"observation {key!r} has shape {array.shape}, but the policy takes {spec.shape}.")
            tensor = torch.as_tensor(array if batched else array[None])
            tensors[key] = tensor if spec.dtype == "uint8" else tensor.float()
        size = len(next(iter(tensors.values())))
        noise = None if deterministic else torch.randn(size, self.policy.noise_size, generator=self._generator)
        _, action = self.policy.act(tensors, noise)
        in_env_form = self.spec.action.to_env(action.numpy())
        return in_env_form if batched else in_env_form[0]


def load_policy(path: str | Path, *, seed: int = 0) -> LoadedPolicy:
    """The policy of a checkpoint folder, or of the newest checkpoint of a run folder.

    Example:
        >>> policy = load_policy("runs/HalfCheetah-v5")  # doctest: +SKIP
        >>> action = policy.act(observation)  # doctest: +SKIP
    """
    folder = checkpoint.find(path)
    metadata = checkpoint.read_metadata(folder)
    config = config_from_dict(metadata["config"], source=str(folder))
    policy = ActorCritic(Spec.from_dict(metadata["spec"]), config.policy, config.normalize)
    policy.load_state_dict(checkpoint.read(folder, "agent.pt"))
    return LoadedPolicy(policy, seed=seed, hold=Hold(**metadata.get("action_hold", {})))
