"""Async mode: Gymnasium envs in worker processes, results through shared memory, dead workers replaced.

Workers are started as commands, not through `multiprocessing`, so that a user's script needs no `__main__` guard; the
shared memory is a file without a name, so that nothing is left behind however the processes end.
"""

import functools
import math
import mmap
import os
import pickle
import socket
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from proxima.envs.checks import check_count
from proxima.envs.gymnasium import worker as wire
from proxima.envs.gymnasium.env_group import Recipe, Wrapper, restart_seed
from proxima.envs.gymnasium.exactness_trial import TRIAL_SECONDS
from proxima.envs.gymnasium.plain import Plain
from proxima.envs.gymnasium.snapshot import NotPlain
from proxima.envs.gymnasium.spaces import Layout, buffer_bytes, map_buffers
from proxima.envs.gymnasium.sync_vec import MAX_FAILURES, GymVecEnv, logger
from proxima.envs.gymnasium.worker_handle import BUILD_SECONDS, Worker, WorkerDied
from proxima.errors import EnvFailure, UsageError
from proxima.machine import available_cores

STEP_TIMEOUT = 300.0
_CLOSE_SECONDS = 3.0


def _anonymous_file(size: int) -> int:
    """A file descriptor to `size` bytes of memory that no name leads to."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("proxima-envs", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


@functools.cache  # once a process, not once a vector env
def _warn_of_crowding(num_workers: int) -> None:
    cores = available_cores()
    logger.warning(
        "num_workers is %d, but there are %d cores: more workers than cores wait on each other", num_workers, cores
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
        check_count("num_workers", num_workers)
        if step_timeout is not None and step_timeout <= 0:
            raise UsageError(f"step_timeout is {step_timeout}; it must be positive, or None to wait for ever")
        self.env_id = env_id
        recipe = Recipe.of(env_id, env_kwargs=env_kwargs, max_episode_steps=max_episode_steps, wrappers=wrappers)
        if num_workers is not None and num_workers > available_cores():
            _warn_of_crowding(num_workers)
        self._order = {"recipe": self._pickled(recipe), "num_envs": num_envs, "max_failures": max_failures}

        count = min(num_envs, num_workers or available_cores())
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
            if worker.death is None:
                worker.command(command)
        for worker in self._workers:
            try:
                if worker.death is not None:
                    raise worker.death
                self._finish(worker)
                worker.deaths = 0
            except WorkerDied as death:
                self._mark_lost(worker)
                self._revive(worker, death)

    def _get_env_states(self) -> list[Plain] | str | None:
        if any(worker.death for worker in self._workers):
            return None
        for worker in self._workers:
            worker.command(wire.GET_STATE)
        answers = []
        for worker in self._workers:
            try:
                answers.append(self._answer(worker))
            except WorkerDied as death:
                worker.death = death  # dealt with in the next step, whose transition it is that is lost
        if any(worker.death for worker in self._workers):
            return None
        reasons = [answer for answer in answers if isinstance(answer, str)]
        return reasons[0] if reasons else [state for answer in answers for state in answer]

    def _set_env_states(self, states: list[Plain]) -> None:
        self._settle()
        for worker in self._workers:
            arguments = {"states": states[worker.start : worker.stop], "base_seed": self._base_seed}
            worker.command(wire.SET_STATE + wire.frame(pickle.dumps(arguments)), at_least=BUILD_SECONDS)
        try:
            obstacles = [self._answer(worker) for worker in self._workers]
        except WorkerDied as death:
            raise EnvFailure(f"a worker of env {self.env_id!r} {death.summary}") from None
        if any(obstacles):
            raise NotPlain(next(filter(None, obstacles)))

    def _why_inexact(self) -> str | None:
        worker = self._workers[0]
        if worker.death is not None:
            return "whether its state is exact could not be tried: its worker died"
        worker.command(wire.WHY_INEXACT, at_least=2 * BUILD_SECONDS + TRIAL_SECONDS)
        try:
            answer: str | None = self._answer(worker)
        except WorkerDied as death:
            worker.death = death  # replaced in the next step or reset, as any worker that dies
            return f"whether its state is exact could not be tried: the worker {death.summary}"
        return answer

    def _answer(self, worker: Worker) -> Any:
        """What a worker says to a question that is not a step.

        Raises:
            WorkerDied: it died over the question.
        """
        kind, content = worker.wait()
        if kind == wire.GAVE_UP:
            raise EnvFailure(content[0])
        return content

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
        """Take the answers that an interrupted step left behind, which no longer matter; replace the dead."""
        for worker in self._workers:
            if worker.pending:
                try:
                    worker.wait()
                except WorkerDied as death:
                    worker.death = death
            if worker.death is not None:
                self._revive(worker, worker.death)

    def _mark_lost(self, worker: Worker) -> None:
        """The step of a worker that died: cut off at the last observations that the agent saw."""
        lost = self._buffers.rows(worker.start, worker.stop)
        for final, last in zip(lost.final_obs, lost.obs[1 - self._bank], strict=True):
            final[:] = last
        lost.reward[:] = lost.total[:] = 0.0
        lost.duration[:] = 1
        lost.terminated[:] = False
        lost.truncated[:] = True
        lost.success[:] = math.nan
        lost.info[:] = math.nan

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
                worker.death = None
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
