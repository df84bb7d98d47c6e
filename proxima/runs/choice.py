"""Which checkpoint a folder stands for, and which ones a run keeps."""

import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from proxima.errors import UsageError
from proxima.runs.files import damage, list_checkpoints, read_metadata, read_whole_metadata
from proxima.runs.layout import CHECKPOINT, METADATA, TRAINING_STATE, entries, is_file
from proxima.runs.lineage import read_lineage
from proxima.runs.temporary import delete

log = logging.getLogger("proxima")

_TRIES = 100
"""How often to look again where a run deletes checkpoints while they are read."""


def find(path: str | Path, *, best: bool = False) -> Path:
    """The checkpoint that `path` means: itself, or the newest whole one of a run, or of the newest run of a name.

    Within a run the highest iteration is the newest. Of several runs it is the one that saved last, but a resumed run
    always comes after the run it was resumed from. With `best`, the checkpoint of that run with the best return.
    """
    path = Path(path)
    try:
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise UsageError(f"{path} {what}: give a checkpoint folder or a run folder.")
    except OSError as error:  # no right to look there, a name that is too long
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from None
    if is_file(path / METADATA):
        return path
    for _ in range(_TRIES):
        found = newest_whole(path, *entries(path))
        if found is None:
            parent = _resumed_from(path)
            hint = (
                f"; it was resumed from {parent}: use that." if parent else ": give the folder of a run that has saved."
            )
            raise UsageError(f"{path} holds no whole checkpoint{hint}")
        whole = [other for other in list_checkpoints(found.parent) if not damage(other)] if best else []
        found = _best(whole) or found
        if is_file(found / METADATA):  # else its run has deleted it, and has a newer one
            return found
    raise UsageError(f"the checkpoints in {path} are deleted faster than they can be read: try again.")


def newest_whole(*run_dirs: Path) -> Path | None:
    """Of the newest whole checkpoint of each run the one saved last; resumed runs come after those they came from."""
    newest = _newest_of_each(run_dirs, resumable=False)
    return max(newest, key=lambda found: found.saved_at).path if newest else None


def furthest_resumable(*run_dirs: Path) -> Path | None:
    """Of the newest whole checkpoint of each run that a resume can start from, the one with the most env steps.

    A run replaces the run it was resumed from, even where that one has more steps: somebody went back on purpose. The
    clock, which may have been set back, decides only between equals.
    """
    newest = _newest_of_each(run_dirs, resumable=True)
    return max(newest, key=lambda found: found.progress).path if newest else None


def prune(run_dir: Path, *, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints of a run and the best: as evaluated, else as trained."""
    paths = list_checkpoints(run_dir)
    best = _best(paths)
    for path in paths[:-keep]:
        if path != best:
            delete(path)


def make_room(run_dir: Path) -> bool:
    """Delete the oldest checkpoint of a run, but never the newest or the best; False if there is none to spare."""
    paths = list_checkpoints(run_dir)
    best = _best(paths)
    spare = [path for path in paths[:-1] if path != best]
    if not spare:
        return False
    delete(spare[0])
    return True


class _Found(NamedTuple):
    """A whole checkpoint."""

    path: Path
    metadata: dict[str, Any]

    @property
    def saved_at(self) -> float:
        value = self.metadata.get("saved_at")
        return value if isinstance(value, float) and math.isfinite(value) else -math.inf

    @property
    def progress(self) -> tuple[int, int, float]:
        return self.metadata["global_step"], self.metadata["iteration"], self.saved_at


def _newest_of_each(run_dirs: Iterable[Path], *, resumable: bool) -> list[_Found]:
    """The newest whole checkpoint of each run, without the runs that others of them were resumed from."""
    newest = [found for run_dir in run_dirs if (found := _newest_of_run(run_dir, resumable=resumable))]
    replaced = {_run_of(Path(parent)) for found in newest for parent in found.metadata["lineage"]}
    return [found for found in newest if _run_of(found.path) not in replaced] or newest


def _run_of(checkpoint: Path) -> tuple[str, str]:
    """A checkpoint's run, by the last parts of the path: the runs may have moved since a lineage was written."""
    match = CHECKPOINT.match(checkpoint.name)
    return checkpoint.parent.name, match[1] if match else ""


def _newest_of_run(run_dir: Path, *, resumable: bool) -> _Found | None:
    """Looked for again until the folder was the same before and after.

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


def _newest_listed(run_dir: Path, *, resumable: bool) -> _Found | None:
    for path in reversed(list_checkpoints(run_dir)):
        try:
            found = _Found(path, read_whole_metadata(path))
        except UsageError as error:
            if is_file(path / METADATA):  # else its run has deleted it meanwhile
                log.warning("%s: passed over.", str(error).rstrip("."))
            continue
        if not resumable or TRAINING_STATE in found.metadata["checksums"]:
            return found
    return None


def _best(paths: list[Path]) -> Path | None:
    """As evaluated, else as trained; None where no return is known."""
    returns = {path: _returns(path) for path in paths}
    best = max(paths, key=lambda path: returns[path], default=None)
    return None if best is None or max(returns[best]) == -math.inf else best


def _returns(checkpoint: Path) -> tuple[float, float]:
    try:
        metadata = read_metadata(checkpoint)
    except UsageError:
        metadata = {}
    return _known(metadata.get("eval_return")), _known(metadata.get("episode_return"))


def _known(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and value == value  # not NaN
    return value if is_number else -math.inf


def _resumed_from(run_dir: Path) -> str | None:
    try:
        lineage = read_lineage(run_dir)
    except UsageError:
        lineage = []
    return lineage[-1] if lineage else None
