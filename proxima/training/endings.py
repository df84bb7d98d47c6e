"""Episodes that ended in a rollout: read in every step from envs on the CPU, in batches from a GPU."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from proxima.data.rollout import as_stored
from proxima.envs.contract import Obs, Step


@dataclass
class Endings:
    """`R` finished episodes, ordered by time and env."""

    time: Tensor  # [R], step of the rollout
    env: Tensor  # [R]
    truncated: Tensor  # [R] bool: and not terminated as well
    return_: Tensor  # [R]
    length: Tensor  # [R]
    final_obs: dict[str, Tensor]  # [R, ...], in the dtypes of storage
    state: Tensor | None  # [R, S], the recurrent state before the final observation
    success: Tensor | None  # [R], NaN if the env does not report it
    info: dict[str, Tensor]  # [R] each, the env's own numbers

    @classmethod
    def of_step(cls, t: int, step: Step, final_obs: Obs, state: Tensor | None) -> "Endings":
        """Those of one step of envs on the CPU."""
        env = step.ended.nonzero().squeeze(-1)
        rows = tree_map_only(Tensor, lambda x: x[env.to(x.device)], _rows(step, final_obs, state))
        rows["final_obs"] = as_stored(rows["final_obs"])
        return cls(time=torch.full_like(env, t), env=env, **rows)


class EndingBuffer:
    """Collects endings on the device without asking in every step which envs ended, which would synchronise.

    A step writes the rows of all envs; those that did not end go to a row that is never read. The number of endings is
    read once per `steps` steps, after which the buffer may be full.
    """

    def __init__(self, steps: int = 16):
        self._steps = steps
        self._buffer: dict[str, Any] = {}
        self._taken: list[dict[str, Any]] = []
        self._since = 0

    def add(self, t: int, step: Step, final_obs: Obs, state: Tensor | None) -> None:
        """Add the episodes that ended in a step, if any."""
        ended, envs = step.ended, len(step.terminated)
        capacity = self._steps * envs
        if not self._buffer:
            self._env = torch.arange(envs, device=ended.device)
            self._count = torch.zeros((), dtype=torch.long, device=ended.device)
        rows = _rows(step, as_stored(final_obs), state) | {"place": self._env + t * envs}
        if not self._buffer:
            self._buffer = tree_map_only(Tensor, lambda x: x.new_zeros(capacity + 1, *x.shape[1:]), rows)
        row = torch.where(ended, self._count + ended.cumsum(0) - 1, capacity)
        for stored, x in zip(tree_leaves(self._buffer), tree_leaves(rows), strict=True):
            if x is not None:
                stored.index_copy_(0, row, x)
        self._count += ended.sum()
        self._since += 1
        if self._since == self._steps:
            self._empty()

    def take(self) -> Endings | None:
        """All endings of a rollout, at its end; None if no episode ended."""
        self._empty()
        taken, self._taken = self._taken, []
        if not taken:
            return None
        rows = tree_map(lambda *parts: None if parts[0] is None else torch.cat(parts), *taken)
        place, envs = rows.pop("place"), len(self._env)
        return Endings(time=place // envs, env=place % envs, **rows)

    def _empty(self) -> None:
        if self._since and (count := int(self._count)):
            self._taken.append(tree_map_only(Tensor, lambda x: x[:count].clone(), self._buffer))
            self._count.zero_()
        self._since = 0


def _rows(step: Step, final_obs: Obs, state: Tensor | None) -> dict[str, Any]:
    """Rows `[N, ...]` of all envs, by the names of `Endings`."""
    return {
        "truncated": step.truncated & ~step.terminated,
        "return_": step.episodes.return_,
        "length": step.episodes.length,
        "final_obs": dict(final_obs),
        "state": state,
        "success": step.episodes.success,
        "info": dict(step.episodes.info),
    }
