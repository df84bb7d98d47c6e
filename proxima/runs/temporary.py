"""Temporary folders of checkpoints being written or deleted, and those that killed processes left behind."""

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from proxima.runs.layout import entries

# The end of a checkpoint's name and an id of the machine; older versions had the complete name and no id.
_TEMPORARY = re.compile(r"\.(?:.+-)?\d+-\d{4}_\d{6}(?:\.([0-9a-f]{8}))?\.tmp$")
_ABANDONED_SECONDS = 3600.0
"""After this long without a write, a folder whose lock is unreliable belongs to a dead process."""


def temporary_name(checkpoint: Path) -> str:
    """The hidden name of an incomplete checkpoint, without the run's name, which may be as long as a name can be."""
    _, iteration, stamp = checkpoint.name.rsplit("-", 2)
    return f".{iteration}-{stamp}.{_machine()}.tmp"


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Make a folder and lock it; the system releases the lock when the process ends, however it ends."""
    while True:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _try_lock(descriptor)
            if _is_still_there(path, descriptor):
                yield
                return
        finally:
            os.close(descriptor)


def delete(checkpoint: Path) -> None:
    """Rename a checkpoint, then delete it: other processes see a complete checkpoint or none."""
    with contextlib.suppress(OSError):
        checkpoint = checkpoint.rename(checkpoint.with_name(temporary_name(checkpoint)))
    shutil.rmtree(checkpoint, ignore_errors=True)


def sweep(folder: Path) -> int:
    """Delete incomplete checkpoints that killed processes left in the runs of `<runs_dir>/<name>`; returns how many.

    A process that writes holds a lock on its temporary folder. Where locks are unreliable (the folder was made on
    another machine, or the file system has no locks), it is deleted after an hour without a write.
    """
    count = 0
    for run_dir in entries(folder):
        for path in entries(run_dir):
            if match := _TEMPORARY.match(path.name):
                with contextlib.suppress(OSError):  # deleted by another process, or no permission
                    count += _sweep_one(path, same_machine=match[1] == _machine())
    return count


def _sweep_one(path: Path, *, same_machine: bool) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        locked = _try_lock(descriptor)
        if locked is False:
            return False
        if locked is None or not same_machine:
            last_write = max(file.lstat().st_mtime for file in (path, *path.iterdir()))
            if time.time() - last_write < _ABANDONED_SECONDS:
                return False
        shutil.rmtree(path)
        return True
    finally:
        os.close(descriptor)


def _is_still_there(path: Path, descriptor: int) -> bool:
    """Whether the folder is the one that was opened: another process may sweep it before it is locked."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _try_lock(descriptor: int) -> bool | None:
    """Whether the lock was acquired; None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _machine() -> str:
    """An id (8 hex digits) of this machine since its last boot: only within it are locks reliable."""
    try:
        identity = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        identity = platform.node()
    return hashlib.sha256(identity.encode()).hexdigest()[:8]
