"""The result of a run."""

from dataclasses import dataclass
from pathlib import Path

from proxima.config import Config
from proxima.nets.policy import Policy
from proxima.text import number


@dataclass(repr=False)
class TrainResult:
    """The result of a run."""

    run_dir: Path
    checkpoint: Path | None
    episode_return: float
    """Mean over the last 100 training episodes."""
    global_step: int
    policy: Policy
    config: Config

    def __repr__(self) -> str:
        return (
            f"TrainResult({self.config.env.env}, {self.global_step:,} steps, return {number(self.episode_return)}, "
            f"run {self.run_dir})"
        )
