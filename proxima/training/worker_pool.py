"""Rollout workers on Ray: starting them, asking all of them for a rollout, and replacing those that are lost."""

import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from proxima.errors import EnvFailure, UsageError
from proxima.runs.files import versions
from proxima.training.ray_cluster import Cluster, WorkerLost
from proxima.training.rollout_worker import Harvest, Job, RolloutWorker, to_arrays, to_tensors
from proxima.training.seeding import stream_seed
from proxima.training.source import EnvState, Share

log = logging.getLogger("proxima")

_MOST_LOSSES = 5
_START_SECONDS, _REPLACEMENT_SECONDS, _NOTICE_SECONDS = 600.0, 60.0, 30.0
_POLL_SECONDS = 2.0


class Order(NamedTuple):
    """One rollout as it is asked of the workers."""

    weights: Any
    """Of the policy, in Ray's store."""
    noise: list[Any]
    """`[T, n, A]` of each worker."""
    job: Job
    networks: list[Any]
    """For the envs, in Ray's store."""


class Worker:
    """The learner's end of a worker."""

    def __init__(self, index: int, share: Share, assignment: bytes):
        self.index, self.share, self._assignment = index, share, assignment
        self.actor: Any = None
        self.placed: Any = None
        """The answer of `ping`, which is there once the process has started."""
        self.built: Any = None
        """The pending answer of `build`; None once it is there."""
        self.restored: Any = None
        """The pending answer of `set_state`, of a worker that replaces another."""
        self.since = 0.0
        self.state: EnvState | None = None
        """Before the rollout that is being collected; None before the first."""
        self.seed: int | None = None
        """Of new episodes to start with, if the envs have no state; None: as they are made."""
        self.losses = 0
        """In a row."""
        self.about: dict[str, str] = {}
        """Its machine, process and versions."""

    def launch(self, cluster: Cluster, cpus: float) -> None:
        """Start a process for it; what is asked from now on is answered once the envs are made."""
        if self.actor is not None:
            cluster.kill(self.actor)
        self.actor, self.since = cluster.start(RolloutWorker, cpus), time.monotonic()
        self.placed = self.actor.ping.remote()
        paths = [str(Path(path or ".").absolute()) for path in sys.path]
        self.built = self.actor.build.remote(self._assignment, str(Path.cwd()), paths)
        self.restored = None
        if self.state is not None and self.state.env is not None:
            self.restored = self.actor.set_state.remote(to_arrays(self.state))
        elif self.seed is not None:
            self.actor.reset.remote(self.seed)

    def collect(self, order: Order) -> Any:
        """Ask for its part of a rollout."""
        return self.actor.collect.remote(order.weights, order.noise[self.index], order.job, *order.networks)

    @property
    def envs(self) -> str:
        """Its envs, in words."""
        return f"envs {self.share.first} to {self.share.first + self.share.count - 1}"


class WorkerPool:
    """All workers of a source. A lost one is replaced by one that continues from the state before the rollout."""

    def __init__(self, cluster: Cluster, workers: list[Worker], *, cpus: float, seed: int):
        """`cpus` of each worker; `seed` of new episodes, where the envs of a lost worker have no state."""
        self.cluster, self.workers = cluster, workers
        self._cpus, self._seed = cpus, seed
        self.lost = 0
        """Workers that were replaced so far."""
        self.restarted: list[Share] = []
        """Envs that started new episodes because their worker was lost, until somebody takes note."""

    def start(self) -> None:
        """Start all workers and wait until they have made their envs; say what is missing if that takes long."""
        for worker in self.workers:
            worker.launch(self.cluster, self._cpus)
        start = said = time.monotonic()
        while waiting := [worker for worker in self.workers if worker.built is not None]:
            now = time.monotonic()
            if now - start > _START_SECONDS:
                raise UsageError(
                    f"{len(waiting)} of {len(self.workers)} rollout workers did not start within "
                    f"{_START_SECONDS / 60:.0f} minutes: each needs {self._cpus:g} CPUs, and {self.cluster.text()}. "
                    "Lower rollout_workers or worker_cpus, or add machines."
                )
            if now - said > _NOTICE_SECONDS:
                said, ready = now, len(self.workers) - len(waiting)
                log.warning("%d of %d rollout workers are ready; %s.", ready, len(self.workers), self.cluster.text())
            for reference in self.cluster.wait([worker.built for worker in waiting], _POLL_SECONDS):
                worker = next(worker for worker in waiting if worker.built is reference)
                try:
                    self._greet(worker)
                except WorkerLost as lost:
                    self._replace(worker, lost)

    def _greet(self, worker: Worker) -> None:
        """Take the answer of `build`; say if the worker has other versions than the learner."""
        worker.about, worker.built = self.cluster.get(worker.built), None
        about, ours = worker.about, versions()
        others = [f"{name} {about[name]} (here {version})" for name, version in ours.items() if about[name] != version]
        if others:
            log.warning("Rollout worker %d on %s has %s.", worker.index, about["node"], ", ".join(others))

    def ask(self, order: Order) -> dict[Any, Worker]:
        """Ask every worker for its part of a rollout; returns the answers to wait for."""
        return {worker.collect(order): worker for worker in self.workers}

    def harvest(self, order: Order, running: dict[Any, Worker]) -> Iterator[tuple[Worker, Harvest]]:
        """The parts of a rollout as they come; workers that are lost are replaced, and asked again."""
        while running:
            done = self.cluster.wait(list(running), _POLL_SECONDS)
            if not done:
                self._make_do(running, order)
            for reference in done:
                worker = running.pop(reference)
                try:
                    if worker.built is not None:
                        self._greet(worker)
                    if worker.restored is not None and not self.cluster.get(worker.restored):
                        raise EnvFailure(f"rollout worker {worker.index} cannot continue from the state of its envs.")
                    worker.restored = None
                    harvest: Harvest = self.cluster.get(reference)
                except WorkerLost as lost:
                    self._replace(worker, lost)
                    running[worker.collect(order)] = worker
                    continue
                for level, text in harvest.messages:
                    log.log(level, "Rollout worker %d: %s", worker.index, text)
                worker.losses, worker.seed = 0, None
                worker.state = to_tensors(harvest.state)
                yield worker, harvest

    def ask_one(self, worker: Worker, method: str, *arguments: Any) -> Any:
        """The answer of a worker between rollouts; if it is lost, that of its replacement."""
        while True:
            try:
                return self.cluster.get(getattr(worker.actor, method).remote(*arguments))
            except WorkerLost as lost:
                self._replace(worker, lost)

    def _replace(self, worker: Worker, lost: WorkerLost) -> None:
        worker.losses += 1
        self.lost += 1
        node = f" on {worker.about['node']}" if worker.about else ""
        name = f"rollout worker {worker.index}{node} ({worker.envs})"
        if worker.losses >= _MOST_LOSSES:
            raise EnvFailure(f"{name} was lost {worker.losses} times in a row; the last time: {lost}")
        what = "a new one repeats its part of the rollout"
        if worker.state is not None and worker.state.env is None:
            what = "a new one starts new episodes"
            worker.seed = stream_seed(self._seed + self.lost, "resumed envs") % 2**31 + worker.share.first
            self.restarted.append(worker.share)
        log.warning("%s was lost (%s): %s.", name.capitalize(), lost, what)
        worker.launch(self.cluster, self._cpus)

    def _make_do(self, running: dict[Any, Worker], order: Order) -> None:
        """Start workers that have waited too long for a free CPU without one: they share those of others."""
        for reference, worker in list(running.items()):
            has_time = worker.built is None or time.monotonic() - worker.since < _REPLACEMENT_SECONDS
            if has_time or self.cluster.wait([worker.placed], 0.0):
                continue
            log.warning("No CPU is free for rollout worker %d (%s): it shares one.", worker.index, self.cluster.text())
            del running[reference]
            worker.launch(self.cluster, 0.0)
            running[worker.collect(order)] = worker
