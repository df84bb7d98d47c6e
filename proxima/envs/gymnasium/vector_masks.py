"""Invalid-action masks of Gymnasium vector envs: where an env has them, as arrays or tensors `[N, sum(sizes)]`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper
from torch import Tensor

from proxima.envs.gymnasium.masked_env import Source, check_mask_space, choices, space_with_mask
from proxima.errors import EnvFailure
from proxima.masks import ACTION_MASK

Rows = np.ndarray | Tensor
"""`[N]` bool."""


class VectorMasks:
    """Adds masks to batches of observations, as the key `action_mask`: uint8 `[N, sum(sizes)]`, 0 for invalid choices.

    The first of these that the env has: the key in a Dict observation; the method `action_masks()` of the vector env,
    or of the envs in Gymnasium's `SyncVectorEnv` and `AsyncVectorEnv`; the key in `info`. `source` is "" if there
    is none.
    """

    def __init__(self, env: VectorEnv, name: str, first_info: Mapping[str, Any]) -> None:
        """`first_info`: that of a reset."""
        self._name, self._num_envs = name, env.num_envs
        self.source: Source = ""
        self.space: spaces.Space = env.single_observation_space
        """Of one observation, with its mask."""
        self._is_dict = isinstance(self.space, spaces.Dict)
        if not isinstance(env.single_action_space, (spaces.Discrete, spaces.MultiDiscrete)):
            return
        self._method = _find_method(env)
        self._sizes, _ = choices(env.single_action_space)
        if isinstance(self.space, spaces.Dict) and ACTION_MASK in self.space.spaces:
            self.source = "observation"
            check_mask_space(self.space[ACTION_MASK], env.single_action_space)
        elif self._method is not None:
            self.source = "method"
        elif ACTION_MASK in first_info:
            self.source = "info"
        if self.source:
            self.space = space_with_mask(self.space, sum(self._sizes))

    def add(self, seen: Any, info: Mapping[str, Any], *, needed: Rows | None = None, over: Rows | None = None) -> Any:
        """The observations with their masks.

        Args:
            seen: Observations, as the env returned them.
            info: That of the same call.
            needed: Where a mask must be there; everywhere by default.
            over: Where an episode has ended, so that nothing is chosen: every choice counts as valid there.
        """
        if not self.source:
            return seen
        mask = self._read(seen, info, needed)
        if over is not None:
            mask = mask | _beside(mask, over)[:, None]
        return {**(seen if self._is_dict else {"obs": seen}), ACTION_MASK: _as_bytes(mask)}

    def add_final(self, found: Any, info: Mapping[str, Any]) -> Any:
        """The same for final observations of same-step autoreset: a batch, or an array of single ones and None.

        Where the mask of an ended episode is not known, every choice counts as valid.
        """
        if not self.source:
            return found
        is_batch = not isinstance(found, np.ndarray) or found.dtype != object
        if self.source == "observation" and not is_batch:
            rows = [None if one is None else {**one, ACTION_MASK: self._of_one(one[ACTION_MASK])} for one in found]
            return _object_array(rows)
        if self.source == "observation":
            mask = self._read(found, {}, None)
        elif self.source == "info" and ACTION_MASK in info:
            mask = self._read(found, info, np.zeros(self._num_envs, bool))
        else:
            mask = np.ones((self._num_envs, sum(self._sizes)), bool)
        if is_batch:
            return {**(found if self._is_dict else {"obs": found}), ACTION_MASK: _as_bytes(mask)}
        rows = []
        for one, of_one in zip(found, _as_bytes(_as_array(mask)), strict=True):
            rows.append(None if one is None else {**(one if self._is_dict else {"obs": one}), ACTION_MASK: of_one})
        return _object_array(rows)

    def _read(self, seen: Any, info: Mapping[str, Any], needed: Rows | None) -> np.ndarray | Tensor:
        """`[N, sum(sizes)]` bool; all true where `info` has none and none is needed."""
        if self.source == "observation":
            return self._as_rows(seen[ACTION_MASK])
        if self._method is not None:
            return self._as_rows(self._method())
        if ACTION_MASK not in info:
            self._require(needed if needed is not None else np.ones(self._num_envs, bool))
            return np.ones((self._num_envs, sum(self._sizes)), bool)
        mask, known = self._as_rows(info[ACTION_MASK]), info.get(f"_{ACTION_MASK}")
        if known is None:
            return mask
        unknown = ~_as_array(known).astype(bool)
        if unknown.any():
            self._require(unknown if needed is None else unknown & _as_array(needed))
        return mask | _beside(mask, unknown)[:, None]

    def _require(self, missing: Rows) -> None:
        if missing.any():
            raise EnvFailure(
                f"{self._name}: the info has no {ACTION_MASK!r} of env {int(missing.nonzero()[0][0])}, but that of the "
                "first reset had: give one in every reset and step."
            )

    def _as_rows(self, given: Any) -> np.ndarray | Tensor:
        """`[N, sum(sizes)]` bool, from an array, one array per column, or one mask per env."""
        columns = isinstance(given, (tuple, list)) and len(given) == len(self._sizes)
        if columns and all(np.shape(x) == (self._num_envs, n) for x, n in zip(given, self._sizes, strict=True)):
            given = torch.cat(list(given), 1) if isinstance(given[0], Tensor) else np.concatenate(given, 1)
        if not isinstance(given, Tensor):
            if isinstance(given, (tuple, list)) or given.dtype == object:
                given = np.stack([self._of_one(one) for one in given])
            given = np.asarray(given)
        if len(given) != self._num_envs or given[0].reshape(-1).shape != (sum(self._sizes),):
            raise EnvFailure(
                f"{self._name}: {ACTION_MASK} has shape {tuple(given.shape)}, but it must be "
                f"{(self._num_envs, sum(self._sizes))}: {self._num_envs} envs, {sum(self._sizes)} choices."
            )
        return given.reshape(self._num_envs, -1) != 0

    def _of_one(self, given: Any) -> np.ndarray:
        """The mask of one env, flat; Gymnasium has None where an env has none."""
        if given is None:
            return np.ones(sum(self._sizes), np.uint8)
        parts = given if isinstance(given, (tuple, list)) else (given,)
        return (np.concatenate([np.ravel(part) for part in parts]) != 0).astype(np.uint8)


def _find_method(env: VectorEnv) -> Callable[[], Any] | None:
    """The method `action_masks` of the vector env or a wrapper; in Gymnasium's own ones, that of the envs."""
    inner = env
    while True:
        if callable(method := getattr(inner, "action_masks", None)):
            return method
        if not isinstance(inner, VectorWrapper):
            break
        inner = inner.env
    if isinstance(inner, (SyncVectorEnv, AsyncVectorEnv)) and inner.call("has_wrapper_attr", "action_masks")[0]:
        return partial(inner.call, "action_masks")
    return None


def _as_array(x: Any) -> np.ndarray:
    return x.cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)


def _beside(mask: np.ndarray | Tensor, rows: Rows) -> Any:
    """The rows as an array, or as a tensor on the mask's device, as the mask is."""
    return torch.as_tensor(rows, device=mask.device) if isinstance(mask, Tensor) else _as_array(rows)


def _as_bytes(mask: np.ndarray | Tensor) -> np.ndarray | Tensor:
    return mask.to(torch.uint8) if isinstance(mask, Tensor) else mask.astype(np.uint8)


def _object_array(rows: list[Any]) -> np.ndarray:
    array = np.empty(len(rows), dtype=object)
    array[:] = rows
    return array
