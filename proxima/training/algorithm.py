"""What a run iterates, whichever algorithm it is: a policy, what collects for it, and what teaches it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from proxima.algo.schedules import scheduled
from proxima.config import Config
from proxima.envs.contract import VecEnv
from proxima.nets.make import Agent
from proxima.training.collector import Collector
from proxima.training.setup import Threads

P = ParamSpec("P")
R = TypeVar("R")
Files = dict[str, Any]
"""What a checkpoint holds, by file name; a function is asked for its content when the file is written."""


class Algorithm(ABC):
    """One iteration after the other, and all that a checkpoint keeps of them."""

    policy: Agent
    learner: Any
    collector: Collector
    phases: tuple[str, ...]
    """What an iteration spends its time on."""

    def __init__(self, env: VecEnv, config: Config, *, device: torch.device, threads: Threads):
        self.env, self.config, self.device, self.threads = env, config, device, threads
        self._seconds: dict[str, float] = {}

    @abstractmethod
    def iterate(self) -> dict[str, float]:
        """Collect and learn once; what came of it."""

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

    def get_state(self) -> tuple[Files, dict[str, Any]]:
        """Files of their own, and what goes into the training state, copied."""
        learner = self.learner.state_dict()
        return {"optimizer.pt": learner.pop("optimizer")}, {
            "learner": learner,
            "collector": self.collector.get_state(),
        }

    def set_state(
        self, read: Callable[[str], Any | None], state: dict[str, Any], *, new_episodes_seed: int | None
    ) -> list[str]:
        """Put back what `get_state` gave; with a seed, in new episodes. Returns what is not as it was, in words.

        `read` gives the content of a file of the checkpoint, or None where it has no such file.
        """
        same = self.learner.load_state_dict({"optimizer": read("optimizer.pt"), **state["learner"]})
        same &= self.collector.set_state(state["collector"], new_episodes_seed=new_episodes_seed)
        return [] if same else ["the generators of another device do not fit this one"]
