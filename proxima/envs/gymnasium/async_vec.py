"""Async mode: Gymnasium envs in worker processes; results go through shared memory, dead workers are replaced.

Workers are started as commands, not by `multiprocessing`, so that a user's script needs no `__main__` guard; the
shared memory is a file without a name, so that nothing is left behind, however the processes end.
"""

import functools
import mmap
import os
import tempfile
import time
import weakref
from itertools import pairwise
from typing import Any

from proxima.envs.checks import check_count
from proxima.envs.gymnasium import worker as wire
from proxima.envs.gymnasium.env_group import restart_seed
from proxima.envs.gymnasium.exactness_trial import TRIAL_SECONDS
from proxima.envs.gymnasium.plain import Plain
from proxima.envs.gymnasium.spaces import buffer_bytes, map_buffers
from proxima.envs.gymnasium.sync_vec import GymVecEnv, logger
from proxima.envs.gymnasium.worker_handle import BUILD_SECONDS, Worker, WorkerDied
from proxima.errors import EnvFailure, UsageError
from proxima.machine import available_cores

STEP_TIMEOUT = 300.0
_CLOSE_SECONDS = 3.0


def _anonymous_file() -> int:
    """A file descriptor of shared memory (or of a temporary file) that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("proxima-envs", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


@functools.cache  # once per process, not once per vector env
def _warn_of_crowding(num_workers: int) -> None:
    logger.warning(
        "num_workers is %d, but there are %d cores: more workers than cores slow each other down",
        num_workers,
        available_cores(),
    )


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
    happened is returned as a truncation with reward 0 at the last observation that the agent saw.
    """

    def __init__(
        self, env_id: str, *, num_workers: int | None = None, step_timeout: float | None = STEP_TIMEOUT, **options: Any
    ) -> None:
        super().__init__(env_id, **options)
        if os.name != "posix":
            raise UsageError("async mode needs a POSIX system (Linux, macOS); use sync mode")
        check_count("num_workers", num_workers)
        if step_timeout is not None and step_timeout <= 0:
            raise UsageError(f"step_timeout is {step_timeout}; it must be positive, or None to wait for ever")
        if num_workers is not None and num_workers > available_cores():
            _warn_of_crowding(num_workers)
        self._order = {
            "recipe": self._recipe.pickled(),
            "num_envs": self.num_envs,
            "max_failures": self._max_failures,
        }
        self._memory_fd = _anonymous_file()
        weakref.finalize(self, os.close, self._memory_fd)
        count = min(self.num_envs, num_workers or available_cores())
        self._workers: list[Worker] = []
        self._finalizer = weakref.finalize(self, _shut_down, self._workers, os.getpid())
        try:
            for index, rows in enumerate(pairwise(self.num_envs * i // count for i in range(count + 1))):
                worker = Worker(index, *rows, timeout=step_timeout)
                worker.launch(self._order, self._memory_fd)
                self._workers.append(worker)
            for worker in self._workers:
                layout = self._answer(worker)
        except OSError as error:
            self._finalizer()
            raise EnvFailure(f"cannot start {count} worker processes ({error}); lower num_workers") from error
        except WorkerDied as death:
            self._finalizer()
            if death.tail:
                logger.warning("worker %d %s\n%s", worker.index, death, death.tail.rstrip())
            raise EnvFailure(f"a worker of env {env_id!r} died while building it; it {death.summary}") from None
        except BaseException:
            self._finalizer()
            raise
        size = buffer_bytes(layout, self.num_envs)
        os.ftruncate(self._memory_fd, size)
        self._lay_out(layout, map_buffers(layout, self.num_envs, mmap.mmap(self._memory_fd, size)))

    def _reset_envs(self, seeds: list[int | None], *, spread_over: int) -> None:
        self._settle()
        for worker in self._workers:
            self._send_reset(worker, seeds[worker.start : worker.stop], spread_over=spread_over)
        for worker in self._workers:
            try:
                self._answer(worker)
            except WorkerDied as death:
                self._revive(worker, death)

    def _step_envs(self) -> None:
        if any(worker.pending for worker in self._workers):
            raise RuntimeError("the last step was interrupted before every worker had answered: call reset() first")
        command = wire.STEP[self._bank]
        for worker in self._workers:
            if worker.death is None:
                worker.command(command)
        for worker in self._workers:
            try:
                if worker.death is not None:
                    raise worker.death
                self._answer(worker)
                worker.deaths = 0
            except WorkerDied as death:
                self._buffers.mark_lost(slice(worker.start, worker.stop), self._bank)
                self._revive(worker, death)

    def _get_env_states(self) -> list[Plain] | str | None:
        if any(worker.death for worker in self._workers):
            return None
        for worker in self._workers:
            worker.call("get_state")
        answers = []
        for worker in self._workers:
            try:
                answers.append(self._answer(worker))
            except WorkerDied as death:
                worker.death = death  # replaced in the next step, whose transition is lost
        if any(worker.death for worker in self._workers):
            return None
        reasons = [answer for answer in answers if isinstance(answer, str)]
        return reasons[0] if reasons else [state for answer in answers for state in answer]

    def _set_env_states(self, states: list[Plain]) -> str | None:
        self._settle()
        for worker in self._workers:
            rows = states[worker.start : worker.stop]
            worker.call("set_state", at_least=BUILD_SECONDS, states=rows, base_seed=self._base_seed)
        try:
            reasons = [self._answer(worker) for worker in self._workers]
        except WorkerDied as death:
            raise EnvFailure(f"a worker of env {self.env_id!r} {death.summary}") from None
        return next(filter(None, reasons), None)

    def _why_inexact(self) -> str | None:
        worker = self._workers[0]
        if worker.death is not None:
            return "whether its state is exact could not be tested: its worker died"
        worker.call("why_inexact", at_least=2 * BUILD_SECONDS + TRIAL_SECONDS)
        try:
            answer: str | None = self._answer(worker)
        except WorkerDied as death:
            worker.death = death  # replaced in the next step or reset
            return f"whether its state is exact could not be tested: the worker {death.summary}"
        return answer

    def _send_reset(self, worker: Worker, seeds: list[int | None], *, spread_over: int) -> None:
        worker.call("reset", bank=self._bank, seeds=seeds, base_seed=self._base_seed, spread_over=spread_over)

    def _answer(self, worker: Worker) -> Any:
        """Wait for the end of a command and return its result; envs that failed in it are reported.

        Raises:
            WorkerDied: the worker died or did not answer in time.
            UsageError: it cannot build its envs.
            EnvFailure: it cannot go on.
        """
        kind, content = worker.wait()
        if kind == wire.DONE:
            return None
        answer, failures = content
        if kind == wire.REFUSED:
            logger.debug("worker %d cannot build its envs\n%s", worker.index, failures)
            raise UsageError(answer)
        self._report(failures, worker=worker.index)
        if kind == wire.GAVE_UP:
            raise EnvFailure(answer)
        return answer

    def _settle(self) -> None:
        """Discard the answers to an interrupted step, and replace dead workers."""
        for worker in self._workers:
            if worker.pending:
                try:
                    worker.wait()
                except WorkerDied as death:
                    worker.death = death
            if worker.death is not None:
                self._revive(worker, worker.death)

    def _revive(self, worker: Worker, death: WorkerDied) -> None:
        """Replace a dead process by a new one with fresh episodes.

        Raises:
            EnvFailure: it has died `max_failures` times without a completed step in between.
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
                "giving up" if gives_up else "replaced by a new one with fresh episodes",
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
            try:
                worker.death = None
                worker.launch(self._order, self._memory_fd)
                self._answer(worker)
                seeds: list[int | None] = [restart_seed(self._base_seed, row, int(restarts[row])) for row in rows]
                self._send_reset(worker, seeds, spread_over=0)
                self._answer(worker)
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
