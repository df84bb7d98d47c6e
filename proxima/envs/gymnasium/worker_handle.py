"""The parent's handle of a worker process of async mode: start it, send commands, receive answers, notice its death."""

import contextlib
import logging
import math
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

BUILD_SECONDS = 120.0  # per env: a short timeout for steps must not fail a slow start
_TAIL_BYTES = 4096
_READ_BYTES, _MOST_READS = 65536, 64  # of stderr at a time: a helper process may write without end
_POLL_SECONDS = 0.5  # between checks of the process
_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_ONE_THREAD = dict.fromkeys((*_THREAD_COUNTS, "VECLIB_MAXIMUM_THREADS"), "1")


class WorkerDied(Exception):
    """A worker process has ended or was killed; `tail` is the end of its stderr."""

    def __init__(self, reason: str, tail: str = "") -> None:
        super().__init__(reason)
        self.tail = tail

    @property
    def summary(self) -> str:
        """The reason, and one line of stderr: the innermost frame of a crash, else the last line."""
        lines = [line.strip() for line in self.tail.strip().splitlines()]
        crash = [below for line, below in pairwise(lines) if line.startswith("Current thread")]
        telling = (crash or lines)[-1:]
        return f"{self}: {telling[0]}" if telling else str(self)


class Worker:
    """One worker process, with the envs `start` to `stop`."""

    def __init__(self, index: int, start: int, stop: int, *, timeout: float | None) -> None:
        self.index, self.start, self.stop = index, start, stop
        self._timeout = math.inf if timeout is None else timeout
        self.deaths = 0  # since its last completed step
        self.pending = False  # a command has not been answered yet
        self.death: WorkerDied | None = None  # noticed, but the worker has not been replaced yet

    def launch(self, order: Mapping[str, Any], memory_fd: int) -> None:
        """Start the process and send what to build; `wait` then returns ANSWER with the layout, or REFUSED."""
        self._sock, theirs = socket.socketpair()
        self._inbox = bytearray()
        # The parent's sys.path, so that a worker finds proxima and the user's modules where the parent did.
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", wire.__name__, str(theirs.fileno()), str(memory_fd)],
                pass_fds=(theirs.fileno(), memory_fd),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **_ONE_THREAD, "PYTHONPATH": path},
            )
        assert self._process.stderr is not None
        self._stderr = self._process.stderr
        os.set_blocking(self._stderr.fileno(), False)
        self._poller = select.poll()
        self._poller.register(self._sock, select.POLLIN)
        self._poller.register(self._stderr, select.POLLIN)
        self.command(
            pickle.dumps({**order, "start": self.start, "stop": self.stop, "label": f" (worker {self.index})"}),
            at_least=BUILD_SECONDS * (self.stop - self.start),
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def call(self, method: str, *, at_least: float = 0.0, **arguments: Any) -> None:
        """Have the worker call a method of its `EnvGroup`; `wait` returns the result."""
        self.command(wire.CALL + pickle.dumps((method, arguments)), at_least=at_least)

    def command(self, data: bytes, *, at_least: float = 0.0) -> None:
        """Send a command, to be answered within the timeout or within `at_least` seconds, whichever is longer.

        `wait` returns the answer, and raises if the worker has died.
        """
        self.pending = True
        self._tail = b""
        self._allowed = max(self._timeout, at_least)
        self._deadline = time.monotonic() + self._allowed
        self._send(data)

    def wait(self) -> tuple[bytes, Any]:
        """The kind and the content of the answer; raises WorkerDied if there will be none."""
        # The bytes stay in the inbox until the answer is complete, so that an interrupted wait can be called again.
        self._receive(1)
        kind, content, size = bytes(self._inbox[:1]), None, 1
        if kind != wire.DONE:
            start = 1 + wire.LENGTH.size
            self._receive(start)
            size = start + wire.LENGTH.unpack(self._inbox[1:start])[0]
            self._receive(size)
            content = pickle.loads(self._inbox[start:size])
        del self._inbox[:size]
        self.pending = False
        return kind, content

    def kill(self) -> None:
        """Kill the process and free its file descriptors. Calling it twice is harmless."""
        self._process.kill()
        self._process.wait()
        self._sock.close()
        self._stderr.close()

    def quit(self) -> None:
        """Ask the process to close its envs and exit."""
        with contextlib.suppress(OSError):
            self._sock.send(wire.QUIT, socket.MSG_DONTWAIT)

    def join(self, deadline: float) -> None:
        """Wait for the process to exit until `deadline`, then kill it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()

    def _send(self, data: bytes) -> None:
        """Send without blocking for longer than the timeout; if the worker is dead or late, `wait` will notice."""
        rest = memoryview(data)
        with contextlib.suppress(OSError):
            while rest:
                try:
                    rest = rest[self._sock.send(rest, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    _poll(self._sock, select.POLLOUT, _POLL_SECONDS)
                    self._drain_stderr()  # a worker that is blocked on a full stderr does not read
                    if self._process.poll() is not None or self._is_late():
                        return

    def _receive(self, size: int) -> None:
        """Read until the inbox has `size` bytes.

        The process itself is watched too, not only its socket: a helper process started by an env may keep the
        worker's end of the socket open.
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
        """Wait until the socket has data or has been closed."""
        if self._sock.fileno() < 0:
            raise WorkerDied("has ended")
        while True:
            left = max(0.0, self._deadline - time.monotonic())
            ready = [fd for fd, _ in self._poller.poll(1000.0 * min(left, _POLL_SECONDS))]
            if self._sock.fileno() in ready:
                return
            if self._stderr.fileno() in ready:
                self._drain_stderr()
            if self._process.poll() is not None:
                # What it sent before it died has arrived by now.
                if not _poll(self._sock, select.POLLIN, 0.0):
                    raise self._dead()
                return
            if not ready and self._is_late():
                raise self._hung()

    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _drain_stderr(self) -> None:
        """Read and log stderr, so that the worker does not block on a full pipe; keep the last bytes."""
        for _ in range(_MOST_READS):
            try:
                data = os.read(self._stderr.fileno(), _READ_BYTES)
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
        which = " (step_timeout)" if self._allowed == self._timeout else ""
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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
