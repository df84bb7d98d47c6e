"""Base class of algorithms: a policy, a rollout source, and one or more learners, iterated together."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from proxima.algo.learner import Learner
from proxima.algo.schedules import scheduled
from proxima.config import Config
from proxima.nets.policy import Policy
from proxima.runs.layout import OPTIMIZER
from proxima.training.collector import Collector
from proxima.training.setup import Parts, Threads

P = ParamSpec("P")
R = TypeVar("R")
Files = dict[str, Any]
"""What a checkpoint holds, by file name; a function is asked for its content when the file is written."""
Read = Callable[[str], Any | None]
"""Gives the content of a file of a checkpoint, or None where it has no such file."""


class Algorithm(ABC):
    """One iteration after the other, and all that a checkpoint keeps of them."""

    policy: Policy
    source: Collector
    learners: dict[str, Learner]
    """By name; the first trains the policy. Each has its own optimizer file in the checkpoint."""
    phases: tuple[str, ...]
    """What an iteration spends its time on."""

    def __init__(self, parts: Parts):
        self.config: Config = parts.config
        self.device: torch.device = parts.device
        self.threads: Threads = parts.threads
        self._seconds: dict[str, float] = {}

    @abstractmethod
    def iterate(self) -> dict[str, float]:
        """Collect and learn once; the metrics of it."""

    @property
    def learner(self) -> Learner:
        """The one that trains the policy."""
        return next(iter(self.learners.values()))

    def set_progress(self, progress: float) -> None:
        """Set what follows a schedule for this share of the run."""
        self.source.set_progress(progress)
        for learner in self.learners.values():
            learner.set_progress(progress)

    def timed(self, phase: str, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do the work, with the threads that it is given, and add what it took to the phase's seconds."""
        threads = self.threads.act if phase == "collect" else self.threads.learn
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        start = time.perf_counter()
        result = work(*args, **kwargs)
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - start
        return result

    def take_seconds(self) -> dict[str, float]:
        """Seconds of each phase since this was last asked."""
        seconds, self._seconds = self._seconds, {}
        return {f"{phase}_seconds": seconds.get(phase, 0.0) for phase in self.phases}

    def stop_compiling_without_toolchain(self) -> None:
        """Where acting could not be compiled for want of a compiler, do not try the learners."""
        if self.source.no_toolchain:
            for learner in self.learners.values():
                learner.give_up_compiling()

    # State -----------------------------------------------------------------------------------------------------------

    def get_state(self) -> tuple[Files, dict[str, Any]]:
        """Files of their own, and what goes into the training state, copied."""
        files: Files = {}
        state = self.source.get_state()
        for name, learner in self.learners.items():
            saved = learner.state_dict()
            files[optimizer_file(name)] = saved.pop("optimizer")
            state[name] = saved
        return files, state

    def set_state(self, read: Read, state: dict[str, Any], *, new_episodes_seed: int) -> list[str]:
        """Put back what `get_state` gave. Returns what is not as it was, in words."""
        different = self.source.set_state(state, new_episodes_seed=new_episodes_seed)
        for name, learner in self.learners.items():
            saved: dict[str, Any] = {"optimizer": read(optimizer_file(name)), **state[name]}
            if not learner.load_state_dict(saved):
                different.append("the generators of another device do not fit this one")
        return list(dict.fromkeys(different))

    def follow_changes(self, before: Config) -> None:
        """Let options that a resume changed take the place of what the learners remember of the old ones."""
        for learner in self.learners.values():
            learner.follow_changes(before)

    def changed_by_resume(self, progress: float) -> list[str]:
        """What to say about schedules that go back where a run is longer now; asked before anything is learned."""
        optimizer, before = self.config.optimizer, float(self.learner.learning_rate)
        if optimizer.lr_schedule not in ("linear", "cosine"):
            return []
        now = scheduled(optimizer.lr_schedule, optimizer.learning_rate, progress)
        if now <= before * (1.0 + 1e-6):
            return []
        return [
            f"The learning rate goes from {before:.3g} to {now:.3g}: it is {optimizer.lr_schedule} over "
            f"total_timesteps. Give learning_rate {before * optimizer.learning_rate / now:.3g} to go on where it was."
        ]


def optimizer_file(learner: str) -> str:
    """The checkpoint's file with a learner's optimizer."""
    return OPTIMIZER if learner == "learner" else f"{learner}.opt.pt"
