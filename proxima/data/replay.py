"""The replay buffer: transitions of many iterations, stored `[R, N]` and sampled uniformly.

Each observation is stored once, unnormalised. Frame stacks are rebuilt when sampled (`data/frames.py`); the next
observation of a transition is read from the following row, and only the final observations of truncated episodes are
stored separately.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_leaves, tree_map

from proxima.data.frames import frame_rows, gather_stacks
from proxima.data.rollout import Rollout
from proxima.errors import UsageError
from proxima.machine import physical_memory

Tensors = dict[str, Tensor]
_INITIAL_FINALS = 64  # initial capacity for final observations


class Transitions(NamedTuple):
    """`B` transitions of one step, or n-step transitions."""

    obs: Tensors  # [B, ...], unnormalised
    action: Tensor  # [B]
    return_: Tensor  # [B], discounted sum of the rewards in between
    discount: Tensor  # [B], of the value of next_obs: 0 where the episode terminated
    next_obs: Tensors  # [B, ...], unnormalised; undefined where the discount is 0
    number: Tensor  # [B], unique over the whole run


class Replay:
    """A ring buffer of the newest `capacity` rows, each with one transition per env. Rows are numbered from 0.

    Behind the oldest row it keeps the frames that its stack needs, and `margin` more rows: until that many rows have
    been added, `state_at` can still copy the buffer as it was before.
    """

    def __init__(
        self,
        rollout: Rollout,
        *,
        buffer_size: int,
        margin: int,
        frames: dict[str, int] | None = None,
        return_steps: int = 1,
        gamma: float,
        smdp: bool = True,
    ):
        """`rollout` gives shapes, dtypes and the device; keys in `frames` are stacks, stored as their newest frame.

        `return_steps` is the n of n-step returns; with `smdp` they are discounted by the durations of the actions.
        """
        self.num_envs, self.margin, self.return_steps = rollout.num_envs, margin, return_steps
        self.gamma, self.smdp, self.device = gamma, smdp, rollout.reward.device
        self.frames = {key: (frames or {}).get(key, 1) for key in rollout.obs}
        self.capacity = buffer_size // self.num_envs
        if self.capacity < return_steps:
            raise UsageError(
                f"buffer_size is {buffer_size}, but it must hold at least {return_steps} transitions of each of "
                f"{self.num_envs} envs: raise it to {return_steps * self.num_envs} or more."
            )
        self._history = max(self.frames.values()) - 1
        self.rows = self.capacity + self._history + margin + 1  # the last holds the observation to act on next
        self.end = 0
        """Number of rows added so far."""
        self._oldest = 0  # the first row that was stored
        self._final_count = 0  # final observations added so far; they are numbered, too
        self._adds: deque[tuple[int, int]] = deque()  # (first row, final observations before it) of every add
        self._allocate(rollout, buffer_size)

    def _allocate(self, rollout: Rollout, buffer_size: int) -> None:
        number = rollout.reward[0]
        row: dict[str, Any] = {
            "obs": {key: x[0] for key, x in rollout.obs.items()},
            "action": rollout.action[0],
            "reward": number,
            "terminated": number.bool(),
            "duration": number.int(),
            "final": number.long(),
            "age": number.byte(),
        }
        size = self.rows * sum(x.nbytes for x in tree_leaves(row))
        try:
            if self.device.type == "cpu" and size > physical_memory():
                # Linux would grant it, and kill the process hours later.
                raise MemoryError(f"the machine has {physical_memory() / 1e9:.1f} GB")
            rings = tree_map(lambda x: x.new_empty(self.rows, *x.shape), row)
        except (MemoryError, RuntimeError) as error:
            raise UsageError(
                f"a buffer_size of {buffer_size} takes {size:,} bytes ({size / 1e9:.1f} GB), which do not fit into "
                f"memory ({str(error).splitlines()[0]}): lower it."
            ) from None
        self.obs: Tensors = rings.pop("obs")
        self.age: Tensor = rings.pop("age")
        """Rows since the episode began, at most as many as a frame stack reaches back."""
        self._fields: Tensors = rings
        """Of transitions; `final` is the number of the final observation of an episode truncated here, else -1."""
        self.final_obs = {key: x.new_empty(_INITIAL_FINALS, *x.shape[2:]) for key, x in self.obs.items()}

    # Adding ----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def add(self, rollout: Rollout) -> None:
        """Add the transitions of a rollout, which continues the previous one."""
        if rollout.num_steps > self.margin:
            raise ValueError(f"a rollout of {rollout.num_steps} steps needs a margin as large, not {self.margin}")
        if self.end == 0:
            self._begin(rollout)
        first, end = self.end, self.end + rollout.num_steps
        time, env = rollout.final_time, rollout.final_env
        number = torch.full_like(rollout.reward, -1, dtype=torch.long)
        number[time, env] = torch.arange(len(time), device=self.device) + self._final_count
        self._adds.append((first, self._final_count))
        self._add_finals(rollout.final_obs, end)
        rows = {"action": rollout.action, "reward": rollout.reward, "terminated": rollout.terminated, "final": number}
        rows["duration"] = torch.ones_like(rollout.reward) if rollout.duration is None else rollout.duration
        for name, x in rows.items():
            self._put(self._fields[name], first, x)
        for key, x in rollout.obs.items():  # including the one after the last step
            self._put(self.obs[key], first, x)
        self._put(self.age, first, self._ages(first, rollout.ended))
        self.end = end

    def _begin(self, rollout: Rollout) -> None:
        """Store the frames before the first step in rows of their own: its episodes may have begun long before."""
        if not rollout.frames or not self._history:
            return
        self.end = self._oldest = self._history
        for key, x in rollout.frames.items():
            before = self.frames[key] - 1
            self._put(self.obs[key], self._history - before, x[:before])
        self.age[self._history] = self._history

    def _put(self, ring: Tensor, first: int, rows: Tensor) -> None:
        slot = first % self.rows
        until_wrap = min(len(rows), self.rows - slot)
        ring[slot : slot + until_wrap] = rows[:until_wrap]
        if until_wrap < len(rows):
            ring[: len(rows) - until_wrap] = rows[until_wrap:]

    def _ages(self, first: int, ended: Tensor) -> Tensor:
        """`age` `[T + 1, N]` of the rows from `first` on, given where episodes ended `[T, N]`."""
        row = torch.arange(len(ended) + 1, device=self.device)[:, None].expand(-1, self.num_envs)
        start = torch.zeros_like(row)  # row numbers here count from `first`
        if first > 0:
            start[0] = -self.age[first % self.rows].long()
        start[1:] = torch.where(ended, row[1:], start[0])
        return (row - start.cummax(0).values).clamp(max=self._history)

    def _add_finals(self, final_obs: Tensors, end: int) -> None:
        """Add final observations of rows before `end` to their ring, which grows where the buffer still needs all."""
        new, room = (len(next(iter(x.values()))) for x in (final_obs, self.final_obs))
        while len(self._adds) > 1 and self._adds[1][0] <= end - self.rows + 1:
            self._adds.popleft()
        oldest, count = self._adds[0][1], self._final_count
        if count + new - oldest > room:
            larger = max(2 * room, count + new - oldest)
            number = torch.arange(oldest, count, device=self.device)
            for key, ring in self.final_obs.items():
                self.final_obs[key] = ring.new_empty(larger, *ring.shape[1:])
                self.final_obs[key][number % larger] = ring[number % room]
            room = larger
        slots = torch.arange(count, count + new, device=self.device) % room
        for key, x in final_obs.items():
            self.final_obs[key][slots] = x
        self._final_count += new

    @torch.no_grad()
    def cut_episodes(self) -> None:
        """Mark the current episodes as truncated, because the envs were reset."""
        if self.end == self._oldest:
            return
        last, now, final = (self.end - 1) % self.rows, self.end % self.rows, self._fields["final"]
        env = (~self._fields["terminated"][last] & (final[last] < 0)).nonzero().squeeze(-1)
        final[last, env] = torch.arange(len(env), device=self.device) + self._final_count
        self._add_finals({key: x[now, env] for key, x in self.obs.items()}, self.end)
        self.age[now] = 0

    # Sampling --------------------------------------------------------------------------------------------------------

    @property
    def _first(self) -> int:
        """The oldest row that can be sampled."""
        return max(self._oldest, self.end - self.capacity)

    @property
    def size(self) -> int:
        """Number of transitions that can be sampled: those whose `return_steps` steps are all stored."""
        return max(0, self.end - self._first - self.return_steps + 1) * self.num_envs

    def draw(self, count: int, generator: Generator) -> Tensor:
        """Indices `[count]` of transitions, uniform over `range(size)`."""
        return torch.randint(self.size, (count,), generator=generator, device=self.device)

    def rewards_since(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rewards, ends of episodes and durations `[T, N]` of the rows from `row` on."""
        first, count = max(row, self._first), self.end - max(row, self._first)
        slots = torch.arange(first, first + count, device=self.device) % self.rows
        fields = {name: self._fields[name][slots] for name in ("reward", "terminated", "final", "duration")}
        return fields["reward"], fields["terminated"] | (fields["final"] >= 0), fields["duration"]

    @torch.no_grad()
    def gather(self, index: Tensor, scaled: Callable[[Tensor], Tensor] | None = None) -> Transitions:
        """The transitions of `index` `[B]`, counted from the oldest row, env by env; their rewards `scaled`."""
        env, row = index % self.num_envs, index // self.num_envs + self._first
        place = self._place(row, env)
        return_, discount, last = self._returns(row, env, scaled or _unchanged)
        end = self._place(last, env)
        final = _take(self._fields["final"], end)
        begun = row - _take(self.age, place)
        # The final observation belongs to the episode that ended in the row `last`; row `last + 1` starts another.
        next_age = torch.where(final >= 0, _take(self.age, end) + 1, _take(self.age, self._place(last + 1, env)))
        begun_next = last + 1 - next_age
        obs = {key: self._observation(key, row, begun, env) for key in self.obs}
        next_obs = {key: self._observation(key, last + 1, begun_next, env) for key in self.obs}
        if self._final_count:
            next_obs = {key: self._with_final(key, x, final) for key, x in next_obs.items()}
        action = _take(self._fields["action"], place)
        return Transitions(obs, action, return_, discount, next_obs, row * self.num_envs + env)

    def _place(self, row: Tensor, env: Tensor) -> Tensor:
        return row % self.rows * self.num_envs + env

    def _returns(self, row: Tensor, env: Tensor, scaled: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """n-step return, discount, and the row of the last step, which is earlier where the episode ended."""
        fields, last, alive = self._fields, row, torch.ones_like(row, dtype=torch.bool)
        return_ = torch.zeros_like(row, dtype=fields["reward"].dtype)
        discount = torch.ones_like(return_)
        for step in range(self.return_steps):
            place = self._place(row + step, env)
            terminated, truncated = _take(fields["terminated"], place), _take(fields["final"], place) >= 0
            step_discount = self.gamma ** _take(fields["duration"], place).to(discount) if self.smdp else self.gamma
            step_discount = torch.where(terminated, 0.0, step_discount)
            return_ = torch.where(alive, return_ + discount * scaled(_take(fields["reward"], place)), return_)
            discount = torch.where(alive, discount * step_discount, discount)
            last = torch.where(alive, row + step, last)
            alive = alive & ~terminated & ~truncated
        return return_, discount, last

    def _observation(self, key: str, row: Tensor, begun: Tensor, env: Tensor) -> Tensor:
        stored, frames = self.obs[key], self.frames[key]
        if frames == 1:
            return _take(stored, self._place(row, env))
        return gather_stacks(stored.flatten(0, 1), self._place(frame_rows(row, begun, frames), env[:, None]))

    def _with_final(self, key: str, obs: Tensor, final: Tensor) -> Tensor:
        """Observations with the newest frame replaced by the final one where the episode was truncated."""
        stored, frames = self.final_obs[key], self.frames[key]
        newest = stored.index_select(0, final.clamp(min=0) % len(stored))
        truncated = (final >= 0).view(-1, *[1] * (newest.ndim - 1))
        if frames == 1:
            return torch.where(truncated, newest, obs)
        *older, last = obs.chunk(frames, 1)
        return torch.cat((*older, torch.where(truncated, newest, last)), 1)

    # State -----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def state_at(self, mark: int) -> dict[str, Any]:
        """A copy of the buffer as it was when `end` was `mark`; at most `margin` rows may have been added since."""
        if not self.end - self.margin <= mark <= self.end:
            raise ValueError(f"the mark {mark} is not among the last {self.margin} rows before {self.end}")
        oldest = max(self._oldest, mark - self.capacity)
        first = max(0, oldest - self._history)
        before = [finals for start, finals in self._adds if start <= first]
        after = [finals for start, finals in self._adds if start >= mark]
        number = torch.arange(before[-1] if before else 0, after[0] if after else self._final_count, device=self.device)
        return {
            **{name: self._copy(x, first, mark) for name, x in self._fields.items()},
            "age": self._copy(self.age, first, mark + 1),
            "obs": {key: self._copy(x, first, mark + 1) for key, x in self.obs.items()},
            "final_obs": {key: x[number % len(x)] for key, x in self.final_obs.items()},
            "rows": torch.tensor([first, oldest, mark]),
            "finals": number[-1:] + 1,
        }

    def _copy(self, ring: Tensor, first: int, stop: int) -> Tensor:
        slot, count = first % self.rows, stop - first
        return torch.cat((ring[slot : slot + count], ring[: max(0, slot + count - self.rows)]))

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        """Load what `state_at` returned; from a larger buffer, the newest rows."""
        for name, prefix in (("obs", "obs "), ("final_obs", "final ")):  # older checkpoints
            state = {name: {key: state[prefix + key] for key in self.obs if prefix + key in state}} | state
        first, oldest, mark = state["rows"].tolist()
        if state["reward"].shape[1] != self.num_envs:
            raise UsageError(
                f"the replay buffer has {state['reward'].shape[1]} envs, but num_envs is {self.num_envs}: resume with "
                "the same number."
            )
        if absent := [key for key in self.obs if key not in state["obs"]]:
            raise UsageError(
                f"the saved replay buffer has no observation {absent[0]!r}, which the env has now: resume with the env "
                "and the version that it was saved with, or start a new run with its weights (init_from)."
            )
        surplus = max(0, mark + 1 - first - self.rows)
        first, oldest = first + surplus, max(oldest, first + surplus)
        rings = {**self._fields, "age": self.age}
        loaded = [(ring, state[name]) for name, ring in rings.items()]
        loaded += [(ring, state["obs"][key]) for key, ring in self.obs.items()]
        for ring, rows in loaded:
            self._put(ring, first, rows[surplus:].to(self.device))
        self.end, self._oldest = mark, oldest
        finals = {key: state["final_obs"][key].to(self.device) for key in self.obs}
        self._final_count = int(state["finals"].sum()) - len(next(iter(finals.values())))
        self._adds = deque([(first, self._final_count)])
        self._add_finals(finals, mark)


def _unchanged(reward: Tensor) -> Tensor:
    return reward


def _take(ring: Tensor, place: Tensor) -> Tensor:
    """Rows `[B, ...]` of `[R, N, ...]`."""
    return ring.flatten(0, 1).index_select(0, place)
