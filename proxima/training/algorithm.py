"""Base class of algorithms: a policy, a rollout source, and one or more learners, iterated together."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch
from torch import nn

from proxima.algo.learner import Learner
from proxima.algo.schedules import scheduled
from proxima.config import Config
from proxima.errors import UsageError
from proxima.nets.policy import Policy
from proxima.runs.layout import OPTIMIZER
from proxima.training.collector import Collector
from proxima.training.remote import RemoteSource
from proxima.training.seeding import stream_seed
from proxima.training.setup import Parts, build_policy
from proxima.training.source import Share, Source

P = ParamSpec("P")
R = TypeVar("R")
Files = dict[str, Any]
"""Contents of a checkpoint by file name; a function is called for its content when the file is written."""
Read = Callable[[str], Any | None]
"""Reads a file of a checkpoint; None if the checkpoint has no such file."""


class Algorithm(ABC):
    """Iterates, and gets and sets the state for checkpoints."""

    source: Source
    learners: dict[str, Learner]
    """By name; the first trains the policy. Each has its own optimizer file in the checkpoint."""
    phases: ClassVar[tuple[str, ...]] = ("collect", "update")
    """Phases of an iteration whose time is measured (`timed`)."""
    collects_whole_rollouts: ClassVar[bool] = True
    """Whether rollouts are long enough to be collected by other processes."""
    learns_on_ranks: ClassVar[bool] = True
    """Whether several ranks (torchrun) can learn together."""
    learns_with_skips: ClassVar[bool] = False
    """Whether the learners leave out rows that an env skipped (`VecEnv.skips`)."""

    def __init__(self, parts: Parts):
        self.parts, self.config, self.ranks = parts, parts.config, parts.ranks
        if self.ranks.exchanges and not self.learns_on_ranks:
            raise UsageError(
                f"{self.config.algorithm.algorithm} learns in one process: start it without torchrun, or use PPO."
            )
        self.policy = build_policy(parts.spec, parts.config, parts.device)
        self.networks: dict[str, nn.Module] = {}
        """Networks besides the policy, by name: each is `NAME.pt` in every checkpoint, and is handed to the envs."""
        self._seconds: dict[str, float] = {}

    def make_source(self, num_steps: int, *, behaviour: Policy | None = None, **options: Any) -> Source:
        """The rollout source of the policy and the envs; it compiles acting if that pays. `learners` must be set.

        `behaviour` acts in place of the policy, and is not compiled.
        """
        parts, seed = self.parts, self.config.run.seed
        compiles, workers = parts.compiles_actor and behaviour is None, self.config.cluster.rollout_workers
        if parts.env.skips and not self.learns_with_skips:
            raise UsageError(
                f"{self.config.env.env} starts episodes one step late (autoreset mode NEXT_STEP), which "
                f"{self.config.algorithm.algorithm} cannot learn from: use the mode SAME_STEP or DISABLED, or PPO."
            )
        options |= {"num_steps": num_steps, "device": parts.device, "share": parts.share, "gather": self.ranks.gather}
        options |= {"env_seed": seed, "seed": stream_seed(seed, "actions"), "hold_schedule": parts.hold_schedule}
        policy = behaviour or self.policy
        if not workers:
            return Collector(parts.env, policy, flat=self.learner.flat if compiles else None, **options)
        if not self.collects_whole_rollouts:
            raise UsageError(
                f"rollout_workers is {workers}, but {self.config.algorithm.algorithm} learns after every few steps, "
                "which is too often to ask other processes: leave it out, and use vec_env_mode async for slow envs."
            )
        own = Share(0, workers, workers).split(self.ranks.size)[self.ranks.rank].count
        return RemoteSource(parts.env, policy, self.config, num_workers=own, compiles=compiles, **options)

    def begin(self) -> None:
        """Called once before the first iteration of a run."""
        return

    def make_equal(self) -> None:
        """Make the weights, optimizers and statistics of all ranks equal to those of rank 0."""
        networks = [self.policy, *self.networks.values()]
        tensors = [x for network in networks for x in (*network.parameters(), *network.buffers())]
        tensors += [x for learner in self.learners.values() for x in (*learner.state, learner.learning_rate)]
        self.ranks.copy_first([x.detach() for x in tensors])

    def text(self) -> str:
        """A line about the run for its start; may be empty."""
        return ""

    @abstractmethod
    def iterate(self) -> dict[str, float]:
        """Collect and learn once; returns the metrics."""

    @property
    def learner(self) -> Learner:
        """The learner that trains the policy."""
        return next(iter(self.learners.values()))

    def set_progress(self, progress: float) -> None:
        """Apply schedules for this fraction of the run."""
        self.source.set_progress(progress)
        self.policy.set_progress(progress)
        for learner in self.learners.values():
            learner.set_progress(progress)

    def timed(self, phase: str, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `work` with the torch threads of its phase, and add the time it took to the phase's seconds."""
        threads = self.parts.threads.act if phase == "collect" else self.parts.threads.learn
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        start = time.perf_counter()
        result = work(*args, **kwargs)
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - start
        return result

    def take_seconds(self) -> dict[str, float]:
        """Seconds of each phase since the last call."""
        seconds, self._seconds = self._seconds, {}
        return {f"{phase}_seconds": seconds.get(phase, 0.0) for phase in self.phases}

    def stop_compiling_without_toolchain(self) -> None:
        """If acting could not be compiled for lack of a working compiler, do not try the learners."""
        if self.source.no_toolchain:
            for learner in self.learners.values():
                learner.epochs.compiled = False

    # State -----------------------------------------------------------------------------------------------------------

    def get_state(self) -> tuple[Files, dict[str, Any]]:
        """Copies of everything: the algorithm's own files, and its part of the training state."""
        files: Files = {}
        state = self.source.get_state()
        for name, learner in self.learners.items():
            saved = learner.state_dict()
            files[_optimizer_file(name)] = saved.pop("optimizer")
            state[name] = saved
        return files, state

    def set_state(self, read: Read, state: dict[str, Any], *, new_episodes_seed: int) -> list[str]:
        """Load what `get_state` returned. Returns messages about what could not be restored."""
        different = self.source.set_state(state, new_episodes_seed=new_episodes_seed)
        for name, learner in self.learners.items():
            saved: dict[str, Any] = {"optimizer": read(_optimizer_file(name)), **state[name]}
            if not learner.load_state_dict(saved):
                different.append("the generators of another device do not fit this one")
        return list(dict.fromkeys(different))

    def weights_changed(self, other: Mapping[str, Any]) -> list[str]:
        """Called when a run starts with weights of another one, whose training state is `other` (empty if unknown).

        Returns what of it starts fresh.
        """
        found = [learner.weights_changed(other.get(name, {})) for name, learner in self.learners.items()]
        return [what for fresh in found for what in fresh]

    def follow_changes(self, before: Config) -> None:
        """Apply options that a resume changed, where the loaded state is from the options `before`."""
        for learner in self.learners.values():
            learner.follow_changes(before)

    def changed_by_resume(self, progress: float) -> list[str]:
        """Warnings about schedules that a longer run sets back; to be called before the first iteration."""
        optimizer, before = self.config.optimizer, float(self.learner.learning_rate)
        if optimizer.lr_schedule not in ("linear", "cosine") or self.learner.schedule_ended:
            return []
        now = scheduled(optimizer.lr_schedule, optimizer.learning_rate, progress)
        if now <= before * (1.0 + 1e-6):
            return []
        return [
            f"The learning rate goes from {before:.3g} to {now:.3g}: it is {optimizer.lr_schedule} over "
            f"total_timesteps. Give learning_rate {before * optimizer.learning_rate / now:.3g} to keep the old one."
        ]


def _optimizer_file(learner: str) -> str:
    return OPTIMIZER if learner == "learner" else f"{learner}.opt.pt"
