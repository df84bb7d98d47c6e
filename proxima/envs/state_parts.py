"""States of vector envs that are divided differently at a resume: among other rollout workers or ranks.

A state is a tree of dictionaries. Tensors in it have one row per env and lists one item per env, except under the keys
in `SHARED`, which are the same for all envs, and those in `TOTALS`, whose numbers are counts over all envs.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

State = Any
SHARED = frozenset({"hold", "network", "curriculum"})
"""Settings and weights. A curriculum that follows the success of all robots goes on with that of the first part."""
TOTALS = frozenset({"failures", "restarts"})
BY_TURN = frozenset({"frames"})
"""Images of robots that take turns, stored by turn: they can be neither joined nor divided."""


def join_states(states: Sequence[State]) -> State:
    """One state of the envs of all the states, in order."""
    first = states[0]
    if isinstance(first, Tensor):
        return torch.cat(list(states))
    if isinstance(first, list):
        return [item for state in states for item in state]
    if not isinstance(first, dict):
        return first
    joined = {}
    for key, value in first.items():
        found = [state[key] for state in states]
        _check_key(key)
        if key in SHARED:
            joined[key] = value
        else:
            joined[key] = sum(found) if _is_total(key, value) else join_states(found)
    return joined


def split_state(state: State, counts: Sequence[int]) -> list[State]:
    """States of the first `counts[0]` envs, of the `counts[1]` after them, and so on."""
    ends = list(accumulate(counts, initial=0))
    if isinstance(state, Tensor | list):
        if len(state) != ends[-1]:
            raise ValueError(f"a state of {len(state)} envs cannot be divided among {ends[-1]}")
        return [state[start:stop] for start, stop in pairwise(ends)]
    if not isinstance(state, dict):
        return [state] * len(counts)
    parts: list[dict[str, Any]] = [{} for _ in counts]
    for key, value in state.items():
        _check_key(key)
        if key in SHARED:
            split = [value] * len(counts)
        elif _is_total(key, value):
            split = [value, *[value * 0] * (len(counts) - 1)]
        else:
            split = split_state(value, counts)
        for part, own in zip(parts, split, strict=True):
            part[key] = own
    return parts


def _check_key(key: str) -> None:
    if key in BY_TURN:
        raise ValueError("robots with cameras cannot be divided differently")


def _is_total(key: str, value: Any) -> bool:
    return key in TOTALS and (isinstance(value, int) or (isinstance(value, Tensor) and value.ndim == 0))
