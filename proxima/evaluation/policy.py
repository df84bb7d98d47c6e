"""A trained policy for use in any script, without the trainer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Generator, Tensor

from proxima.data.rollout import as_stored
from proxima.envs.action_hold import Hold
from proxima.errors import UsageError
from proxima.evaluation.limits import check_number
from proxima.evaluation.restored import restore_policy
from proxima.masks import ACTION_MASK
from proxima.nets.policy import Policy
from proxima.nets.spec import Spec


class LoadedPolicy:
    """Acts on NumPy observations, one or a batch, with the normaliser statistics of its checkpoint.

    The state of a recurrent policy is kept between calls: call `reset` where a new episode begins.
    """

    def __init__(self, policy: Policy, *, seed: int = 0, hold: Hold | None = None):
        check_number("seed", seed, least=0)
        self.policy = policy.eval()
        self.hold = hold or Hold()
        """For how many env steps each action is held, as in training when the checkpoint was written."""
        self.spec = policy.spec
        self._generator = Generator().manual_seed(seed)
        self._state: Tensor | None = None

    def reset(self, ended: ArrayLike | None = None) -> None:
        """Zero the recurrent state, or only the rows of the batch where `ended` `[B]` is true."""
        if ended is None or self._state is None:
            self._state = None
        else:
            self._state[torch.as_tensor(np.asarray(ended, dtype=bool))] = 0.0

    def act(self, obs: Any, *, action_mask: Any = None, deterministic: bool = True) -> NDArray:
        """The action of the env's space for one observation, or actions `[B, ...]` for a batch.

        Observations are those of the env (an array, a dict, a tuple, the number of a Discrete space) or flat, as from
        vector envs. A policy of an env with action masks needs the `action_mask` `[sum(sizes)]`, or `[B, sum(sizes)]`
        for a batch, unless it is a key of the observation.
        """
        keys = self.policy.actor_keys
        if self.spec.has_masks:
            obs = self._with_mask(obs, action_mask)
        elif action_mask is not None:
            raise UsageError("action_mask is given, but the policy was trained on an env without masks: leave it out.")
        rows = {key: self.spec.obs[key].read(key, _find(obs, key, self.spec)) for key in keys}
        batched = {key for key, (_, is_batch) in rows.items() if is_batch}
        sizes = {key: len(array) for key, (array, _) in rows.items()}
        if len(batched) not in (0, len(rows)) or len(set(sizes.values())) > 1:
            raise UsageError(f"the batch sizes differ between observation keys: {sizes}.")
        tensors = as_stored({key: torch.as_tensor(array) for key, (array, _) in rows.items()})
        size = max(sizes.values())
        if self._state is not None and len(self._state) != size:
            raise UsageError(
                f"the recurrent state is of {len(self._state)} envs, but there are {size} observations: call reset() "
                "first."
            )
        noise = None if deterministic else torch.randn(size, self.policy.noise_size, generator=self._generator)
        acted = self.policy.act(tensors, noise, self._state)
        self._state = acted.state
        in_env_form = self.spec.action.to_env(acted.env_action.numpy())
        return in_env_form if batched else in_env_form[0]

    def _with_mask(self, obs: Any, mask: Any) -> dict[str, Any]:
        """The observation as a mapping with a mask, which must allow something."""
        own = dict(obs) if isinstance(obs, Mapping) else {"obs": obs}
        mask = own.get(ACTION_MASK) if mask is None else mask
        if mask is None:
            raise UsageError("the policy was trained on an env with action masks: give act(obs, action_mask=mask).")
        if isinstance(mask, tuple):  # one array per column
            mask = np.concatenate([np.atleast_1d(column) for column in mask], -1)
        mask = np.asarray(mask)
        sizes = self.spec.action.sizes
        if mask.ndim and mask.shape[-1] == sum(sizes):  # if not, its shape is reported later
            columns = np.split(mask != 0, np.cumsum(sizes)[:-1], -1)
            if not all(column.any(-1).all() for column in columns):
                raise UsageError("action_mask allows no action: at least one must be valid.")
        return own | {ACTION_MASK: mask}


def _find(obs: Any, key: str, spec: Spec) -> Any:
    """The part of an observation for one key of the policy; the observation is flat, or nested as in the env."""
    if not isinstance(obs, (Mapping, tuple)) and list(spec.obs) == ["obs"]:
        return obs
    if isinstance(obs, Mapping) and key in obs:
        return obs[key]
    part = obs
    for name in key.split("/"):
        if isinstance(part, Mapping) and name in part:
            part = part[name]
        elif isinstance(part, tuple) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            raise UsageError(f"the observation lacks {key!r}; the policy was trained on {sorted(spec.obs)}.")
    return part


def load_policy(path: str | Path, *, seed: int = 0) -> LoadedPolicy:
    """The policy of a checkpoint folder, or of the newest checkpoint of a run folder.

    Example:
        >>> policy = load_policy("runs/HalfCheetah-v5")  # doctest: +SKIP
        >>> action = policy.act(observation)  # doctest: +SKIP
    """
    saved = restore_policy(path)
    return LoadedPolicy(saved.policy, seed=seed, hold=saved.hold)
