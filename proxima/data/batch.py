"""A prepared rollout, and its minibatches of sequences.

A batch is the rollout `[T, N]` flattened to rows `t * N + n`. A sequence is `L` consecutive steps of one env (1 without
recurrence); `Q = ceil(T / L) * N` sequences cover the rollout, the last of each env padded if `L` does not divide `T`.
Sequences and frame stacks are built when a minibatch is gathered.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from proxima.data.frames import gather_stacks
from proxima.data.rollout import Rollout
from proxima.masks import ACTION_MASK

Tensors = dict[str, Tensor]
# Limits of one forward pass outside the update: elements of observations, and rows on a CPU, whose caches are small.
_CHUNK_ELEMENTS, _CHUNK_ROWS = 2**22, 4096


class SequenceLayout(NamedTuple):
    """How the rows of a rollout `[T, N]` are divided into sequences."""

    num_steps: int
    num_envs: int
    length: int

    @property
    def num_sequences(self) -> int:
        """`Q`."""
        return -(-self.num_steps // self.length) * self.num_envs

    def times(self, sequence: Tensor) -> Tensor:
        """`[L, B]`, the time of each step of sequences `[B]`; `T` and above is padding."""
        steps = torch.arange(self.length, device=sequence.device)
        return sequence // self.num_envs * self.length + steps[:, None]

    def rows(self, sequence: Tensor) -> Tensor:
        """`[L * B]`, time-major, the rows of sequences `[B]`; padding repeats the last step."""
        if self.length == 1:
            return sequence
        time = self.times(sequence).clamp(max=self.num_steps - 1)
        return (time * self.num_envs + sequence % self.num_envs).flatten()

    def weight(self, sequence: Tensor) -> Tensor | None:
        """`[L * B]`: 1 for a step and 0 for padding; None without padding."""
        if self.num_steps % self.length == 0:
            return None
        return (self.times(sequence) < self.num_steps).float().flatten()

    def scatter(self, sequence: Tensor, x: Tensor, out: Tensor) -> None:
        """Write numbers `[L * B]` of sequences `[B]` to the rows of `out` `[T * N]`, without the padding."""
        rows, weight = self.rows(sequence), self.weight(sequence)
        if weight is not None:
            rows, x = rows[weight > 0], x[weight > 0]
        out[rows] = x.to(out.dtype)


class Inputs(NamedTuple):
    """Inputs of the policy in every step of a rollout."""

    obs: Tensors  # [T * N, ...], normalised; a key that stacks frames holds each frame once: [R, C, H, W]
    stack_rows: Tensors  # [T * N, F] for such a key: the rows of each stack's frames
    state: Tensor | None  # [Q, S], the recurrent state before every sequence
    start: Tensor | None  # [T * N] bool: an episode begins inside the rollout

    @classmethod
    def of(cls, rollout: Rollout, obs: Tensors, state: Tensor | None) -> "Inputs":
        """Given normalised observations `[T, N, ...]`, frames for stacks, and the stored states `[C, N, S]`."""
        return cls(
            obs={key: x.flatten(0, 1) for key, x in obs.items()},
            stack_rows={key: rows for key, rows in rollout.stack_rows().items() if key in obs},
            state=None if state is None else state.flatten(0, 1),
            start=None if state is None else rollout.start.flatten(),
        )

    def gather(self, layout: SequenceLayout, sequence: Tensor) -> tuple[Tensors, Tensor | None, Tensor | None]:
        """Arguments of `Policy.forward` for sequences `[B]`: obs `[L * B, ...]`, state `[B, S]`, start `[L * B]`."""
        rows = layout.rows(sequence)
        obs = {}
        for key, x in self.obs.items():
            stacks = self.stack_rows.get(key)
            obs[key] = x.index_select(0, rows) if stacks is None else gather_stacks(x, stacks.index_select(0, rows))
        if self.state is None or self.start is None:
            return obs, None, None
        return obs, self.state.index_select(0, sequence), self.start.index_select(0, rows)

    def chunks(self, layout: SequenceLayout) -> tuple[Tensor, ...]:
        """All sequences in order, divided into chunks for one forward pass each."""
        elements = 0  # of one step
        for key, x in self.obs.items():
            if key == ACTION_MASK:
                continue  # a mask that allows everything must not change the chunks
            elements += x[0].numel() * (self.stack_rows[key].shape[1] if key in self.stack_rows else 1)
        device = next(iter(self.obs.values())).device
        chunk = _CHUNK_ELEMENTS // (elements * layout.length)
        if device.type == "cpu":
            chunk = min(chunk, _CHUNK_ROWS // layout.length)
        return torch.arange(layout.num_sequences, device=device).split(max(1, chunk))


class MirroredInputs(NamedTuple):
    """What differs in the inputs of the policy when the rollout is mirrored (`algo/symmetry.py`)."""

    obs: Tensors  # [T * N, ...], normalised; without images, which are mirrored in the minibatch
    state: Tensor | None  # [Q, S], the recurrent state before every sequence of the mirrored rollout

    def gather(self, layout: SequenceLayout, sequence: Tensor) -> "MirroredInputs":
        """Those of sequences `[B]`: obs `[L * B, ...]`, state `[B, S]`."""
        rows = layout.rows(sequence)
        obs = {key: x.index_select(0, rows) for key, x in self.obs.items()}
        return MirroredInputs(obs, None if self.state is None else self.state.index_select(0, sequence))


class Minibatch(NamedTuple):
    """Inputs of the loss: `B` sequences, time-major, `[L * B, ...]`."""

    obs: Tensors  # normalised, frame stacks rebuilt
    state: Tensor | None  # [B, S], the recurrent state before the first step
    start: Tensor | None  # [L * B] bool: an episode begins
    action: Tensor
    old_log_prob: Tensor
    old_value: Tensor
    advantage: Tensor
    return_: Tensor
    weight: Tensor | None = None  # 1 for a step, 0 for padding and rows that the env skipped; None without these
    mirrored: MirroredInputs | None = None  # the same steps, mirrored
    measured: Tensor | None = None  # like `weight`, of the steps that count in KL and clip fraction; None: as `weight`


class Rows(NamedTuple):
    """All data of minibatches, `[T * N]` each except the inputs."""

    inputs: Inputs
    action: Tensor
    old_log_prob: Tensor
    old_value: Tensor
    advantage: Tensor
    return_: Tensor
    mirrored: MirroredInputs | None = None
    weight: Tensor | None = None  # 1 for transitions, 0 for rows that the env skipped; None without these

    def gather(self, layout: SequenceLayout, sequence: Tensor) -> Minibatch:
        """The minibatch of sequences `[B]`."""
        rows = layout.rows(sequence)
        obs, state, start = self.inputs.gather(layout, sequence)
        fields = (self.action, self.old_log_prob, self.old_value, self.advantage, self.return_)
        action, log_prob, value, advantage, return_ = [x.index_select(0, rows) for x in fields]
        weight = layout.weight(sequence)
        if self.weight is not None:
            weight = self.weight.index_select(0, rows) * (1.0 if weight is None else weight)
        mirrored = None if self.mirrored is None else self.mirrored.gather(layout, sequence)
        return Minibatch(obs, state, start, action, log_prob, value, advantage, return_, weight, mirrored)


@dataclass
class Batch:
    """A prepared rollout."""

    rollout: Rollout
    reward: Tensor  # [T, N], scaled; for recomputing advantages
    rows: Rows


def minibatch_indices(size: int, count: int, generator: Generator) -> Iterator[Tensor]:
    """Every index of `range(size)` once, shuffled, in `count` minibatches whose sizes differ by at most one.

    Yields one tensor `[M, B]` of M minibatches if all have the same size, else two.
    """
    order = torch.randperm(size, generator=generator, device=generator.device)
    least, larger = divmod(size, count)
    split = larger * (least + 1)
    if larger:
        yield order[:split].view(larger, least + 1)
    yield order[split:].view(count - larger, least)
