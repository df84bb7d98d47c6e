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

from proxima.envs import worker as wire

logger = logging.getLogger("proxima")

BUILD_SECONDS = 120.0  # a tight timeout for steps must not fail a slow start
_TAIL_BYTES = 4096
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
        # The parent's own sys.path: a worker finds proxima and the user's modules wherever the parent found them.
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "proxima.envs.worker", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **_ONE_THREAD, "PYTHONPATH": path},
            )
        assert self._process.stderr is not None
        self._stderr = self._process.stderr.fileno()
        os.set_blocking(self._stderr, False)
        self._poller = select.poll()
        self._poller.register(self._sock.fileno(), select.POLLIN)
        self._poller.register(self._stderr, select.POLLIN)
        self.command(
            wire.frame(pickle.dumps({**order, "start": self.start, "stop": self.stop})), at_least=BUILD_SECONDS
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

        The worker has the timeout to answer, or `at_least` so many seconds.
        """
        self.pending = True
        self._tail = b""
        self._allowed = None if self.timeout is None else max(self.timeout, at_least)
        self._deadline = None if self._allowed is None else time.monotonic() + self._allowed
        with contextlib.suppress(OSError):
            self._sock.sendall(data)

    def wait(self) -> tuple[bytes, Any]:
        """The kind and the content of the answer.

        Raises:
            WorkerDied: there will be none.
        """
        while True:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic()) * 1000.0
            ready = self._poller.poll(left)
            if not ready:
                raise self._hung()
            answered = False
            for fd, _ in ready:
                if fd == self._stderr:
                    self._drain_stderr()
                else:
                    answered = True
            if not answered:
                continue
            try:
                kind = wire.receive(self._sock, 1)
                content = None if kind == wire.DONE else pickle.loads(wire.receive_frame(self._sock))
            except (EOFError, OSError):
                raise self._dead() from None
            self.pending = False
            return kind, content

    def kill(self) -> None:
        """End the process and free what belongs to it."""
        self._process.kill()
        self._process.wait()
        self._sock.close()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def quit(self) -> None:
        """Ask the process to close its envs and end."""
        with contextlib.suppress(OSError):
            self._sock.sendall(wire.QUIT)

    def join(self, deadline: float) -> None:
        """Give the process until `deadline` to end, then end it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()

    def _drain_stderr(self) -> None:
        """Read what there is, so that the worker never blocks on a full pipe; keep the end of it."""
        while True:
            try:
                data = os.read(self._stderr, 65536)
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
        return self._buried(f"did not answer within {self._allowed:g} s (step_timeout) and was killed")

    def _dead(self) -> WorkerDied:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        code = self._process.returncode
        if code is None:
            return self._buried("closed its socket and was killed")
        return self._buried(f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}")

    def _buried(self, reason: str) -> WorkerDied:
        self._drain_stderr()
        self.kill()
        self.pending = False
        return WorkerDied(reason, self._tail.decode(errors="replace"))
