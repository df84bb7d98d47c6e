"""The training state of runs whose envs are divided among ranks and workers.

A checkpoint has the state of all envs of the run: tensors with one row per env are joined in order. The vector envs'
own states stay as the processes returned them, `{"parts": [...], "counts": [...]}`, and are joined and divided anew
only where a resume divides the envs differently.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from proxima.envs.contract import VecEnv
from proxima.envs.gymnasium.snapshot import NotPlain

State = dict[str, Any]
# What has one row per env, by its keys in the training state.
_PER_ENV = (
    ("collector", "obs"),
    ("collector", "recurrent_state"),
    ("learner", "reward_normalizer", "running"),
    ("learner", "reward_normalizer", "carry"),
    ("learner", "mirrored_state"),
    ("teacher_state",),
)


def join_parts(states: Sequence[Any], counts: Sequence[int]) -> Any:
    """The state of several vector envs as one; None if one of them could not be saved."""
    if any(state is None for state in states):
        return None
    parts: list[Any] = []
    sizes: list[int] = []
    for state, count in zip(states, counts, strict=True):
        parts += state["parts"] if is_divided(state) else [state]
        sizes += state["counts"] if is_divided(state) else [count]
    return {"parts": parts, "counts": sizes}


def is_divided(state: Any) -> bool:
    """Whether it is the state of several vector envs."""
    return isinstance(state, dict) and state.keys() == {"parts", "counts"}


def one_state(state: Any, env: VecEnv) -> Any:
    """The state for one vector env; NotPlain if it cannot be joined."""
    if not is_divided(state):
        return state
    parts = state["parts"]
    try:
        return parts[0] if len(parts) == 1 else env.join_states(parts)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise NotPlain(str(error)) from error


def take_envs(state: Any, first: int, count: int, total: int, env: VecEnv) -> Any:
    """The state of the envs from `first` on; as it was saved if it was divided there, else divided anew.

    NotPlain if it cannot be divided.
    """
    if not is_divided(state):
        state = {"parts": [state], "counts": [total]}
    starts = list(accumulate(state["counts"], initial=0))
    if first in starts and first + count in starts:
        chosen = slice(starts.index(first), starts.index(first + count))
        return {"parts": state["parts"][chosen], "counts": state["counts"][chosen]}
    whole = one_state(state, env)
    try:
        part = env.split_state(whole, [first, count, total - first - count])[1]
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise NotPlain(str(error)) from error
    return {"parts": [part], "counts": [count]}


def join_ranks(states: Sequence[State], counts: Sequence[int]) -> State:
    """The training state of all ranks: rank 0's, with the envs of the others."""
    if len(states) == 1:
        return states[0]
    joined = dict(states[0])
    for path in _PER_ENV:
        if (found := _get(joined, path)) is not None:
            others = [_get(state, path) for state in states]
            joined = _set(joined, path, tree_map(lambda *rows: torch.cat(rows), found, *others[1:]))
    return joined | {"env": join_parts([state["env"] for state in states], counts)}


def without_envs(state: State, count: int, total: int) -> State:
    """The training state of rank 0, which has `count` envs, as that of a run whose other envs are unknown."""

    def padded(x: Tensor) -> Tensor:
        return torch.cat((x, x.new_zeros(total - count, *x.shape[1:])))

    for path in _PER_ENV:
        if (found := _get(state, path)) is not None:
            state = _set(state, path, tree_map(padded, found))
    return state | {"env": None}


def take_rank(state: State, first: int, count: int, total: int, env: VecEnv) -> State:
    """The training state of the rank that has the envs from `first` on; without envs if it cannot be divided."""
    if count == total:
        return state

    def rows(x: Tensor) -> Tensor:
        return x[first : first + count]

    for path in _PER_ENV:
        if (found := _get(state, path)) is not None:
            state = _set(state, path, tree_map(rows, found))
    if state["env"] is None:
        return state
    try:
        return state | {"env": take_envs(state["env"], first, count, total, env)}
    except NotPlain:
        return state | {"env": None}


def _get(state: Any, path: Sequence[str]) -> Any:
    for key in path:
        if key not in state:
            return None
        state = state[key]
    return state


def _set(state: State, path: Sequence[str], value: Any) -> State:
    """A copy with another value."""
    key, *rest = path
    return {**state, key: _set(state[key], rest, value) if rest else value}
