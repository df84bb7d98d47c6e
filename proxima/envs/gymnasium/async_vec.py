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
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from proxima.envs.checks import check_count
from proxima.envs.gymnasium import worker as wire
from proxima.envs.gymnasium.env_group import Called, restart_seed
from proxima.envs.gymnasium.exactness_trial import TRIAL_SECONDS
from proxima.envs.gymnasium.plain import Plain
from proxima.envs.gymnasium.spaces import Buffers, Layout
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
    """Envs in `num_workers` processes, each stepping its share one after another; see `WorkerPool`."""

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
        count = min(self.num_envs, num_workers or available_cores())
        order = {"recipe": self._recipe.pickled(), "num_envs": self.num_envs, "max_failures": self._max_failures}
        order["log_info"] = self.log_info
        self._open(WorkerPool(env_id, order, num_workers=count, timeout=step_timeout))


class WorkerPool:
    """The interface of `EnvGroup` for envs in worker processes.

    A worker that dies or hangs is logged and replaced: its envs start fresh episodes, and the step in which it
    happened is returned as a truncation with reward 0 at the last observation that the agent saw.
    """

    def __init__(self, env_id: str, order: dict[str, Any], *, num_workers: int, timeout: float | None) -> None:
        self.failures: list[str] = []
        self.restarts = 0
        self.workers: list[Worker] = []
        self._env_id, self._order = env_id, order
        self._bank = self._base_seed = 0
        self._memory_fd = _anonymous_file()
        weakref.finalize(self, os.close, self._memory_fd)
        self._finalizer = weakref.finalize(self, _shut_down, self.workers, os.getpid())
        try:
            bounds = [order["num_envs"] * i // num_workers for i in range(num_workers + 1)]
            for index, rows in enumerate(pairwise(bounds)):
                worker = Worker(index, *rows, timeout=timeout)
                worker.launch(order, self._memory_fd)
                self.workers.append(worker)
            layouts: list[Layout] = []
            for worker in self.workers:
                layouts.append(self._answer(worker))
            self.layout = layouts[0]
            if {layout.masks for layout in layouts} != {self.layout.masks}:
                raise EnvFailure(f"only some of the envs {env_id!r} have an action_mask at their first reset")
            self._order = {**order, "masks": self.layout.masks}  # for workers that replace dead ones
        except BaseException as error:
            self._finalizer()
            if isinstance(error, OSError):
                raise EnvFailure(f"cannot start {num_workers} worker processes ({error}); lower num_workers") from error
            if not isinstance(error, WorkerDied):
                raise
            if error.tail:
                logger.warning("worker %d %s\n%s", worker.index, error, error.tail.rstrip())
            raise EnvFailure(f"a worker of env {env_id!r} died while building it; it {error.summary}") from None

    def allocate(self, size: int) -> mmap.mmap:
        """Memory that is shared with the workers."""
        os.ftruncate(self._memory_fd, size)
        return mmap.mmap(self._memory_fd, size)

    def attach(self, buffers: Buffers) -> None:
        """Use these buffers, which are in the shared memory."""
        self._buffers = buffers

    def reset(self, *, bank: int, seeds: list[int | None], base_seed: int, spread: tuple[int, int] | None) -> None:
        """Start a new episode in every env; see `EnvGroup.reset`."""
        self._bank, self._base_seed = bank, base_seed
        self._settle()
        for worker in self.workers:
            self._send_reset(worker, seeds[worker.start : worker.stop], spread=spread)
        for worker in self.workers:
            try:
                self._answer(worker)
            except WorkerDied as death:
                self._revive(worker, death)

    def step(self, bank: int) -> None:
        """Step every env with the actions in the buffers; see `EnvGroup.step`."""
        self._bank = bank
        if any(worker.pending for worker in self.workers):
            raise RuntimeError("the last step was interrupted before every worker had answered: call reset() first")
        command = wire.STEP[bank]
        for worker in self.workers:
            if worker.death is None:
                worker.command(command)
        for worker in self.workers:
            try:
                if worker.death is not None:
                    raise worker.death
                self._answer(worker)
                worker.deaths = 0
            except WorkerDied as death:
                self._buffers.mark_lost(slice(worker.start, worker.stop), bank)
                self._revive(worker, death)

    def get_state(self) -> list[Plain] | str | None:
        """The state of every env, or why one of them cannot be saved; None if a worker has just died."""
        if any(worker.death for worker in self.workers):
            return None
        for worker in self.workers:
            worker.call("get_state")
        answers = []
        for worker in self.workers:
            try:
                answers.append(self._answer(worker))
            except WorkerDied as death:
                worker.death = death  # replaced in the next step, whose transition is lost
        if any(worker.death for worker in self.workers):
            return None
        reasons = [answer for answer in answers if isinstance(answer, str)]
        return reasons[0] if reasons else [state for answer in answers for state in answer]

    def set_state(self, states: list[Plain], *, base_seed: int) -> str | None:
        """Restore states of `get_state`; returns None, or why one of them cannot be restored."""
        self._base_seed = base_seed
        self._settle()
        for worker in self.workers:
            rows = states[worker.start : worker.stop]
            worker.call("set_state", at_least=BUILD_SECONDS, states=rows, base_seed=base_seed)
        try:
            reasons = [self._answer(worker) for worker in self.workers]
        except WorkerDied as death:
            raise EnvFailure(f"a worker of env {self._env_id!r} {death.summary}") from None
        return next(filter(None, reasons), None)

    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Called | str:
        """Call a method of every env; see `EnvGroup.call`."""
        self._settle()
        for worker in self.workers:
            worker.call("call", name=name, args=args, kwargs=kwargs)
        answers: list[Called | str] = []
        for worker in self.workers:
            try:
                answers.append(self._answer(worker))
            except WorkerDied as death:
                worker.death = death  # replaced in the next step
                answers.append(f"{name} of env {self._env_id!r}: its worker {death.summary}")
        reasons = [answer for answer in answers if isinstance(answer, str)]
        if reasons:
            return reasons[0]
        called = [answer for answer in answers if isinstance(answer, Called)]
        return Called([result for one in called for result in one.results], replays=called[0].replays)

    def why_inexact(self) -> str | None:
        """Why an env with a restored state would not continue exactly; see `EnvGroup.why_inexact`."""
        worker = self.workers[0]
        if worker.death is not None:
            return "whether its state is exact could not be tested: its worker died"
        worker.call("why_inexact", at_least=2 * BUILD_SECONDS + TRIAL_SECONDS)
        try:
            return self._answer(worker)
        except WorkerDied as death:
            worker.death = death  # replaced in the next step or reset
            return f"whether its state is exact could not be tested: the worker {death.summary}"

    def _send_reset(self, worker: Worker, seeds: list[int | None], *, spread: tuple[int, int] | None) -> None:
        worker.call("reset", bank=self._bank, seeds=seeds, base_seed=self._base_seed, spread=spread)

    def _answer(self, worker: Worker) -> Any:
        """Wait for the end of a command and return its result.

        Raises WorkerDied if the worker died or did not answer in time, UsageError if it cannot build its envs, and
        EnvFailure if it cannot go on.
        """
        kind, content = worker.wait()
        if kind == wire.DONE:
            return None
        if kind == wire.REFUSED:
            message, trace = content
            logger.debug("worker %d cannot build its envs\n%s", worker.index, trace)
            raise UsageError(message)
        answer, failures, restarts = content
        self.failures += failures
        self.restarts += restarts
        if kind == wire.GAVE_UP:
            raise EnvFailure(answer)
        return answer

    def _settle(self) -> None:
        """Discard the answers to an interrupted step, and replace dead workers."""
        for worker in self.workers:
            if worker.pending:
                try:
                    worker.wait()
                except WorkerDied as death:
                    worker.death = death
            if worker.death is not None:
                self._revive(worker, worker.death)

    def _revive(self, worker: Worker, death: WorkerDied) -> None:
        """Replace a dead process; EnvFailure after `max_failures` deaths without a completed step in between."""
        most, rows = self._order["max_failures"], range(worker.start, worker.stop)
        while True:
            worker.deaths += 1
            what = "giving up" if worker.deaths >= most else "replaced by a new one with fresh episodes"
            envs = f"envs {worker.start} to {worker.stop - 1}"
            message = f"worker {worker.index} ({envs}) {death}, death {worker.deaths} of {most} in a row; {what}"
            logger.warning("%s", "\n".join([message, *filter(None, [death.tail.rstrip()])]))
            if worker.deaths >= most:
                raise EnvFailure(
                    f"worker {worker.index} of env {self._env_id!r} died {worker.deaths} times in a row; the last time "
                    f"it {death.summary}"
                )
            self.restarts += 1
            restarts = self._buffers.restarts
            restarts[worker.start : worker.stop] += 1
            try:
                worker.death = None
                worker.launch(self._order, self._memory_fd)
                self._answer(worker)
                seeds: list[int | None] = [restart_seed(self._base_seed, row, int(restarts[row])) for row in rows]
                self._send_reset(worker, seeds, spread=None)
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
        """Stop the workers."""
        self._finalizer()
