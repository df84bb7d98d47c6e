"""Episodes that ended in a rollout, as rows: taken at once from envs on the CPU, in bounded batches from a GPU."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from proxima.data.rollout import as_stored
from proxima.envs.contract import Obs, Step


@dataclass
class Endings:
    """`R` finished episodes, in order of time and env."""

    time: Tensor  # [R], step of the rollout
    env: Tensor  # [R]
    cut: Tensor  # [R] bool: truncated, and not terminated as well
    return_: Tensor  # [R]
    length: Tensor  # [R]
    final_obs: dict[str, Tensor]  # [R, ...], as stored
    state: Tensor | None  # [R, S], the recurrent state before the final observation
    success: Tensor | None = None  # [R], NaN where the env does not report it
    info: dict[str, Tensor] = field(default_factory=dict)  # [R] each, the env's own numbers

    @classmethod
    def of_step(cls, t: int, step: Step, final_obs: Obs, state: Tensor | None) -> "Endings":
        """Those of one step of envs on the CPU."""
        env = step.ended.nonzero().squeeze(-1)
        rows = tree_map(lambda x: x[env.to(x.device)], _rows(step, final_obs, state))
        rows["final_obs"] = as_stored(rows["final_obs"])
        return _made(rows | {"time": torch.full_like(env, t), "env": env})


class EndingBuffer:
    """Collects endings on the device without asking at every step which envs ended: that would make each step wait.

    A step writes all envs' rows, those that did not end to a row that nobody reads. After `steps` steps, by which the
    buffer may be full, it is asked once how many there are.
    """

    def __init__(self, steps: int = 16):
        self._steps = steps
        self._buffer: dict[str, Any] = {}
        self._taken: list[dict[str, Any]] = []
        self._since = 0

    def add(self, t: int, step: Step, final_obs: Obs, state: Tensor | None) -> None:
        """Take in what a step says about the episodes that may have ended in it."""
        ended, envs = step.ended, len(step.terminated)
        capacity = self._steps * envs
        if not self._buffer:
            self._env = torch.arange(envs, device=ended.device)
            self._count = torch.zeros((), dtype=torch.long, device=ended.device)
        rows = _rows(step, as_stored(final_obs), state) | {"place": self._env + t * envs}
        if not self._buffer:
            self._buffer = tree_map(lambda x: x.new_zeros(capacity + 1, *x.shape[1:]), rows)
        row = torch.where(ended, self._count + ended.cumsum(0) - 1, capacity)
        tree_map(lambda kept, x: kept.index_copy_(0, row, x), self._buffer, rows)
        self._count += ended.sum()
        self._since += 1
        if self._since == self._steps:
            self._empty()

    def take(self) -> Endings | None:
        """Those of the rollout, once it is whole; None where no episode ended."""
        self._empty()
        taken, self._taken = self._taken, []
        if not taken:
            return None
        rows = tree_map(lambda *parts: torch.cat(parts), taken[0], *taken[1:])
        place, envs = rows.pop("place"), len(self._env)
        return _made(rows | {"time": place // envs, "env": place % envs})

    def _empty(self) -> None:
        if self._since and (count := int(self._count)):
            self._taken.append(tree_map(lambda x: x[:count].clone(), self._buffer))
            self._count.zero_()
        self._since = 0


def _rows(step: Step, final_obs: Obs, state: Tensor | None) -> dict[str, Any]:
    """All envs' rows `[N, ...]`, by the names of `Endings`."""
    rows: dict[str, Any] = {
        "cut": step.truncated & ~step.terminated,
        "return_": step.episodes.return_,
        "length": step.episodes.length,
        "final_obs": dict(final_obs),
        "info": dict(step.episodes.info),
    }
    # What there is none of is an empty tuple, which has no tensors to copy.
    rows["state"] = () if state is None else state
    rows["success"] = () if step.episodes.success is None else step.episodes.success
    return rows


def _made(rows: dict[str, Any]) -> Endings:
    absent = {name: None for name in ("state", "success") if isinstance(rows[name], tuple)}
    return Endings(**(rows | absent))
