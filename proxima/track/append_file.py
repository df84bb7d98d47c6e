"""A file that is only ever appended to, in whole records, and that outlives a full disk."""

import os
from collections import deque
from pathlib import Path

MAX_PENDING_BYTES = 64 * 2**20


class AppendFile:
    """Appends records; those that the disk does not take are kept in memory and written with a later one.

    A file that somebody deleted in the meantime is begun again.
    """

    def __init__(self, path: Path, *, header: bytes = b""):
        """Open the file, or make it; an empty one begins with `header`."""
        self._path, self._header = path, header
        self._descriptor: int | None = None
        self._pending: deque[bytes] = deque()
        self._written = 0  # bytes of the first pending record that are in the file already
        self._flush()

    def append(self, record: bytes) -> None:
        """Write a record, after all that could not be written before.

        Raises:
            OSError: the disk did not take everything; what is left is tried again with the next record.
        """
        if self.pending_bytes + len(record) > MAX_PENDING_BYTES:
            raise OSError(f"{self.pending_bytes:,} bytes wait to be written already, the newest record is lost")
        self._pending.append(record)
        self._flush()

    @property
    def pending_bytes(self) -> int:
        """Size of what could not be written yet."""
        return sum(map(len, self._pending)) - self._written

    def close(self) -> None:
        """Write what is pending and close; an OSError says that something is lost."""
        try:
            self._flush()
        finally:
            self._release()

    def _flush(self) -> None:
        if self._descriptor is not None and not os.fstat(self._descriptor).st_nlink:  # it has been deleted
            self._release()
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            if self._header and not os.fstat(self._descriptor).st_size:
                self._pending.appendleft(self._header)
        while self._pending:
            self._written += os.write(self._descriptor, self._pending[0][self._written :])
            if self._written == len(self._pending[0]):
                self._pending.popleft()
                self._written = 0

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._written = None, 0
