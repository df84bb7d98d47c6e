"""Storage of one iteration's experience, `[T, N]`, filled in place and reused."""

from collections.abc import Iterator, Mapping

import torch
from torch import Generator, Tensor

from proxima.data.frames import frame_rows, gather_stacks, newest


class Rollout:
    """What `T` steps of `N` envs gave. Observations are raw; row T is the one after the last step.

    For the learner it is cut into sequences: each env's steps into `C` of `L`, the last padded where `L` does not
    divide `T`. That makes `Q = C * N` sequences, `[L, Q]`. Without a memory a sequence is one step.

    Of a key that stacks frames, `obs` has the newest of each step, so that every frame is kept once; `frames` has the
    same with those before the first step in front.
    """

    def __init__(
        self,
        *,
        num_steps: int,
        num_envs: int,
        obs: dict[str, Tensor],
        action: Tensor,
        device: torch.device,
        sequence_length: int = 1,
        state_size: int = 0,
        stacks: Mapping[str, int] | None = None,
        judged: bool = False,
    ):
        """`obs` and `action` are examples `[N, ...]` that give shapes and dtypes; all but bytes is kept as float32.

        `stacks` tells how many frames the keys that stack some have; `judged`, whether log-probabilities and values
        are known from acting.
        """
        self.num_steps, self.num_envs = num_steps, num_envs
        self.sequence_length = sequence_length
        self.stacks = dict(stacks or {})
        self.obs: dict[str, Tensor] = {}
        self.frames: dict[str, Tensor] = {}
        for key, x in obs.items():
            count = self.stacks.get(key, 1)
            form = newest(x, count)
            rows = torch.zeros(count + num_steps, *form.shape, dtype=_storage_dtype(x.dtype), device=device)
            self.obs[key] = rows[count - 1 :]
            if count > 1:
                self.frames[key] = rows
        self.action = torch.zeros(num_steps, *action.shape, dtype=action.dtype, device=device)
        self.reward = torch.zeros(num_steps, num_envs, device=device)
        self.terminated = torch.zeros(num_steps, num_envs, dtype=torch.bool, device=device)
        self.truncated = torch.zeros(num_steps, num_envs, dtype=torch.bool, device=device)
        self.log_prob = torch.zeros_like(self.reward) if judged else None
        """`[T, N]`, of the actions, where it was computed when they were chosen."""
        self.value = torch.zeros_like(self.reward) if judged else None
        """`[T, N]`, of the observations, likewise."""
        self.state: Tensor | None = None
        """`[C, N, S]`, the policy's memory before the first step of every sequence; None where it has none."""
        self.last_state: Tensor | None = None
        """`[N, S]`, after the last step."""
        if state_size:
            self.state = torch.zeros(-(-num_steps // sequence_length), num_envs, state_size, device=device)
            self.last_state = torch.zeros(num_envs, state_size, device=device)
        self.clear()

    def clear(self) -> None:
        """Make ready for new experience: nothing ended yet, nothing held."""
        self.duration: Tensor | None = None
        """`[T, N]` int64, env steps of each transition; None where all of them are one."""
        self._final_obs: dict[str, list[Tensor]] = {key: [] for key in self.obs}
        self._final_index: list[Tensor] = []
        self._final_state: list[Tensor] = []
        self.terminated.zero_()
        self.truncated.zero_()

    def begin(self, obs: dict[str, Tensor]) -> None:
        """Take the frames before the first step from the observations `[N, ...]` that it is taken on."""
        for key, rows in self.frames.items():
            count = self.stacks[key]
            rows[: count - 1] = obs[key].unflatten(1, (count, -1))[:, :-1].transpose(0, 1)

    def add_final(self, index: Tensor, final_obs: dict[str, Tensor], state: Tensor | None = None) -> None:
        """Keep the last observations `[K, ...]` of truncated episodes, and the memory `[K, S]` of all before them.

        `index` `[K]` is where in the flattened rollout they ended, t * N + n.
        """
        self._final_index.append(index)
        for key, kept in self._final_obs.items():
            kept.append(final_obs[key].to(self.obs[key]))
        if state is not None:
            self._final_state.append(state)

    @property
    def ended(self) -> Tensor:
        """`[T, N]` bool."""
        return self.terminated | self.truncated

    def discount(self, gamma: float) -> Tensor | float:
        """Gamma, or `[T, N]` of gamma ** duration where actions were held."""
        return gamma if self.duration is None else gamma ** self.duration.to(self.reward.dtype)

    @property
    def size(self) -> int:
        """Number of transitions."""
        return self.num_steps * self.num_envs

    @property
    def final_index(self) -> Tensor:
        """`[K]`, where in the flattened rollout the truncated episodes ended."""
        if not self._final_index:
            return torch.zeros(0, dtype=torch.long, device=self.reward.device)
        return torch.cat(self._final_index).to(self.reward.device)

    @property
    def final_obs(self) -> dict[str, Tensor]:
        """`[K, ...]`, the last observations of truncated episodes; of a stack, the newest frame."""
        kept = {key: [newest(x, self.stacks.get(key, 1)) for x in found] for key, found in self._final_obs.items()}
        return {key: torch.cat((x[-1][:0], *kept[key])) for key, x in self.obs.items()}

    def bootstrap_obs(self) -> dict[str, Tensor]:
        """`[N + K, ...]`: the observations after the rollout, then the final ones of truncated episodes."""
        last = {key: x[-1] for key, x in self.obs.items()}
        end = torch.arange(self.size, self.size + self.num_envs, device=self.reward.device)
        last |= {key: gather_stacks(x.flatten(0, 1), self._places(key, end)) for key, x in self.frames.items()}
        return {key: torch.cat((x, *self._final_obs[key])) for key, x in last.items()}

    def bootstrap_state(self) -> Tensor | None:
        """`[N + K, S]`: the memory with which each of the bootstrap observations is seen."""
        return None if self.last_state is None else torch.cat((self.last_state, *self._final_state))

    def step_obs(self) -> dict[str, Tensor]:
        """`[T, N, ...]` of the acted-on observations, a view."""
        return {key: x[:-1] for key, x in self.obs.items()}

    def stack_index(self) -> dict[str, Tensor]:
        """`[T, N, F]` for every key that stacks frames: where in its `frames`, flattened `[R * N]`, each one is."""
        steps = torch.arange(self.size, device=self.reward.device)
        return {key: self._places(key, steps).view(self.num_steps, self.num_envs, -1) for key in self.frames}

    def _places(self, key: str, step: Tensor) -> Tensor:
        """`[K, F]`, of the steps `[K]` counted as t * N + n."""
        count, time = self.stacks[key], torch.arange(self.num_steps + 1, device=step.device)
        began = torch.where(torch.cat((torch.zeros_like(self.ended[:1]), self.ended)), time[:, None], 1 - count)
        first = began.cummax(0).values.flatten()[step]  # [K], counted as steps are; before the first it does not matter
        time, env = step // self.num_envs, step % self.num_envs
        return (frame_rows(time, first, count) + count - 1) * self.num_envs + env[:, None]

    @property
    def start(self) -> Tensor:
        """`[T, N]` bool: an episode begins inside the rollout. What went before is in the states already."""
        ended = self.ended
        return torch.cat((torch.zeros_like(ended[:1]), ended[:-1]))

    @property
    def num_sequences(self) -> int:
        """`Q`."""
        return -(-self.num_steps // self.sequence_length) * self.num_envs

    def sequences(self, x: Tensor) -> Tensor:
        """`[T, N, ...]` as `[L, Q, ...]`; the last step stands in for those that are not there."""
        if self._padding:
            x = torch.cat((x, x[-1:].expand(self._padding, *x.shape[1:])))
        return x.unflatten(0, (-1, self.sequence_length)).transpose(0, 1).flatten(1, 2)

    @property
    def _padding(self) -> int:
        return -self.num_steps % self.sequence_length

    def steps(self, x: Tensor) -> Tensor:
        """`[L, Q, ...]` as `[T, N, ...]`: what `sequences` did, undone."""
        return x.unflatten(1, (-1, self.num_envs)).transpose(0, 1).flatten(0, 1)[: self.num_steps]

    def weight(self) -> Tensor | None:
        """`[L, Q]`: 1 for a step and 0 for padding; None where there is none."""
        if not self._padding:
            return None
        weight = self.sequences(torch.ones_like(self.reward))
        weight[-self._padding :, -self.num_envs :] = 0.0  # the last steps of the last sequence of every env
        return weight


def minibatch_indices(size: int, count: int, generator: Generator) -> Iterator[Tensor]:
    """Every index of `range(size)` once, shuffled, in `count` minibatches whose sizes differ by at most one.

    Yields tensors `[M, B]` of M minibatches each: one where the sizes are all the same, else two.
    """
    order = torch.randperm(size, generator=generator, device=generator.device)
    least, larger = divmod(size, count)
    split = larger * (least + 1)
    if larger:
        yield order[:split].view(larger, least + 1)
    yield order[split:].view(count - larger, least)


def as_stored(obs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Observations as they are stored and as policies take them: bytes stay, all else is float32."""
    return {key: x.to(_storage_dtype(x.dtype)) for key, x in obs.items()}


def _storage_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.uint8 if dtype == torch.uint8 else torch.float32
