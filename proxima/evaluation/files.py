"""Files that are either complete or absent."""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from proxima.errors import UsageError


@contextlib.contextmanager
def complete_file(target: Path) -> Iterator[Path]:
    """An empty temporary file beside `target`, which replaces it when the block ends without an error.

    It is created first, so that a folder without write permission is reported before the work in the block.

    Raises:
        UsageError: the target cannot be written, or is something other than a regular file.
    """
    try:
        _check_replaceable(target)
        temporary = target.with_name(f".{os.getpid()}-{secrets.token_hex(4)}.tmp")
        temporary.touch(exist_ok=False)
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            _check_replaceable(target)  # again: it may have changed since
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {target} ({error.strerror or error}): choose another place.") from error


def _check_replaceable(target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        mode = target.lstat().st_mode
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "a symbolic link" if stat.S_ISLNK(mode) else "a special file"
            raise UsageError(f"{target} is {what}, and only a regular file is replaced: choose another name.")
