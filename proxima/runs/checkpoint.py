"""Checkpoints on disk: whole or not there, and nothing executes on load.

What is in them is decided by the trainer; who reads them, by their users. The functions act on folders, `Checkpoint`
is what one of them says.
"""

import math
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from proxima.config import Config, config_from_dict
from proxima.runs.choice import find, furthest_resumable, make_room, newest_whole, prune
from proxima.runs.files import FORMAT_VERSION, explained, list_checkpoints, read, read_metadata, save
from proxima.runs.layout import AGENT, entries
from proxima.runs.lineage import write_lineage
from proxima.runs.temporary import sweep


class Checkpoint:
    """One checkpoint. Its metadata is read and checked once, its files when they are asked for.

    Any of it may raise a UsageError: a checkpoint can be damaged, deleted by its run, or made by anybody. What its
    content raises beyond that, `explained` turns into one line.

    Example:
        >>> checkpoint = Checkpoint(find("runs/HalfCheetah-v5"))  # doctest: +SKIP
        >>> checkpoint.config.env.env, checkpoint.global_step  # doctest: +SKIP
        ('HalfCheetah-v5', 1000000)
    """

    def __init__(self, path: str | Path):
        """`path` is its folder; `find` gives that of a run."""
        self.path = Path(path)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """All of `metadata.yaml`, its format and its seal checked."""
        return read_metadata(self.path)

    @property
    def config(self) -> Config:
        """The options of its run: a new object each time, which the caller may change."""
        return config_from_dict(self.metadata["config"], source=str(self.path))

    @property
    def spec(self) -> dict[str, Any]:
        """The observation and the action of its policy, for `Spec.from_dict`."""
        return self.metadata["spec"]

    @property
    def hold(self) -> dict[str, Any]:
        """For how many env steps each action was held when it was written, for `Hold`."""
        return self.metadata.get("action_hold", {})

    @property
    def iteration(self) -> int:
        """Iterations completed."""
        return self.metadata["iteration"]

    @property
    def global_step(self) -> int:
        """Env steps taken."""
        return self.metadata["global_step"]

    @property
    def episode_return(self) -> float:
        """Mean over the last 100 training episodes; NaN where it is not known."""
        value = self.metadata.get("episode_return")
        return value if isinstance(value, float) else math.nan

    @property
    def lineage(self) -> list[str]:
        """The checkpoints that its run descends from, the first run's first."""
        return self.metadata["lineage"]

    @property
    def run_dir(self) -> Path:
        """The folder of its run, wherever the path is seen from."""
        return self.path.resolve().parent if self.path.name in ("", "..") else self.path.parent

    @property
    def weights(self) -> dict[Any, Any]:
        """The policy's parameters and buffers by name; unchecked otherwise."""
        state = self.state(AGENT)
        if not isinstance(state, dict):
            raise ValueError(f"{AGENT} holds a {type(state).__name__}, not weights by name")
        # Older checkpoints call the recurrent layers memory.
        return {re.sub(r"\bmemory\.", "rnn.", name) if isinstance(name, str) else name: x for name, x in state.items()}

    def has(self, file_name: str) -> bool:
        """Whether it was saved with this file."""
        return file_name in self.metadata["checksums"]

    def state(self, file_name: str) -> Any:
        """What one of its files holds, checked against its checksum and loaded without executing anything."""
        return read(self.path, file_name, self.metadata)


__all__ = [
    "FORMAT_VERSION",
    "Checkpoint",
    "entries",
    "explained",
    "find",
    "furthest_resumable",
    "list_checkpoints",
    "make_room",
    "newest_whole",
    "prune",
    "read",
    "read_metadata",
    "save",
    "sweep",
    "write_lineage",
]
