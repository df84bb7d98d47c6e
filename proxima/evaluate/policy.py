"""A trained policy in a few lines of a user's own script, without the trainer."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Generator, Tensor

from proxima import checkpoint
from proxima.config import config_from_dict
from proxima.errors import UsageError
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.spec import Spec


class LoadedPolicy:
    """Acts on NumPy observations, one or a batch, with the normaliser statistics of its checkpoint.

    A policy with a memory remembers what it was given: `reset` says where a new episode begins.
    """

    def __init__(self, policy: ActorCritic, *, seed: int = 0):
        self.policy = policy.eval()
        self.spec = policy.spec
        self._generator = Generator().manual_seed(seed)
        self._state: Tensor | None = None

    def reset(self, ended: ArrayLike | None = None) -> None:
        """Forget all, or only the rows of the batch where `ended` `[B]` is true; without a memory, nothing happens."""
        if ended is None or self._state is None:
            self._state = None
        else:
            self._state[torch.as_tensor(np.asarray(ended, dtype=bool))] = 0.0

    def act(self, obs: ArrayLike | Mapping[str, ArrayLike], *, deterministic: bool = True) -> NDArray:
        """The action in the env's own units for one observation, or one a row for a batch `[B, ...]`."""
        given = obs if isinstance(obs, Mapping) else {"obs": obs}
        batched, tensors = True, {}
        for key in self.policy.actor_keys:
            spec = self.spec.obs[key]
            if key not in given:
                raise UsageError(f"the observation lacks {key!r}; the policy acts on {sorted(self.policy.actor_keys)}.")
            array = np.asarray(given[key])
            batched = array.ndim == len(spec.shape) + 1
            if array.shape[batched:] != spec.shape:
                raise UsageError(f"observation {key!r} has shape {array.shape}, but the policy takes {spec.shape}.")
            tensor = torch.as_tensor(array if batched else array[None])
            tensors[key] = tensor if spec.dtype == "uint8" else tensor.float()
        size = len(next(iter(tensors.values())))
        noise = None if deterministic else torch.randn(size, self.policy.noise_size, generator=self._generator)
        _, action, self._state = self.policy.act(tensors, noise, self._state_of(size))
        in_env_form = self.spec.action.to_env(action.numpy())
        return in_env_form if batched else in_env_form[0]

    def _state_of(self, size: int) -> Tensor | None:
        if self._state is not None and len(self._state) != size:
            raise UsageError(
                f"the policy remembers {len(self._state)} envs, but was given {size} observations: call reset() first."
            )
        return self._state


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
    return LoadedPolicy(policy, seed=seed)
