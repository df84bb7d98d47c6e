"""Storage of one iteration's experience, `[T, N]`, filled in place and reused."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from proxima.data.frames import frame_rows, gather_stacks, newest


class Rollout:
    """`T` steps of `N` envs. Observations are unnormalised; row T of them is the one after the last step.

    With recurrence, the policy's state is stored every `sequence_length` steps. A key that stacks frames is stored as
    the newest frame of each step; `frames` is the same storage, preceded by the frames before the first step.
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
        store_values: bool = False,
        skips: bool = False,
    ):
        """`obs` and `action` are examples `[N, ...]` of shapes and dtypes; all but bytes is stored as float32.

        `stacks` is the number of frames of each key that stacks frames. `store_values`: also store log-probabilities
        and values while acting. `skips`: some rows are no transitions (`VecEnv.skips`).
        """
        self.num_steps, self.num_envs = num_steps, num_envs
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
        self.skipped = torch.zeros_like(self.terminated) if skips else None
        """`[T, N]` bool: rows to learn nothing from. They count as truncated, so that what follows is a new episode."""
        self.log_prob = torch.zeros_like(self.reward) if store_values else None
        self.value = torch.zeros_like(self.reward) if store_values else None
        self.state: Tensor | None = None
        """`[C, N, S]`, the recurrent state before the first step of every sequence; None without recurrence."""
        self.last_state: Tensor | None = None
        """`[N, S]`, after the last step."""
        if state_size:
            self.state = torch.zeros(-(-num_steps // sequence_length), num_envs, state_size, device=device)
            self.last_state = torch.zeros(num_envs, state_size, device=device)
        self.aux: dict[str, Tensor] = {}
        """`[T, N, ...]` each: `Step.aux`, for a second learner."""
        self.clear()

    def clear(self) -> None:
        """Prepare for the next rollout: no episode ended, no action held."""
        self.duration: Tensor | None = None
        """`[T, N]` int64, env steps of each transition; None if all are 1."""
        self._final_obs: dict[str, list[Tensor]] = {key: [] for key in self.obs}
        self._final_time: list[Tensor] = []
        self._final_env: list[Tensor] = []
        self._final_state: list[Tensor] = []
        for flags in (self.terminated, self.truncated, self.skipped):
            if flags is not None:
                flags.zero_()

    def begin(self, obs: dict[str, Tensor]) -> None:
        """Store the older frames of the first observations `[N, ...]`."""
        for key, rows in self.frames.items():
            count = self.stacks[key]
            rows[: count - 1] = obs[key].unflatten(1, (count, -1))[:, :-1].transpose(0, 1)

    def skip(self, t: int, skipped: Tensor) -> None:
        """Leave out the rows `skipped` `[N]` of step `t`."""
        assert self.skipped is not None
        self.skipped[t] = skipped
        self.truncated[t] |= self.skipped[t]

    @property
    def weight(self) -> Tensor | None:
        """`[T, N]`: 1 for transitions and 0 for skipped rows; None if there are none of these."""
        return None if self.skipped is None else (~self.skipped).float()

    def put_aux(self, t: int, aux: Mapping[str, Tensor]) -> None:
        """Store `Step.aux` `[N, ...]` of step `t`."""
        for name, x in aux.items():
            if name not in self.aux:
                self.aux[name] = torch.zeros(self.num_steps, *x.shape, dtype=x.dtype, device=self.reward.device)
            self.aux[name][t] = x

    def add_final(self, time: Tensor, env: Tensor, final_obs: dict[str, Tensor], state: Tensor | None = None) -> None:
        """Store the final observations `[K, ...]` of episodes truncated at `time` `[K]` in `env` `[K]`.

        `state` `[K, S]` is the recurrent state before them.
        """
        self._final_time.append(time)
        self._final_env.append(env)
        for key, found in self._final_obs.items():
            found.append(final_obs[key].to(self.obs[key]))
        if state is not None:
            self._final_state.append(state)

    @property
    def ended(self) -> Tensor:
        """`[T, N]` bool."""
        return self.terminated | self.truncated

    @property
    def episode_ends(self) -> Tensor:
        """`[T, N]` bool: ended, without the skipped rows."""
        return self.ended if self.skipped is None else self.ended & ~self.skipped

    def discount(self, gamma: float) -> Tensor | float:
        """Gamma, or gamma ** duration `[T, N]` if actions were held."""
        return gamma if self.duration is None else gamma ** self.duration.to(self.reward.dtype)

    @property
    def size(self) -> int:
        """Number of transitions."""
        return self.num_steps * self.num_envs

    @property
    def num_env_steps(self) -> int:
        """Env steps of all transitions, without the skipped rows."""
        steps = self.size if self.duration is None else int(self.duration.sum())
        return steps if self.skipped is None else steps - int(self.skipped.sum())

    @property
    def final_time(self) -> Tensor:
        """`[K]`, steps at which episodes were truncated."""
        return self._joined(self._final_time)

    @property
    def final_env(self) -> Tensor:
        """`[K]`, envs of these episodes."""
        return self._joined(self._final_env)

    def _joined(self, parts: list[Tensor]) -> Tensor:
        if not parts:
            return torch.zeros(0, dtype=torch.long, device=self.reward.device)
        return torch.cat(parts).to(self.reward.device)

    @property
    def final_obs(self) -> dict[str, Tensor]:
        """`[K, ...]`, final observations of truncated episodes; of a frame stack, the newest frame."""
        last = {key: [newest(x, self.stacks.get(key, 1)) for x in found] for key, found in self._final_obs.items()}
        return {key: torch.cat((x[-1][:0], *last[key])) for key, x in self.obs.items()}

    def bootstrap_obs(self) -> dict[str, Tensor]:
        """`[N + K, ...]`: the observations after the rollout, then the final ones of truncated episodes."""
        last = {key: x[-1] for key, x in self.obs.items()}
        end = torch.arange(self.size, self.size + self.num_envs, device=self.reward.device)
        last |= {key: gather_stacks(x.flatten(0, 1), self._stack_rows(key, end)) for key, x in self.frames.items()}
        return {key: torch.cat((x, *self._final_obs[key])) for key, x in last.items()}

    def bootstrap_state(self) -> Tensor | None:
        """`[N + K, S]`: the recurrent state before each of the bootstrap observations."""
        return None if self.last_state is None else torch.cat((self.last_state, *self._final_state))

    def step_obs(self) -> dict[str, Tensor]:
        """`[T, N, ...]`, the observations acted on: a view without row T."""
        return {key: x[:-1] for key, x in self.obs.items()}

    def stack_rows(self) -> dict[str, Tensor]:
        """`[T * N, F]` for every key that stacks frames: the rows of each stack in the flattened `frames`."""
        steps = torch.arange(self.size, device=self.reward.device)
        return {key: self._stack_rows(key, steps) for key in self.frames}

    def _stack_rows(self, key: str, step: Tensor) -> Tensor:
        """`[K, F]` for steps `[K]`, numbered t * N + n."""
        count, time = self.stacks[key], torch.arange(self.num_steps + 1, device=step.device)
        began = torch.where(torch.cat((torch.zeros_like(self.ended[:1]), self.ended)), time[:, None], 1 - count)
        first = began.cummax(0).values.flatten()[step]  # [K], time of the episode's first step
        time, env = step // self.num_envs, step % self.num_envs
        return (frame_rows(time, first, count) + count - 1) * self.num_envs + env[:, None]

    @property
    def start(self) -> Tensor:
        """`[T, N]` bool: an episode begins. False in the first step, whose state is already reset."""
        ended = self.ended
        return torch.cat((torch.zeros_like(ended[:1]), ended[:-1]))

    # Between processes -----------------------------------------------------------------------------------------------

    def to_block(self) -> "Block":
        """Everything that was collected, as NumPy arrays `[T, n, ...]` that share memory with the rollout if it can."""
        fields = {name: x for name in _FIELDS if (x := getattr(self, name)) is not None}
        obs = {key: self.frames.get(key, x) for key, x in self.obs.items()}
        ends = {"time": self.final_time, "env": self.final_env}
        final_obs = {key: torch.cat((self._final_example(key), *found)) for key, found in self._final_obs.items()}
        if self.last_state is not None:
            fields["last_state"] = self.last_state[None]
            ends["state"] = torch.cat((self.last_state[:0], *self._final_state))
        groups = {"fields": fields, "obs": obs, "aux": self.aux, "ends": ends, "final_obs": final_obs}
        return {group: {name: x.numpy(force=True) for name, x in found.items()} for group, found in groups.items()}

    def put_block(self, block: "Block", first: int) -> None:
        """Store a block of the envs from `first` on. Blocks of all envs, after `clear`, make a rollout."""
        count = block["fields"]["reward"].shape[1]
        columns = slice(first, first + count)
        if "duration" in block["fields"] and self.duration is None:
            self.duration = torch.ones_like(self.reward, dtype=torch.long)
        for name, array in block["aux"].items():
            if name not in self.aux:
                shape = (self.num_steps, self.num_envs, *array.shape[2:])
                self.aux[name] = self.reward.new_zeros(shape, dtype=tensor_of(array).dtype)
        targets = {name: getattr(self, name) for name in block["fields"] if name != "last_state"}
        if self.last_state is not None:
            targets["last_state"] = self.last_state[None]
        targets = {"fields": targets, "obs": {key: self.frames.get(key, x) for key, x in self.obs.items()}}
        for group, tensors in (targets | {"aux": self.aux}).items():
            for name, x in tensors.items():
                x[:, columns] = tensor_of(block[group][name])
        ends, final_obs = block["ends"], block["final_obs"]
        if len(ends["time"]):
            state = tensor_of(ends["state"]).to(self.reward.device) if "state" in ends else None
            found = {key: tensor_of(x) for key, x in final_obs.items()}
            self.add_final(tensor_of(ends["time"]), tensor_of(ends["env"]) + first, found, state)

    def _final_example(self, key: str) -> Tensor:
        """No final observations, `[0, ...]`: those of frame stacks are stored completely."""
        x, count = self.obs[key][-1][:0], self.stacks.get(key, 1)
        return x.repeat(1, count, *[1] * (x.ndim - 2)) if count > 1 else x


Block = dict[str, dict[str, "NDArray[Any]"]]
"""A rollout as it is sent to another process."""
_FIELDS = ("action", "reward", "terminated", "truncated", "skipped", "log_prob", "value", "duration", "state")


def tensor_of(array: "NDArray[Any]") -> Tensor:
    """A tensor that is only read: arrays from another process may not be writable, which PyTorch warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def as_stored(obs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Observations in the dtypes of storage and of policies: bytes stay uint8, all else is float32."""
    return {key: x.to(_storage_dtype(x.dtype)) for key, x in obs.items()}


def _storage_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.uint8 if dtype == torch.uint8 else torch.float32
