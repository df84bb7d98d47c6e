"""A rollout as the learner takes it: prepared once, then in minibatches of sequences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from proxima.data.frames import gather_stacks

Tensors = dict[str, Tensor]
# What is evaluated at a time outside the update: so many elements of observations, and on the CPU, whose caches are
# small, so many rows.
_CHUNK_ELEMENTS, _CHUNK_ROWS = 2**22, 4096
_PLACES = "places of "


@dataclass
class Batch:
    """A rollout as the learner sees it, in sequences `[L, Q]` (`data/rollout.py`), observations normalised."""

    obs: Tensors
    """Of a key that stacks frames: every frame once, `[R, C, H, W]`."""
    places: Tensors
    """For such a key, `[L, Q, F]`: where in it the frames of each step are."""
    action: Tensor
    old_log_prob: Tensor
    old_value: Tensor
    advantage: Tensor
    return_: Tensor
    reward: Tensor
    """Scaled, `[T, N]`: what the advantages are recomputed from."""
    context: Tensors
    """With a memory: `state` `[1, Q, S]` before the first step, and `start`, where an episode begins inside."""
    weight: Tensor | None
    """1 for a step and 0 for padding; None where there is none."""

    def data(self) -> Tensors:
        """All that a minibatch takes a part of, besides the observations; sequences are along the second axis."""
        names = ("action", "old_log_prob", "old_value", "advantage", "return_")
        padded = {} if self.weight is None else {"weight": self.weight}
        places = {_PLACES + key: index for key, index in self.places.items()}
        return {name: getattr(self, name) for name in names} | self.context | places | padded


def take(x: Tensor, part: Tensor | slice) -> Tensor:
    """Some of the sequences `[L, Q, ...]` as rows, time by time."""
    return x[:, part].flatten(0, 1)


def take_obs(obs: Tensors, places: Tensors, part: Tensor | slice) -> Tensors:
    """The same of observations, with frames put together to the stacks that the policy sees."""
    return {
        key: gather_stacks(x, take(places[key], part)) if key in places else take(x, part) for key, x in obs.items()
    }


def split_places(obs: Tensors, data: Tensors) -> Tensors:
    """The places of the keys that stack frames, out of what `Batch.data` gave."""
    return {key: data[_PLACES + key] for key in obs if _PLACES + key in data}


def is_places(name: str) -> bool:
    """Whether `Batch.data` has places under this name."""
    return name.startswith(_PLACES)


def split(index: Tensor | None, size: int, count: int) -> Sequence[Tensor | slice]:
    """The sequences of a minibatch, all `size` of them where `index` is None, in `count` parts."""
    if index is not None:
        return index.tensor_split(count)
    return [slice(size * i // count, size * (i + 1) // count) for i in range(count)]


def take_all(tensors: Tensors, part: Tensor | slice) -> Tensors:
    """The same of many."""
    return {name: take(x, part) for name, x in tensors.items()}


def chunks(obs: Tensors, places: Tensors, device: torch.device) -> Iterator[slice]:
    """Of the sequences: so many at a time as are worth it."""
    length, size = next(iter(places.values()), next(iter(obs.values()))).shape[:2]
    elements = 0  # of one sequence
    for key, x in obs.items():
        elements += x[0].numel() * places[key][:, 0].numel() if key in places else x[:, 0].numel()
    chunk = _CHUNK_ELEMENTS // elements
    if device.type == "cpu":
        chunk = min(chunk, _CHUNK_ROWS // length)
    chunk = max(1, chunk)
    return (slice(start, start + chunk) for start in range(0, size, chunk))
