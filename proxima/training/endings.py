"""Episodes that ended in a rollout: read in every step from envs on the CPU, once per rollout from a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

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

    def table(self, names: Sequence[str], first_env: int) -> NDArray[np.float64]:
        """`[R, 2 + K]`: time, number of the env, and the numbers of `EpisodeStatistics`; NaN for those not reported."""
        known = {"return": self.return_, "length": self.length, "success": self.success, **self.info}
        unknown = torch.full(self.time.shape, torch.nan)
        columns = [self.time, self.env + first_env, *(unknown if (x := known.get(n)) is None else x for n in names)]
        return np.stack([x.cpu().numpy().astype(np.float64) for x in columns], 1)


_NUMBERS = ("return_", "length", "success")


class EndingBuffer:
    """Endings on a GPU: the rows of all envs are kept in every step, and which of them ended is asked once per rollout.

    To ask in every step would synchronise.
    """

    def __init__(self, num_steps: int):
        self._num_steps = num_steps
        self._rows: dict[str, Any] = {}
        """`[T, N, ...]` each, by the names of `Endings`; the numbers of an episode are one tensor `[T, N, K]`."""

    def add(self, t: int, step: Step, final_obs: Obs, state: Tensor | None) -> None:
        """Keep the rows of step `t`."""
        rows = _rows(step, as_stored(final_obs), state)
        numbers = {name: x for name in _NUMBERS if (x := rows.pop(name)) is not None} | rows.pop("info")
        self._names = list(numbers)
        rows["numbers"] = torch.stack([x.double() for x in numbers.values()], -1)
        if not self._rows:
            self._rows = tree_map_only(Tensor, lambda x: x.new_zeros(self._num_steps, *x.shape), rows)
        for stored, x in zip(tree_leaves(self._rows), tree_leaves(rows), strict=True):
            if x is not None:
                stored[t] = x

    def take(self, ended: Tensor) -> Endings | None:
        """The endings of a rollout, where `ended` `[T, N]`; None if there were none."""
        time, env = ended.nonzero(as_tuple=True)
        if not len(time) or not self._rows:
            return None
        rows = tree_map_only(Tensor, lambda x: x[time, env], self._rows)
        # To the host in one copy.
        info = dict(zip(self._names, rows.pop("numbers").cpu().unbind(-1), strict=True))
        return Endings(time=time, env=env, **rows, **{name: info.pop(name, None) for name in _NUMBERS}, info=info)


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
