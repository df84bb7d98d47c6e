"""Async mode: Gymnasium envs in worker processes, results through shared memory, dead workers replaced.

Workers are started as commands, not through `multiprocessing`, so that a user's script needs no `__main__` guard; the
shared memory is a file without a name, so that nothing is left behind however the processes end.
"""

import contextlib
import mmap
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from proxima.envs import worker as wire
from proxima.envs.env_group import Recipe, Wrapper, restart_seed
from proxima.envs.gym_vec import MAX_FAILURES, GymVecEnv, logger
from proxima.envs.plain import Plain
from proxima.envs.spaces import Layout, buffer_bytes, map_buffers
from proxima.errors import EnvFailure, UsageError

STEP_TIMEOUT = 300.0
_BUILD_SECONDS = 120.0  # a tight timeout for steps must not fail a slow start
_CLOSE_SECONDS = 3.0
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
            wire.frame(pickle.dumps({**order, "start": self.start, "stop": self.stop})), at_least=_BUILD_SECONDS
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


def _anonymous_file(size: int) -> int:
    """A file descriptor to `size` bytes of memory that no name leads to."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("proxima-envs", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


def _shut_down(workers: list[Worker], owner: int) -> None:
    if os.getpid() != owner:  # a forked child must not stop its parent's workers
        return
    for worker in workers:
        worker.quit()
    deadline = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        worker.join(deadline)
    workers.clear()


class AsyncVecEnv(GymVecEnv):
    """Envs in `num_workers` processes, each stepping its share one after another.

    A worker that dies or hangs is logged and replaced: its envs start fresh episodes, and the step in which it
    happened reads as a truncation with reward 0 at the last observation that the agent saw.
    """

    def __init__(
        self,
        env_id: str,
        *,
        num_envs: int = 1,
        env_kwargs: Mapping[str, Any] | None = None,
        max_episode_steps: int | None = None,
        spread_episodes: bool = False,
        wrappers: Sequence[Wrapper] = (),
        max_failures: int = MAX_FAILURES,
        num_workers: int | None = None,
        step_timeout: float | None = STEP_TIMEOUT,
    ) -> None:
        super().__init__(num_envs=num_envs, spread_episodes=spread_episodes, max_failures=max_failures)
        if not hasattr(socket, "send_fds"):
            raise UsageError("async mode needs a POSIX system (Linux, macOS); use sync mode")
        if num_workers is not None and num_workers < 1:
            raise UsageError(f"num_workers is {num_workers}; it must be at least 1")
        if step_timeout is not None and step_timeout <= 0:
            raise UsageError(f"step_timeout is {step_timeout}; it must be positive, or None to wait for ever")
        self.env_id = env_id
        recipe = Recipe.of(env_id, env_kwargs=env_kwargs, max_episode_steps=max_episode_steps, wrappers=wrappers)
        self._order = {"recipe": self._pickled(recipe), "num_envs": num_envs, "max_failures": max_failures}

        count = min(num_envs, num_workers or _available_cores())
        self._workers: list[Worker] = []
        self._finalizer = weakref.finalize(self, _shut_down, self._workers, os.getpid())
        try:
            for index in range(count):
                start, stop = num_envs * index // count, num_envs * (index + 1) // count
                worker = Worker(index, start, stop, timeout=step_timeout)
                worker.launch(self._order)
                self._workers.append(worker)
            layouts = [self._built(worker) for worker in self._workers]
        except BaseException as error:
            self._finalizer()
            if isinstance(error, OSError):
                raise EnvFailure(f"cannot start {count} worker processes ({error}); lower num_workers") from error
            raise
        self._start_sharing(layouts[0])

    @staticmethod
    def _pickled(recipe: Recipe) -> bytes:
        try:
            return cloudpickle.dumps(recipe.portable())
        except Exception as error:
            raise UsageError(
                f"env {recipe.spec.id!r} cannot be sent to a worker process ({type(error).__name__}: {error}); use "
                "sync mode, or give it arguments that can be pickled"
            ) from error

    def _built(self, worker: Worker) -> Layout:
        """Wait for a worker's first envs.

        Raises:
            UsageError: they cannot be built.
            EnvFailure: the process died over it.
        """
        try:
            return self._ready(worker)
        except WorkerDied as death:
            if death.tail:
                logger.warning("worker %d %s\n%s", worker.index, death, death.tail.rstrip())
            raise EnvFailure(f"a worker of env {self.env_id!r} died while building it; it {death.summary}") from None

    def _ready(self, worker: Worker) -> Layout:
        kind, content = worker.wait()
        if kind == wire.REFUSED:
            message, trace = content
            logger.debug("worker %d cannot build its envs\n%s", worker.index, trace)
            raise UsageError(message)
        layout: Layout = content
        return layout

    def _start_sharing(self, layout: Layout) -> None:
        size = buffer_bytes(layout, self.num_envs)
        self._memory_fd = _anonymous_file(size)
        weakref.finalize(self, os.close, self._memory_fd)
        self._lay_out(layout, map_buffers(layout, self.num_envs, mmap.mmap(self._memory_fd, size)))
        for worker in self._workers:
            worker.share(self._memory_fd)

    def _reset_envs(self, seeds: list[int | None], *, spread_over: int) -> None:
        self._settle()
        for worker in self._workers:
            worker.command(self._reset_command(seeds[worker.start : worker.stop], spread_over=spread_over))
        for worker in self._workers:
            try:
                self._finish(worker)
            except WorkerDied as death:
                self._revive(worker, death)

    def _step_envs(self) -> None:
        if any(worker.pending for worker in self._workers):
            raise RuntimeError("the last step was interrupted before every worker had answered: call reset() first")
        command = wire.STEP[self._bank]
        for worker in self._workers:
            worker.command(command)
        for worker in self._workers:
            try:
                self._finish(worker)
                worker.deaths = 0
            except WorkerDied as death:
                self._mark_lost(worker)
                self._revive(worker, death)

    def _get_env_states(self) -> list[Plain]:
        for worker in self._workers:
            worker.command(wire.GET_STATE)
        return [state for worker in self._workers for state in self._answer(worker)]

    def _set_env_states(self, states: list[Plain]) -> None:
        self._settle()
        for worker in self._workers:
            arguments = {"states": states[worker.start : worker.stop], "base_seed": self._base_seed}
            worker.command(wire.SET_STATE + wire.frame(pickle.dumps(arguments)), at_least=_BUILD_SECONDS)
        for worker in self._workers:
            self._answer(worker)

    def _why_inexact(self) -> str | None:
        self._workers[0].command(wire.WHY_INEXACT, at_least=_BUILD_SECONDS)
        answer: str | None = self._answer(self._workers[0])
        return answer

    def _answer(self, worker: Worker) -> Any:
        """What a worker says to a question that is not a step; one that dies over it is no longer of use."""
        try:
            return worker.wait()[1]
        except WorkerDied as death:
            raise EnvFailure(f"worker {worker.index} of env {self.env_id!r} {death.summary}") from None

    def _reset_command(self, seeds: Sequence[int | None], *, spread_over: int) -> bytes:
        arguments = {"bank": self._bank, "seeds": seeds, "base_seed": self._base_seed, "spread_over": spread_over}
        return wire.RESET + wire.frame(pickle.dumps(arguments))

    def _finish(self, worker: Worker) -> None:
        """Wait for the end of a step or a reset in one worker."""
        kind, content = worker.wait()
        if kind == wire.DONE_WITH_EVENTS:
            self._report(content, worker=worker.index)
        elif kind == wire.GAVE_UP:
            message, failures = content
            self._report(failures, worker=worker.index)
            raise EnvFailure(message)

    def _settle(self) -> None:
        """Take the answers that an interrupted step left behind; what they say no longer matters."""
        for worker in self._workers:
            if worker.pending:
                try:
                    worker.wait()
                except WorkerDied as death:
                    self._revive(worker, death)

    def _mark_lost(self, worker: Worker) -> None:
        """The step of a worker that died: cut off at the last observations that the agent saw."""
        lost = self._buffers.rows(worker.start, worker.stop)
        for final, last in zip(lost.final_obs, lost.obs[1 - self._bank], strict=True):
            final[:] = last
        lost.reward[:] = 0.0
        lost.terminated[:] = False
        lost.truncated[:] = True

    def _revive(self, worker: Worker, death: WorkerDied) -> None:
        """Put a new process in the place of a dead one, with fresh episodes.

        Raises:
            EnvFailure: it died `max_failures` times without one good step between.
        """
        while True:
            worker.deaths += 1
            gives_up = worker.deaths >= self._max_failures
            logger.warning(
                "worker %d (envs %d to %d) %s, death %d of %d in a row; %s%s",
                worker.index,
                worker.start,
                worker.stop - 1,
                death,
                worker.deaths,
                self._max_failures,
                "giving up" if gives_up else "a new one starts fresh episodes in its place",
                "\n" + death.tail.rstrip() if death.tail else "",
            )
            if gives_up:
                raise EnvFailure(
                    f"worker {worker.index} of env {self.env_id!r} died {worker.deaths} times in a row; the last time "
                    f"it {death.summary}"
                )
            self._restarts += 1
            restarts = self._buffers.restarts
            restarts[worker.start : worker.stop] += 1
            rows = range(worker.start, worker.stop)
            seeds = [restart_seed(self._base_seed, row, int(restarts[row])) for row in rows]
            try:
                worker.launch(self._order)
                self._ready(worker)
                worker.share(self._memory_fd)
                worker.command(self._reset_command(seeds, spread_over=0))
                self._finish(worker)
                return
            except UsageError as error:
                worker.kill()
                death = WorkerDied(f"could not build its envs again: {error}")
            except OSError as error:
                death = WorkerDied(f"could not be started again: {error}")
            except WorkerDied as again:
                death = again

    def close(self) -> None:
        """Stop the workers. Calling it twice is harmless."""
        if not self._closed:
            self._closed = True
            self._finalizer()


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
