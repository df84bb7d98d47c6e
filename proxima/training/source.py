"""Base class of rollout sources: what algorithms, the trainer and checkpoints need of one.

`collector.py` has the envs in this process, `remote.py` on Ray workers. With several ranks every rank has a source for
its share of the envs; counts and statistics are those of all ranks.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from proxima.algo.learner import restore_generator
from proxima.data.rollout import Rollout, as_stored
from proxima.envs.action_hold import Hold
from proxima.envs.contract import VecEnv
from proxima.errors import UsageError
from proxima.nets.policy import Policy
from proxima.training.episode_statistics import EpisodeStatistics
from proxima.training.hold_schedule import HoldSchedule

log = logging.getLogger("proxima")

Table = NDArray[np.float64]
"""`[R, 2 + K]`, finished episodes: step of the rollout, number of the env, and the numbers of `EpisodeStatistics`."""
Gather = Callable[[Any], list[Any]]
"""Returns the objects that all ranks give, in order."""


@dataclass(frozen=True)
class Share:
    """A part of the envs of a run: those of a rank or of a worker."""

    first: int
    count: int
    total: int

    def split(self, parts: int) -> list["Share"]:
        """As evenly as possible, in order."""
        least, larger = divmod(self.count, parts)
        counts = [least + (i < larger) for i in range(parts)]
        return [Share(self.first + sum(counts[:i]), count, self.total) for i, count in enumerate(counts)]


class EnvState(NamedTuple):
    """What a source keeps of its envs from rollout to rollout."""

    obs: dict[str, Tensor]
    """`[N, ...]`, to act on next, in the env's own dtypes."""
    recurrent: list[Tensor]
    """`[N, S]`; empty without recurrence."""
    env: Any
    """Of `VecEnv.get_state`, or of several vector envs (`partition.py`); None if it cannot be saved."""


class Source(ABC):
    """Rollouts of the policy in the envs, with counters, episode statistics and the state for checkpoints."""

    rollout: Rollout
    """The last one; its memory is reused."""
    compiled: bool
    """Whether acting is, or will be, compiled."""

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        *,
        seed: int,
        device: torch.device,
        share: Share,
        hold_schedule: HoldSchedule | None,
        gather: Gather | None,
    ):
        """`env`: the envs, or where they are elsewhere one of them. `gather` joins the counts of several ranks."""
        self.env, self.policy, self.share, self.hold_schedule = env, policy, share, hold_schedule
        self._gather: Gather = gather or (lambda x: [x])
        self.obstacle: str | None = None
        """Why a resume from `get_state` cannot be exact, if that is known: the envs' state is then not saved."""
        self.generator = Generator(device).manual_seed(seed)
        self.episodes = EpisodeStatistics(env.episode_info, share.total)
        self.global_step = 0
        """Env steps, over all envs."""
        self.policy_steps = 0
        """Actions chosen, over all envs: the same as env steps, unless actions are held."""
        self.in_old_episodes = True
        """Whether the last `set_state` could continue the saved episodes."""
        self.restarted: list[slice] = []
        """Rows of envs that started new episodes before the last rollout, because theirs were lost."""
        self.no_toolchain = False
        """Whether compilation failed because no compiler works here."""
        self._unseen = set(env.log_info)
        """Keys of `log_info` that no `info` has had yet; empty once that was said."""
        self.set_progress(0.0)

    @torch.no_grad()
    def collect(self) -> Rollout:
        """`num_steps` policy steps of every env."""
        found = self._gather((self._collect(), self.rollout.num_env_steps))
        self.episodes.add(in_order([ended for ended, _ in found])[:, 2:])
        self.global_step += sum(steps for _, steps in found)
        self.policy_steps += self.rollout.num_steps * self.share.total
        return self.rollout

    @abstractmethod
    def _collect(self) -> Table:
        """Fill the rollout; returns the episodes that ended."""

    @property
    def stacks(self) -> dict[str, int]:
        """Number of frames of each key that is stored as its newest frame.

        If actions are held, stacks are stored completely, because several frames pass between two actions.
        """
        if self.hold_schedule is not None and self.hold_schedule.active:
            return {}
        frames = {key: self.policy.spec.obs[key].frames for key in self.policy.keys}
        return {key: count for key, count in frames.items() if count > 1}

    def make_rollout(self, obs: dict[str, Tensor], *, num_steps: int, device: torch.device, **options: Any) -> Rollout:
        """Storage for this source's share of the envs, like the observations `[B, ...]`; `options` of `Rollout`."""
        count = self.share.count
        seen = as_stored({key: obs[key].to(device) for key in self.policy.keys})
        examples = [*seen.values(), self.policy.act(seen).action]
        *rows, action = [x[:1].expand(count, *x.shape[1:]) for x in examples]
        try:
            return Rollout(
                num_steps=num_steps,
                num_envs=count,
                obs=dict(zip(seen, rows, strict=True)),
                action=action,
                device=device,
                state_size=self.policy.state_size,
                stacks=self.stacks,
                skips=self.env.skips,
                **options,
            )
        except (MemoryError, RuntimeError) as error:
            raise UsageError(
                f"a rollout of num_steps {num_steps} x num_envs {count} does not fit into memory "
                f"({str(error).splitlines()[0]}): lower one of them."
            ) from None

    def draw_noise(self, out: Tensor) -> Tensor:
        """Standard normal noise `[T, n, A]` of this share, in `out`.

        It is drawn for all envs of the run: what an env is given does not depend on how the envs are divided.
        """
        if self.share.count == self.share.total:
            return out.normal_(generator=self.generator)
        noise = out.new_empty(out.shape[0], self.share.total, out.shape[2]).normal_(generator=self.generator)
        return out.copy_(noise[:, self.share.first : self.share.first + self.share.count])

    # What the trainer asks -------------------------------------------------------------------------------------------

    @property
    def hold(self) -> Hold:
        """For how many env steps actions are held now."""
        return self.env.hold

    def set_progress(self, progress: float) -> None:
        """Set the hold for this fraction of the run."""
        if self.hold_schedule is not None:
            self.env.hold = self.hold_schedule.at(progress)

    @abstractmethod
    def set_weights(self, name: str, weights: dict[str, Tensor]) -> None:
        """Hand the weights of a network that is part of the env to the envs."""

    @abstractmethod
    def call_envs(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the envs; see `VecEnv.call`. Of several ranks, each calls its own envs."""

    def metrics(self, progress: float) -> dict[str, float]:
        """Episode statistics, counters of the envs, numbers from their `info` and the hold."""
        reports = self._gather(self.report())
        means = mean_info([(info, count) for info, _, count in reports])
        self._note_unseen(means)
        counters: dict[str, int] = {}
        for _, counts, _ in reports:
            counters |= {name: counters.get(name, 0) + count for name, count in counts.items()}
        info = {f"info_{name}": mean for name, mean in means.items()}
        held = self.hold_schedule.metrics(progress, policy_steps=self.policy_steps) if self.hold_schedule else {}
        return {**self.episodes.metrics(), **counters, **info, **held}

    def report(self) -> tuple[dict[str, float], dict[str, int], int]:
        """Means of the envs' `info`, their counters, and the number of envs."""
        return self.env.take_info(), self.env.counters(), self.share.count

    def _note_unseen(self, means: Mapping[str, float]) -> None:
        self._unseen -= {name for name, mean in means.items() if not math.isnan(mean)}
        if self._unseen and self.episodes.count:
            names, self._unseen = sorted(self._unseen), set()
            log.warning("log_info: the info of the first episodes had no number %s.", " and no number ".join(names))

    def try_exactness(self) -> str | None:
        """Try on the envs whether a resume can be exact; None, or why it cannot."""
        self.obstacle = self.env.why_inexact()
        return self.obstacle

    @property
    def num_threads(self) -> int | None:
        """Threads of the batch physics; None for envs without."""
        return getattr(self.env, "num_threads", None)

    def text(self) -> str:
        """The envs, masks and the hold, in words."""
        held = self.hold_schedule.text() if self.hold_schedule else ""
        masked = "invalid actions masked, " if self.policy.spec.has_masks else ""
        return f"{self.share.total} envs ({type(self.env).__name__}), {masked}{held}"

    def wants_checkpoint(self) -> bool:
        """Whether something happened after which the run should be saved soon; once per event."""
        return False

    def close(self) -> None:
        """Close the envs; may be called twice."""
        self.env.close()

    # State -----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def get_envs(self) -> EnvState:
        """The state of the envs, copied."""

    @abstractmethod
    def set_envs(self, state: EnvState) -> bool:
        """Continue from a state; False if it does not fit."""

    @abstractmethod
    def reset_envs(self, seed: int) -> None:
        """Start new episodes, and with them a new recurrent state."""

    def get_state(self) -> dict[str, Any]:
        """The envs, the generator, counters, episode statistics, the next observation and the recurrent state."""
        envs = self.get_envs()
        return {
            "collector": {
                "generator": self.generator.get_state(),
                "global_step": self.global_step,
                "policy_steps": self.policy_steps,
                "episodes": self.episodes.get_state(),
                "obs": envs.obs,
                "recurrent_state": envs.recurrent,
            },
            "env": envs.env,
            "env_type": type(self.env).__name__,
        }

    def set_state(self, state: dict[str, Any], *, new_episodes_seed: int) -> list[str]:
        """Load what `get_state` returned; if the envs cannot be restored, start new episodes with this seed.

        Returns messages about what could not be restored.
        """
        ours, different = state["collector"], []
        if not restore_generator(self.generator, ours["generator"], otherwise=ours["global_step"]):
            different.append("the generators of another device do not fit this one")
        self.global_step = ours["global_step"]
        # Older checkpoints have decision_count and memory.
        self.policy_steps = ours["policy_steps"] if "policy_steps" in ours else ours["decision_count"]
        self.episodes.set_state(ours["episodes"])
        types = {type(self.env).__name__, state["env_type"]}
        fits = len(types) == 1 or types <= {"SyncVecEnv", "AsyncVecEnv"}  # both have the same envs
        recurrent = ours.get("recurrent_state", ours.get("memory"))
        saved = EnvState(ours["obs"], recurrent, state["env"])
        self.in_old_episodes = all(self._gather(fits and saved.env is not None and self.set_envs(saved)))
        if not self.in_old_episodes:
            self.reset_envs(new_episodes_seed + self.share.first)
        return different


def in_order(tables: list[Table]) -> Table:
    """All episodes, by time and then by env, as each table is already."""
    if len(tables) == 1:
        return tables[0]
    table = np.concatenate(tables)
    return table[np.lexsort((table[:, 1], table[:, 0]))]


def mean_info(parts: list[tuple[dict[str, float], int]]) -> dict[str, float]:
    """Means over several parts of the envs, by the number of envs of each that have a number."""
    means = {}
    for name in parts[0][0]:
        known = [(info[name], count) for info, count in parts if not math.isnan(info[name])]
        total = sum(count for _, count in known)
        means[name] = sum(x * count / total for x, count in known) if known else math.nan
    return means
