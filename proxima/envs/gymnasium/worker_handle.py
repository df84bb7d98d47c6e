"""A worker process of async mode, seen from the parent: start, command, answer, death."""

import contextlib
import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from proxima.envs.gymnasium import worker as wire

logger = logging.getLogger("proxima")

BUILD_SECONDS = 120.0  # for each env: a tight timeout for steps must not fail a slow start
_TAIL_BYTES = 4096
_READ_BYTES, _MOST_READS = 65536, 64  # of stderr at a time: a helper process may write without end
_LOOK_SECONDS = 0.5  # between looks at the process, where the system has no pidfd
_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_ONE_THREAD = dict.fromkeys((*_THREAD_COUNTS, "VECLIB_MAXIMUM_THREADS"), "1")


class WorkerDied(Exception):
    """A worker process is gone, or had to be killed; `tail` is the end of what it wrote to stderr."""

    def __init__(self, reason: str, tail: str = "") -> None:
        super().__init__(reason)
        self.tail = tail

    @property
    def summary(self) -> str:
        """The reason, with the line of stderr that says most: where the process was, else the last."""
        lines = [line.strip() for line in self.tail.strip().splitlines()]
        crash = [below for line, below in pairwise(lines) if line.startswith("Current thread")]
        telling = (crash or lines)[-1:]
        return f"{self}: {telling[0]}" if telling else str(self)


class Worker:
    """One process with the envs `start` to `stop`, seen from the parent."""

    def __init__(self, index: int, start: int, stop: int, *, timeout: float | None) -> None:
        self.index, self.start, self.stop, self.timeout = index, start, stop, timeout
        self.deaths = 0  # in a row, without one good step between
        self.pending = False  # a command has been sent and not been answered
        self.death: WorkerDied | None = None  # noticed, and not yet dealt with

    def launch(self, order: Mapping[str, Any]) -> None:
        """Start the process and tell it what to build; `wait` then gives READY or REFUSED."""
        self._sock, theirs = socket.socketpair()
        self._inbox = bytearray()
        # The parent's own sys.path: a worker finds proxima and the user's modules wherever the parent found them.
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "proxima.envs.gymnasium.worker", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **_ONE_THREAD, "PYTHONPATH": path},
            )
        assert self._process.stderr is not None
        self._stderr: int | None = self._process.stderr.fileno()
        os.set_blocking(self._stderr, False)
        self._pidfd = _open_pidfd(self._process.pid)
        self._poller = select.poll()
        self._poller.register(self._sock.fileno(), select.POLLIN)
        self._poller.register(self._stderr, select.POLLIN)
        if self._pidfd is not None:
            self._poller.register(self._pidfd, select.POLLIN)
        self.command(
            wire.frame(pickle.dumps({**order, "start": self.start, "stop": self.stop})),
            at_least=BUILD_SECONDS * (self.stop - self.start),
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def share(self, memory_fd: int) -> None:
        """Hand the shared memory over."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._sock, [b"m"], [memory_fd])

    def command(self, data: bytes, *, at_least: float = 0.0) -> None:
        """Send a command; `wait` gives the answer, or notices that there is nobody to give one.

        The worker has the timeout to answer, or `at_least` seconds where that is longer.
        """
        self.pending = True
        self._tail = b""
        self._allowed = None if self.timeout is None else max(self.timeout, at_least)
        self._deadline = None if self._allowed is None else time.monotonic() + self._allowed
        self._send(data)

    def wait(self) -> tuple[bytes, Any]:
        """The kind and the content of the answer.

        Raises:
            WorkerDied: there will be none.
        """
        # The bytes stay in the inbox until the answer is whole: an interrupted wait can be taken up again.
        self._receive(1)
        kind, content, size = bytes(self._inbox[:1]), None, 1
        if kind != wire.DONE:
            start = 1 + wire.HEADER_BYTES
            self._receive(start)
            size = start + wire.frame_length(self._inbox[1:start])
            self._receive(size)
            content = pickle.loads(self._inbox[start:size])
        del self._inbox[:size]
        self.pending = False
        return kind, content

    def kill(self) -> None:
        """End the process and free what belongs to it; a second call does nothing."""
        self._process.kill()
        self._process.wait()
        self._sock.close()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._stderr = None
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def quit(self) -> None:
        """Ask the process to close its envs and end."""
        with contextlib.suppress(OSError):
            self._sock.send(wire.QUIT, socket.MSG_DONTWAIT)

    def join(self, deadline: float) -> None:
        """Give the process until `deadline` to end, then end it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()

    def _send(self, data: bytes) -> None:
        """Hand data over as the worker takes it; gives up, without a word, where `wait` will notice why."""
        rest = memoryview(data)
        with contextlib.suppress(OSError):
            while rest:
                try:
                    rest = rest[self._sock.send(rest, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    _poll(self._sock, select.POLLOUT, _LOOK_SECONDS)
                    self._drain_stderr()  # a worker that waits for room on its stderr takes nothing
                    if self._process.poll() is not None or self._is_late():
                        return

    def _receive(self, size: int) -> None:
        """Have `size` bytes in the inbox.

        The end of the process itself counts, not only that of its socket: a helper process that an env has started
        may keep the worker's end of the socket open for as long as it likes.
        """
        while len(self._inbox) < size:
            self._await_data()
            try:
                part = self._sock.recv(size - len(self._inbox))
            except OSError:
                part = b""
            if not part:
                raise self._dead()
            self._inbox += part

    def _await_data(self) -> None:
        """Return once the socket has something to say, if only that it has been closed."""
        if self._sock.fileno() < 0:
            raise WorkerDied("has ended")
        while True:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            if self._pidfd is None:
                left = _LOOK_SECONDS if left is None else min(left, _LOOK_SECONDS)
            ready = [fd for fd, _ in self._poller.poll(None if left is None else left * 1000.0)]
            if self._sock.fileno() in ready:
                return
            if self._stderr in ready:
                self._drain_stderr()
            if self._pidfd in ready or self._process.poll() is not None:
                # What it wrote before it died is there by now.
                if not _poll(self._sock, select.POLLIN, 0.0):
                    raise self._dead()
                return
            if not ready and self._is_late():
                raise self._hung()

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _drain_stderr(self) -> None:
        """Read what there is, so that the worker never blocks on a full pipe; keep the end of it."""
        for _ in range(_MOST_READS):
            if self._stderr is None:
                return
            try:
                data = os.read(self._stderr, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                with contextlib.suppress(KeyError):
                    self._poller.unregister(self._stderr)
                return
            logger.info("worker %d: %s", self.index, data.decode(errors="replace").rstrip())
            self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def _hung(self) -> WorkerDied:
        with contextlib.suppress(OSError):
            os.kill(self.pid, wire.WHERE_ARE_YOU)
            time.sleep(0.1)
        which = " (step_timeout)" if self._allowed == self.timeout else ""
        return self._buried(f"did not answer within {self._allowed:g} s{which} and was killed")

    def _dead(self) -> WorkerDied:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        code = self._process.returncode
        if code is None:
            return self._buried("closed its socket and was killed")
        return self._buried(f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with code {code}")

    def _buried(self, reason: str) -> WorkerDied:
        self._drain_stderr()
        self.kill()
        self.pending = False
        return WorkerDied(reason, self._tail.decode(errors="replace"))


def _poll(sock: socket.socket, event: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(sock.fileno(), event)
    return bool(poller.poll(seconds * 1000.0))


def _open_pidfd(pid: int) -> int | None:
    """A file descriptor that becomes readable when the process ends; None where the system has none (macOS)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
