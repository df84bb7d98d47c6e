"""Experience of many iterations, `[R, N]`, from which single transitions are drawn at random.

Observations are kept raw, and each once: a stack of frames is put together when it is drawn (`data/frames.py`), the
observation after a transition is that of a later row, and only the last ones of truncated episodes are kept aside.
"""

from collections import deque
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from proxima.data.frames import frame_rows, gather_frames
from proxima.data.rollout import Rollout
from proxima.errors import UsageError
from proxima.machine import physical_memory

Tensors = dict[str, Tensor]
_FIELDS = ("action", "reward", "terminated", "duration", "final")
_FIRST_FINALS = 64  # room for so many final observations at first


class Transitions(NamedTuple):
    """`B` transitions of one step, or of several seen as one."""

    obs: Tensors  # [B, ...], raw
    action: Tensor  # [B]
    return_: Tensor  # [B], discounted sum of the rewards on the way
    discount: Tensor  # [B], of the value of what came after: 0 where the episode terminated
    next_obs: Tensors  # [B, ...], raw; of no meaning where the discount is 0
    number: Tensor  # [B], that no other transition ever has


class Replay:
    """A ring of the newest `capacity` rows, each of one transition of every env. A row has an absolute number.

    Behind the oldest row the ring keeps the frames that its stack reaches back to, and `margin` rows more: so long
    after `mark` the window that ended there is still whole, and `state_at` can copy it.
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
        """`rollout` gives shapes, dtypes and the device; it holds only the newest of the `frames` of a stacked key.

        `return_steps` are the transitions that are seen as one; with `smdp` they are discounted by their durations.
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
        self.rows = self.capacity + self._history + margin + 1  # the last is that of the observation to act on next
        self.end = 0
        """Rows that were ever added."""
        self._oldest = 0  # no row before it was ever there
        self._final_count = 0  # final observations ever kept; each has a number, too
        self._adds: deque[tuple[int, int]] = deque()  # (row, final observations before it) of every add in the ring
        self._allocate(rollout, buffer_size)

    def _allocate(self, rollout: Rollout, buffer_size: int) -> None:
        ends = {"terminated": torch.bool, "duration": torch.int32, "final": torch.int64, "age": torch.uint8}
        shapes = {f"obs {key}": (x.shape[1:], x.dtype) for key, x in rollout.obs.items()}
        shapes |= {"action": (rollout.action.shape[1:], rollout.action.dtype)}
        shapes |= {"reward": (rollout.reward.shape[1:], rollout.reward.dtype)}
        shapes |= {name: (rollout.reward.shape[1:], dtype) for name, dtype in ends.items()}
        size = self.rows * sum(shape.numel() * dtype.itemsize for shape, dtype in shapes.values())
        try:
            if self.device.type == "cpu" and size > physical_memory():
                # Linux would grant it, and end the process hours later.
                raise MemoryError(f"the machine has {physical_memory() / 1e9:.1f} GB")
            rings = {
                name: torch.empty(self.rows, *shape, dtype=dtype, device=self.device)
                for name, (shape, dtype) in shapes.items()
            }
        except (MemoryError, RuntimeError) as error:
            raise UsageError(
                f"a buffer_size of {buffer_size} takes {size:,} bytes ({size / 1e9:.1f} GB), which do not fit into "
                f"memory ({str(error).splitlines()[0]}): lower it."
            ) from None
        self.obs = {key: rings[f"obs {key}"] for key in rollout.obs}
        self.action, self.reward = rings["action"], rings["reward"]
        self.terminated, self.duration = rings["terminated"], rings["duration"]
        self.final = rings["final"]
        """Number of the final observation of an episode that was truncated here; -1 elsewhere."""
        self.age = rings["age"]
        """How many rows ago the episode began, as far as it matters for a stack."""
        self.final_obs = {key: x.new_empty(_FIRST_FINALS, *x.shape[2:]) for key, x in self.obs.items()}

    @property
    def nbytes(self) -> int:
        """Memory that all of it takes."""
        fields = [getattr(self, name) for name in _FIELDS]
        return sum(x.nbytes for x in (*self.obs.values(), *self.final_obs.values(), *fields, self.age))

    # Filling ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def add(self, rollout: Rollout) -> None:
        """Take in the transitions of a rollout, which goes on where the last one ended."""
        if rollout.num_steps > self.margin:
            raise ValueError(f"a rollout of {rollout.num_steps} steps needs a margin as large, not {self.margin}")
        if self.end == 0:
            self._begin(rollout)
        first, steps = self.end, rollout.num_steps
        number = torch.full_like(rollout.reward, -1, dtype=torch.long)
        time, env, final_obs = rollout.final_time, rollout.final_env, rollout.final_obs
        number[time, env] = torch.arange(len(time), device=self.device) + self._final_count
        self._adds.append((first, self._final_count))
        self._keep_finals(final_obs, first + steps)
        ones = torch.ones_like(rollout.reward)
        rows = {"action": rollout.action, "reward": rollout.reward, "terminated": rollout.terminated, "final": number}
        rows["duration"] = ones if rollout.duration is None else rollout.duration
        for name in _FIELDS:
            self._put(getattr(self, name), first, rows[name])
        for key, x in rollout.obs.items():  # with the one after the last step
            self._put(self.obs[key], first, x)
        self._put(self.age, first, self._ages(first, rollout.ended))
        self.end = first + steps

    def _begin(self, rollout: Rollout) -> None:
        """Put the frames before the first step into rows of their own: its episodes may have begun long before."""
        if not rollout.frames or not self._history:
            return
        self.end = self._oldest = self._history
        for key, x in rollout.frames.items():
            before = self.frames[key] - 1
            self._put(self.obs[key], self._history - before, x[:before])
        self.age[self._history] = self._history

    def _put(self, ring: Tensor, first: int, rows: Tensor) -> None:
        slot = first % self.rows
        whole = min(len(rows), self.rows - slot)
        ring[slot : slot + whole] = rows[:whole]
        if whole < len(rows):
            ring[: len(rows) - whole] = rows[whole:]

    def _ages(self, first: int, ended: Tensor) -> Tensor:
        """`[T + 1, N]`: of the rows from `first` on, after the ends `[T, N]` of their episodes."""
        row = torch.arange(len(ended) + 1, device=self.device)[:, None].expand(-1, self.num_envs)
        start = torch.zeros_like(row)  # row numbers here count from `first`
        if first > 0:
            start[0] = -self.age[first % self.rows].long()
        start[1:] = torch.where(ended, row[1:], start[0])
        return (row - start.cummax(0).values).clamp(max=self._history)

    def _keep_finals(self, final_obs: Tensors, end: int) -> None:
        """Behind those that are kept, in a ring that grows where rows that are still there need what is in it."""
        new, room = (len(next(iter(x.values()))) for x in (final_obs, self.final_obs))
        while len(self._adds) > 1 and self._adds[1][0] <= end - self.rows + 1:
            self._adds.popleft()
        oldest, count = self._adds[0][1], self._final_count
        if count + new - oldest > room:
            larger = max(2 * room, count + new - oldest)
            number = torch.arange(oldest, count, device=self.device)
            for key, ring in self.final_obs.items():
                grown = ring.new_empty(larger, *ring.shape[1:])
                grown[number % larger] = ring[number % room]
                self.final_obs[key] = grown
            room = larger
        slots = torch.arange(count, count + new, device=self.device) % room
        for key, x in final_obs.items():
            self.final_obs[key][slots] = x
        self._final_count += new

    @torch.no_grad()
    def cut_episodes(self) -> None:
        """Say that the episodes under way will not go on, as the envs were reset: a time limit might have cut them."""
        if self.end == self._oldest:
            return
        last, now = (self.end - 1) % self.rows, self.end % self.rows
        env = (~self.terminated[last] & (self.final[last] < 0)).nonzero().squeeze(-1)
        self.final[last, env] = torch.arange(len(env), device=self.device) + self._final_count
        self._keep_finals({key: x[now, env] for key, x in self.obs.items()}, self.end)
        self.age[now] = 0

    # Sampling --------------------------------------------------------------------------------------------------------

    @property
    def _first(self) -> int:
        """The oldest row that may be drawn."""
        return max(self._oldest, self.end - self.capacity)

    @property
    def size(self) -> int:
        """Transitions that may be drawn: all of the window but those whose steps are not all there yet."""
        return max(0, self.end - self._first - self.return_steps + 1) * self.num_envs

    def draw(self, count: int, generator: Generator) -> Tensor:
        """Which transitions to take, `[count]`: any of `range(size)`, each as likely as the others."""
        return torch.randint(self.size, (count,), generator=generator, device=self.device)

    @torch.no_grad()
    def gather(self, index: Tensor) -> Transitions:
        """The transitions of `index` `[B]`, counted from the oldest row, env by env."""
        env, row = index % self.num_envs, index // self.num_envs + self._first
        place = self._place(row, env)
        return_, discount, last = self._returns(row, env)
        end = self._place(last, env)
        final = _take(self.final, end)
        cut = final >= 0
        begun = row - _take(self.age, place)
        # An episode's final observation is one row older than its last; in that row another one begins.
        begun_next = last + 1 - torch.where(cut, _take(self.age, end) + 1, _take(self.age, self._place(last + 1, env)))
        obs = {key: self._observation(key, row, begun, env) for key in self.obs}
        next_obs = {key: self._observation(key, last + 1, begun_next, env) for key in self.obs}
        if self._final_count:
            next_obs = {key: self._with_final(key, x, final) for key, x in next_obs.items()}
        return Transitions(obs, _take(self.action, place), return_, discount, next_obs, row * self.num_envs + env)

    def _place(self, row: Tensor, env: Tensor) -> Tensor:
        return row % self.rows * self.num_envs + env

    def _returns(self, row: Tensor, env: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return and discount of so many steps as the episode still has, and the row of the last of them."""
        last, alive = row, torch.ones_like(row, dtype=torch.bool)
        return_ = torch.zeros_like(row, dtype=self.reward.dtype)
        discount = torch.ones_like(return_)
        for step in range(self.return_steps):
            place = self._place(row + step, env)
            terminated, cut = _take(self.terminated, place), _take(self.final, place) >= 0
            step_discount = self.gamma ** _take(self.duration, place).to(discount) if self.smdp else self.gamma
            step_discount = torch.where(terminated, 0.0, step_discount)
            return_ = torch.where(alive, return_ + discount * _take(self.reward, place), return_)
            discount = torch.where(alive, discount * step_discount, discount)
            last = torch.where(alive, row + step, last)
            alive = alive & ~terminated & ~cut
        return return_, discount, last

    def _observation(self, key: str, row: Tensor, begun: Tensor, env: Tensor) -> Tensor:
        stored, frames = self.obs[key], self.frames[key]
        if frames == 1:
            return _take(stored, self._place(row, env))
        return gather_frames(stored, frame_rows(row, begun, frames) % self.rows, env)

    def _with_final(self, key: str, obs: Tensor, final: Tensor) -> Tensor:
        """With the newest frame `[B, C, H, W]` of each observation that ended an episode in its place."""
        kept, frames = self.final_obs[key], self.frames[key]
        newest = kept.index_select(0, final.clamp(min=0) % len(kept))
        cut = (final >= 0).view(-1, *[1] * (newest.ndim - 1))
        *older, last = obs.chunk(frames, 1) if frames > 1 else (obs,)
        return torch.cat((*older, torch.where(cut, newest, last)), 1) if frames > 1 else torch.where(cut, newest, last)

    # State -----------------------------------------------------------------------------------------------------------

    def mark(self) -> int:
        """This moment, for `state_at`."""
        return self.end

    @torch.no_grad()
    def state_at(self, mark: int) -> Tensors:
        """A copy of the window as it was at `mark`, since when at most `margin` rows may have been added."""
        if not self.end - self.margin <= mark <= self.end:
            raise ValueError(f"the mark {mark} is not among the last {self.margin} rows before {self.end}")
        oldest = max(self._oldest, mark - self.capacity)
        first = max(0, oldest - self._history)
        state = {name: self._copy(getattr(self, name), first, mark) for name in _FIELDS}
        state |= {"age": self._copy(self.age, first, mark + 1)}
        state |= {f"obs {key}": self._copy(x, first, mark + 1) for key, x in self.obs.items()}
        before = [finals for start, finals in self._adds if start <= first]
        after = [finals for start, finals in self._adds if start >= mark]
        number = torch.arange(before[-1] if before else 0, after[0] if after else self._final_count, device=self.device)
        state |= {f"final {key}": x[number % len(x)] for key, x in self.final_obs.items()}
        return state | {"rows": torch.tensor([first, oldest, mark]), "finals": number[-1:] + 1}

    def _copy(self, ring: Tensor, first: int, stop: int) -> Tensor:
        slot, count = first % self.rows, stop - first
        return torch.cat((ring[slot : slot + count], ring[: max(0, slot + count - self.rows)]))

    @torch.no_grad()
    def load_state(self, state: Tensors) -> None:
        """Put back what `state_at` gave; of a larger buffer, the newest rows."""
        first, oldest, mark = state["rows"].tolist()
        if state["reward"].shape[1] != self.num_envs:
            raise UsageError(
                f"the replay buffer is of {state['reward'].shape[1]} envs, but num_envs is {self.num_envs}: "
                "go on with as many."
            )
        surplus = max(0, mark + 1 - first - self.rows)
        first, oldest = first + surplus, max(oldest, first + surplus)
        for name in (*_FIELDS, "age"):
            self._put(getattr(self, name), first, state[name][surplus:].to(self.device))
        for key, ring in self.obs.items():
            self._put(ring, first, state[f"obs {key}"][surplus:].to(self.device))
        self.end, self._oldest = mark, oldest
        finals = {key: state[f"final {key}"].to(self.device) for key in self.obs}
        kept = len(next(iter(finals.values())))
        self._final_count = int(state["finals"].sum()) - kept
        self._adds = deque([(first, self._final_count)])
        self._keep_finals(finals, mark)


def _take(ring: Tensor, place: Tensor) -> Tensor:
    """Rows `[B, ...]` of `[R, N, ...]`."""
    return ring.flatten(0, 1).index_select(0, place)
