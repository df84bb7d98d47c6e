"""Checkpoints of runs: what one holds, which one a folder stands for, and which ones a run keeps.

Nothing executes on load. What goes into a checkpoint is decided by `training/saving.py`.
"""

import contextlib
import logging
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from proxima.config import Config, config_from_dict
from proxima.errors import UsageError
from proxima.runs.files import check_files, explained, is_intact, list_checkpoints, read, read_metadata, save
from proxima.runs.layout import AGENT, CHECKPOINT, METADATA, TRAINING_STATE, entries, is_file, read_lineage
from proxima.runs.temporary import delete, sweep

__all__ = ["Checkpoint", "find", "furthest_resumable", "make_room", "newest_complete", "prune"]
__all__ += ["explained", "list_checkpoints", "read", "read_metadata", "save", "sweep"]

log = logging.getLogger("proxima")

_TRIES = 100
"""How often to look again if a run deletes checkpoints while they are read."""


class Checkpoint:
    """One checkpoint: its metadata, and on request its files, each checked against its checksum.

    All of it raises a UsageError for a damaged or deleted checkpoint. Checksums do not prove that Proxima wrote it:
    wrap the use of its contents in `explained`.

    Example:
        >>> checkpoint = Checkpoint(find("runs/HalfCheetah-v5"))  # doctest: +SKIP
        >>> checkpoint.config.env.env, checkpoint.global_step  # doctest: +SKIP
        ('HalfCheetah-v5', 1000000)
    """

    def __init__(self, path: str | Path):
        """`path` is the checkpoint's folder; `find` returns that of a run."""
        self.path = Path(path)
        self.metadata = read_metadata(self.path)
        """Contents of `metadata.yaml`, its format and its seal checked."""
        self.spec: dict[str, Any] = self.metadata["spec"]
        """Observation and action of the policy, for `Spec.from_dict`."""
        self.hold: dict[str, Any] = self.metadata.get("action_hold", {})
        """How long actions were held when it was saved: arguments of `Hold`."""
        self.iteration: int = self.metadata["iteration"]
        self.global_step: int = self.metadata["global_step"]
        self.lineage: list[str] = self.metadata["lineage"]
        """The checkpoints that its run was resumed from, oldest first."""
        episode_return, saved_at = (self.metadata.get(name) for name in ("episode_return", "saved_at"))
        self.episode_return = episode_return if isinstance(episode_return, float) else math.nan
        """Mean over the last 100 training episodes; NaN if unknown."""
        self.saved_at = saved_at if isinstance(saved_at, float) and math.isfinite(saved_at) else -math.inf
        self.run_dir = self.path.resolve().parent if self.path.name in ("", "..") else self.path.parent

    @property
    def config(self) -> Config:
        """The options of its run: a new object each time, which the caller may change."""
        return config_from_dict(self.metadata["config"], source=str(self.path))

    @property
    def weights(self) -> dict[Any, Any]:
        """The policy's parameters and buffers by name, read from the file."""
        state = self.state(AGENT)
        if not isinstance(state, dict):
            raise ValueError(f"{AGENT} holds a {type(state).__name__}, not weights by name")
        # Older checkpoints call the recurrent layers memory.
        old, new = r"^(actor|critic)_trunk\.memory\.", r"\1_trunk.rnn."
        return {re.sub(old, new, name) if isinstance(name, str) else name: x for name, x in state.items()}

    def has(self, file_name: str) -> bool:
        """Whether it was saved with this file."""
        return file_name in self.metadata["checksums"]

    def state(self, file_name: str) -> Any:
        """Contents of one of its files, loaded without executing anything."""
        return read(self.path, file_name, self.metadata)


def find(path: str | Path, *, best: bool = False) -> Path:
    """The checkpoint `path` itself, or the newest complete one of a run folder, or of the newest run of a name.

    Within a run the highest iteration is the newest. The newest of several runs is the one that saved last, but a
    resumed run always comes after the run it was resumed from. With `best`, the checkpoint of that run with the best
    return.
    """
    path = Path(path)
    try:
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise UsageError(f"{path} {what}: give a checkpoint folder or a run folder.")
    except OSError as error:  # no permission, or a name that is too long
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from None
    if is_file(path / METADATA):
        return path
    for _ in range(_TRIES):
        found = newest_complete(path, *entries(path))
        if found is None:
            lineage: list[str] = []
            with contextlib.suppress(UsageError):
                lineage = read_lineage(path)
            hint = f"use {lineage[-1]}, which it was resumed from" if lineage else "give the folder of a run that saved"
            raise UsageError(f"{path} holds no complete checkpoint: {hint}.")
        complete = [other for other in list_checkpoints(found.parent) if is_intact(other)] if best else []
        found = _best(complete) or found
        if is_file(found / METADATA):  # else its run has deleted it, and has a newer one
            return found
    raise UsageError(f"the checkpoints in {path} are deleted faster than they can be read: try again.")


def newest_complete(*run_dirs: Path) -> Path | None:
    """Of the newest complete checkpoint of each run the one saved last; see `find` for resumed runs."""
    newest = _newest_of_each(run_dirs, resumable=False)
    return max(newest, key=lambda found: found.saved_at).path if newest else None


def furthest_resumable(*run_dirs: Path) -> Path | None:
    """Of the newest complete and resumable checkpoint of each run, the one with the most env steps.

    A resumed run replaces the run it was resumed from, even if that one has more steps: somebody went back on purpose.
    The clock, which may have been set back, decides only between equals.
    """
    newest = _newest_of_each(run_dirs, resumable=True)
    furthest = max(newest, key=lambda found: (found.global_step, found.iteration, found.saved_at), default=None)
    return None if furthest is None else furthest.path


def prune(run_dir: Path, *, keep: int) -> None:
    """Delete all checkpoints of a run but the newest `keep` and the best: by evaluation, else by training return."""
    for path in _spare(run_dir, keep=keep):
        delete(path)


def make_room(run_dir: Path) -> bool:
    """Delete the oldest checkpoint of a run that is neither the newest nor the best; False if there is none."""
    spare = _spare(run_dir, keep=1)
    if spare:
        delete(spare[0])
    return bool(spare)


def _spare(run_dir: Path, *, keep: int) -> list[Path]:
    paths = list_checkpoints(run_dir)
    best = _best(paths)
    return [path for path in paths[:-keep] if path != best]


def _newest_of_each(run_dirs: Iterable[Path], *, resumable: bool) -> list[Checkpoint]:
    """The newest complete checkpoint of each run, without the runs that others of them were resumed from."""
    newest = [found for run_dir in run_dirs if (found := _newest_of_run(run_dir, resumable=resumable))]
    replaced = {_run_of(Path(parent)) for found in newest for parent in found.lineage}
    return [found for found in newest if _run_of(found.path) not in replaced] or newest


def _run_of(path: Path) -> tuple[str, str]:
    """Identifies a checkpoint's run by the last parts of the path: runs may have moved since a lineage was written."""
    match = CHECKPOINT.match(path.name)
    return path.parent.name, match[1] if match else ""


def _newest_of_run(run_dir: Path, *, resumable: bool) -> Checkpoint | None:
    """Repeated until the folder was the same before and after.

    A run that saves one checkpoint and deletes another in between could hide both from a single look.
    """
    found = None
    for _ in range(_TRIES):
        before = _folders(run_dir)
        found = _newest_listed(run_dir, resumable=resumable)
        if _folders(run_dir) == before:
            break
    return found


def _folders(run_dir: Path) -> set[str]:
    return {path.name for path in entries(run_dir) if CHECKPOINT.match(path.name)}


def _newest_listed(run_dir: Path, *, resumable: bool) -> Checkpoint | None:
    for path in reversed(list_checkpoints(run_dir)):
        try:
            found = Checkpoint(path)
            check_files(path, found.metadata)
        except UsageError as error:
            if is_file(path / METADATA):  # else its run has deleted it meanwhile
                log.warning("%s: passed over.", str(error).rstrip("."))
            continue
        if not resumable or found.has(TRAINING_STATE):
            return found
    return None


def _best(paths: list[Path]) -> Path | None:
    """By evaluation, else by training return; None if no return is known."""
    returns = {path: _returns(path) for path in paths}
    best = max(paths, key=lambda path: returns[path], default=None)
    return None if best is None or max(returns[best]) == -math.inf else best


def _returns(path: Path) -> list[float]:
    metadata: dict[str, Any] = {}
    with contextlib.suppress(UsageError):
        metadata = read_metadata(path)
    values = (metadata.get("eval_return"), metadata.get("episode_return"))
    return [x if isinstance(x, (int, float)) and x == x else -math.inf for x in values]
