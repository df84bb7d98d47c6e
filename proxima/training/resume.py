"""Which checkpoint a run goes on from, and with which options."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxima.config import Config, changes_at_resume, load_config
from proxima.errors import UsageError
from proxima.runs import checkpoint
from proxima.runs.checkpoint import Checkpoint

log = logging.getLogger("proxima")


def resumed_config(source: Path, path: str | Path | None, overrides: Mapping[str, Any]) -> Config:
    """The options of a checkpoint, changed by a file and by flags; what differs is reported, or refused."""
    saved = Checkpoint(source)
    with checkpoint.explained(source):
        before, after = saved.config, saved.config
    after = load_config(path, overrides, base=after)
    if "runs_dir" not in {name.replace("-", "_") for name in overrides} and len(source.parents) > 2:
        after.run.runs_dir = str(source.parents[2])  # beside its own run, wherever that has been moved to
    refused: list[str] = []
    changed: list[str] = []
    for option, old, new in changes_at_resume(before, after):
        (refused if option.resume == "fixed" else changed).append(f"{option.name} {old} -> {new}")
    if refused:
        raise UsageError(
            f"a resume cannot change {', '.join(refused)} of {source}: leave that out, or start a new run."
        )
    if changed:
        log.warning("Options that differ from the checkpoint's: %s.", ", ".join(changed))
    return after


def is_complete(source: Path, config: Config) -> bool:
    """Whether a checkpoint already has all the steps that are asked for."""
    return Checkpoint(source).global_step >= config.run.total_timesteps


def check_incomplete(source: Path, config: Config) -> None:
    """A UsageError where there is nothing left to train."""
    if is_complete(source, config):
        done = Checkpoint(source).global_step
        raise UsageError(
            f"{source} already has {done:,} of total_timesteps {config.run.total_timesteps:,}: raise "
            "--total-timesteps to train on."
        )


def newest_of_name(config: Config) -> Path | None:
    """Where `--auto-resume` goes on: the resumable checkpoint with the most steps of all runs of this name.

    A run replaces the one it was resumed from. Neither clocks nor the dates in folder names are looked at, as a clock
    that is set back would silently lose progress.
    """
    folder = Path(config.run.runs_dir) / config.name
    return checkpoint.furthest_resumable(*checkpoint.entries(folder))
