"""Which checkpoint a run continues from, and with which options."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxima.config import Config, changes_at_resume, load_config
from proxima.errors import UsageError
from proxima.own_parts import only_in_python
from proxima.runs import checkpoint
from proxima.runs.checkpoint import Checkpoint
from proxima.runs.layout import entries

log = logging.getLogger("proxima")


def resumed_config(source: Path, path: str | Path | None, overrides: Mapping[str, Any]) -> Config:
    """The options of a checkpoint, changed by a file and by flags; changes are logged, or refused if not allowed."""
    saved = Checkpoint(source)
    with checkpoint.explained(source):
        before, after = saved.config, saved.config
    after = load_config(path, overrides, base=after)
    if "runs_dir" not in {name.replace("-", "_") for name in overrides} and len(source.parents) > 2:
        after.run.runs_dir = str(source.parents[2])  # next to its own run, which may have been moved
    refused: list[str] = []
    changed: list[str] = []
    for option, old, new in changes_at_resume(before, after):
        found_again = option.name == "env" and only_in_python(old)  # the same env, now by a name that can be imported
        is_fixed = option.resume == "fixed" and not found_again
        (refused if is_fixed else changed).append(f"{option.name} {old} -> {new}")
    if refused:
        raise UsageError(
            f"a resume cannot change {', '.join(refused)} of {source}: leave that out, or start a new run."
        )
    if changed:
        log.warning("Options that differ from the checkpoint's: %s.", ", ".join(changed))
    return after


def newest_of_name(config: Config) -> Path | None:
    """The checkpoint that `--auto-resume` continues from: the resumable one with the most steps of all runs of a name.

    A run replaces the one it was resumed from. Dates are not used, because a clock that was set back would silently
    lose progress.
    """
    folder = Path(config.run.runs_dir) / config.name
    return checkpoint.furthest_resumable(*entries(folder))
