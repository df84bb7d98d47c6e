"""An append-only file of complete records that survives a full disk."""

import os
from collections import deque
from pathlib import Path

MAX_PENDING_BYTES = 64 * 2**20


class AppendFile:
    """Appends records; those that cannot be written are kept in memory and written with a later one.

    If the file is deleted in the meantime, it is created again.
    """

    def __init__(self, path: Path, *, header: bytes = b""):
        """Open or create the file; an empty one begins with `header`."""
        self._path, self._header = path, header
        self._descriptor: int | None = None
        self._pending: deque[bytes] = deque()
        self._written = 0  # bytes of the first pending record that are in the file already
        self._flush()

    def append(self, record: bytes) -> None:
        """Write a record, after those that could not be written before.

        Raises:
            OSError: not everything was written; the rest is tried again with the next record.
        """
        if self.pending_bytes + len(record) > MAX_PENDING_BYTES:
            raise OSError(f"{self.pending_bytes:,} bytes are waiting to be written, the newest record is lost")
        self._pending.append(record)
        self._flush()

    @property
    def pending_bytes(self) -> int:
        """Bytes that could not be written yet."""
        return sum(map(len, self._pending)) - self._written

    def close(self) -> None:
        """Write the pending records and close; an OSError means that some are lost."""
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
