"""Checkpoints of a run: their contents, when they are due, and how a run continues from one.

After every iteration the state is copied on its device, without waiting for it: a signal or an error in the middle of
the next iteration saves that copy. If a checkpoint is due, the copy goes to the host, and a thread writes it to disk.
"""

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from proxima.config import Config
from proxima.envs.action_hold import Hold
from proxima.evaluation.restored import check_weights
from proxima.runs import checkpoint
from proxima.runs.checkpoint import Checkpoint
from proxima.runs.layout import AGENT, TRAINING_STATE
from proxima.training.distributed import LostRank, Ranks
from proxima.training.examiner import passed
from proxima.training.partition import join_ranks, take_rank, without_envs
from proxima.training.seeding import stream_seed

if TYPE_CHECKING:
    from proxima.training.trainer import Trainer

log = logging.getLogger("proxima")

Boundary = dict[str, Any]
"""The state between two iterations, as arguments of `checkpoint.save`: `iteration`, `files` and `metadata`.

`copied` is the event after which it is complete on a GPU, until it is on the host. `share` is set where the training
state is that of one of several ranks, and has to be joined with those of the others."""
_GATHERED_BYTES = 8 * 2**20
_LAST_SAVE_PAUSES = (0.2, 0.5, 1.0, 2.0)  # seconds
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_FULL_DISK_PAUSE = 0.3  # seconds
_NOTICED_WAIT = 1.0  # seconds


def snapshot(trainer: "Trainer") -> Boundary | None:
    """A copy of everything that a checkpoint holds, on the devices where it is; None if this rank saves none.

    It is taken in every iteration, and so must not wait for a GPU. Of several ranks, rank 0 gets the envs of all where
    these are small (not of thousands of robots), and so does rank 1: if a rank is lost, one of them can save.
    """
    config, source, ranks, share = trainer.config, trainer.source, trainer.ranks, None
    if not config.checkpoint.save_checkpoint:
        return None
    own, state = trainer.algorithm.get_state() if config.checkpoint.save_optimizer else ({}, {})
    if ranks.size > 1 and state:
        if trainer.gathers_states is None:
            trainer.gathers_states = max(ranks.gather(_num_bytes(state))) <= _GATHERED_BYTES
        if trainer.gathers_states:
            given = (tree_map_only(Tensor, Tensor.cpu, state), source.share.count)
            found = [ranks.gather_first(given, to=rank) for rank in (0, 1)][min(1, ranks.rank)]
            state = state if found is None else join_ranks(*zip(*found, strict=True))
        else:
            share = source.share
    if share is None and not ranks.is_first and not ranks.is_deputy:
        return None
    files: dict[str, Any] = {AGENT: copies(trainer.policy.state_dict())}
    files |= {f"{name}.pt": copies(net.state_dict()) for name, net in trainer.algorithm.networks.items()}
    if config.checkpoint.save_optimizer:
        state |= {"iteration": trainer.iteration, "examiner": trainer.examiner.get_state()}
        state["processes"] = _processes(trainer)
        files |= own | {TRAINING_STATE: state}
    metadata = {
        "name": config.name,
        "iteration": trainer.iteration,
        "global_step": source.global_step,
        "episode_return": source.episodes.mean_return,
        "eval_return": trainer.examiner.eval_return,
        "action_hold": trainer.source.hold.to_dict(),
        "init_from": trainer.init_from,
        "wandb_run": trainer.wandb_run,
        "resumed_from": trainer.lineage[-1] if trainer.lineage else None,
        "lineage": trainer.lineage,
        "spec": trainer.policy.spec.to_dict(),
        "config": config.to_dict(),
    }
    copied = None
    if torch.cuda.is_initialized():
        copied = torch.cuda.Event()
        copied.record()
    return {"iteration": trainer.iteration, "files": files, "metadata": metadata, "copied": copied, "share": share}


def _processes(trainer: "Trainer") -> list[int]:
    """Ranks and rollout workers."""
    return [trainer.ranks.size, trainer.config.cluster.rollout_workers]


def _parts(ranks: int, workers: int) -> tuple[int, int]:
    """Ranks, and parts that the envs are divided into: a resume with the same numbers has the same bits."""
    return ranks, max(ranks, workers)


def _num_bytes(state: Any) -> int:
    return sum(x.nbytes for x in tree_leaves(state) if isinstance(x, Tensor))


def restore(trainer: "Trainer", path: Path) -> None:
    """Continue from a checkpoint; what could not be restored is added to the trainer's notices."""
    saved = Checkpoint(path)
    state, weights = saved.state(TRAINING_STATE), saved.weights
    share = trainer.source.share
    state = take_rank(state, share.first, share.count, share.total, trainer.source.env)

    def read(name: str) -> Any | None:
        return saved.state(name) if saved.has(name) else None

    config, algorithm, source = trainer.config, trainer.algorithm, trainer.source
    check_weights(weights, trainer.policy.state_dict())
    trainer.policy.load_state_dict(weights)
    for name, net in algorithm.networks.items():
        own = saved.state(f"{name}.pt")
        check_weights(own, net.state_dict(), file_name=f"{name}.pt")
        net.load_state_dict(own)
    trainer.iteration = state["iteration"]
    trainer.examiner.set_state(state["examiner"])
    seed = stream_seed(config.run.seed + trainer.iteration, "resumed envs") % 2**31
    different = algorithm.set_state(read, state, new_episodes_seed=seed)
    algorithm.follow_changes(saved.config)
    if not source.in_old_episodes:
        different.append(f"{path} has no state that fits these envs; new episodes")
    trainer.notices += [f"This resume is not exact: {what}." for what in different]
    before, now = state.get("processes"), _processes(trainer)
    if before is not None and not different and _parts(*before) != _parts(*now):
        said, done = (
            f"{ranks} rank{'s' * (ranks > 1)} and {workers} rollout workers" for ranks, workers in (before, now)
        )
        trainer.notices.append(
            f"Saved with {said}, resumed with {done}: the same episodes go on, but rounding differs."
        )
    progress = min(1.0, source.global_step / config.run.total_timesteps)
    trainer.notices += trainer.parts.hold_schedule.changed_by_resume(Hold(**saved.hold), progress)
    trainer.notices += algorithm.changed_by_resume(progress)
    trainer.init_from = _text(saved.metadata.get("init_from"))
    trainer.wandb_run = _text(saved.metadata.get("wandb_run")) or trainer.wandb_run
    trainer.lineage = [*saved.lineage, str(path.resolve())]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


class Saver:
    """Saves the checkpoints of one run folder, in the background or at once; at most one at a time.

    Of several ranks, rank 0 writes, and all call the same methods, since their states may have to be joined. Rank 1
    has the last iteration too, and writes it if rank 0 is lost (`takes_over`).
    """

    def __init__(self, config: Config, run_dir: Path, ranks: Ranks | None = None):
        self._config, self._run_dir, self._ranks = config, run_dir, ranks or Ranks()
        self.writes = self._ranks.is_first
        """Whether this rank writes checkpoints."""
        self._joined: tuple[int, Boundary | None] | None = None
        """The last iteration whose states were joined, and the result; None on the other ranks."""
        self.last: Path | None = None
        """The last complete checkpoint."""
        self.iteration: int | None = None
        """Iterations of the last complete checkpoint."""
        self._writing: _Background | None = None
        self._has_warned = False

    def save_in_background(self, boundary: Boundary | None) -> None:
        """Copy the state to the host and write it in a thread; waits for the write before this one.

        No checkpoint is skipped: the best one, and all that were asked for, exist however slow the disk is.
        """
        start = time.monotonic()
        self.wait()
        if (seconds := time.monotonic() - start) > _NOTICED_WAIT and not self._has_warned:
            self._has_warned = True
            log.warning(
                "Training waited %.1f s for a checkpoint that was still being written to %s: the next is due before "
                "the disk has finished. Raise checkpoint_freq or checkpoint_minutes.",
                seconds,
                self._run_dir,
            )
        boundary = self._join(boundary)
        if self.writes and boundary is not None and boundary["iteration"] != self.iteration:
            self._writing = _Background(self._try_to_write, on_host(boundary))

    def save(self, boundary: Boundary | None, *, is_last: bool = False, is_broken: bool = False) -> Path | None:
        """Write a checkpoint after the one in the background; if that fails, log a warning and let the run continue.

        The last one is retried for some seconds, because no later one will replace it. If the run `is_broken`, other
        ranks may not answer: what they do not say is left out, and a resume starts new episodes.
        """
        try:
            self.wait()
        finally:  # whatever became of the other one
            boundary = self._join(boundary, is_broken=is_broken)
            if self.writes and boundary is not None and boundary["iteration"] != self.iteration:
                self._try_to_write(on_host(boundary), pauses=_LAST_SAVE_PAUSES if is_last else ())
        return self.last

    def _join(self, boundary: Boundary | None, *, is_broken: bool = False) -> Boundary | None:
        """The boundary with the states of all ranks, on the rank that writes; None on the others."""
        if boundary is None or boundary.get("share") is None:
            return boundary
        if self._joined is None or self._joined[0] != boundary["iteration"]:
            self._joined = boundary["iteration"], self._joined_with_others(boundary, is_broken=is_broken)
        return self._joined[1]

    def _joined_with_others(self, boundary: Boundary, *, is_broken: bool) -> Boundary | None:
        share, held = boundary["share"], on_host(boundary)
        state, ranks = held["files"][TRAINING_STATE], self._ranks
        given = (boundary["iteration"], state, share.count)
        if not is_broken:
            found = ranks.gather_first(given)
        else:
            try:
                found = ranks.gather_last(given)
            except LostRank:
                found = None
        if not self.writes:
            return None
        if found is not None and {iteration for iteration, _, _ in found} == {boundary["iteration"]}:
            own = {name: state[name] for name in ("iteration", "examiner", "processes")}
            state = join_ranks([one for _, one, _ in found], [count for _, _, count in found]) | own
        else:
            log.warning("The envs of other ranks could not be saved: a resume will start new episodes.")
            state = without_envs(state, share.count, share.total)
        return {**held, "files": held["files"] | {TRAINING_STATE: state}, "share": None, "copied": None}

    def forget(self) -> None:
        """The state has changed since this iteration was saved: save it again."""
        self.iteration = self._joined = None

    def wait(self) -> None:
        """Until nothing is being written; raises what the write in the background raised, except an OSError."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.wait()

    def _try_to_write(self, boundary: Boundary, *, pauses: tuple[float, ...] = ()) -> None:
        for pause in (*pauses, None):
            try:
                self._write(boundary)
                break
            except OSError as error:
                if pause is not None:
                    time.sleep(pause)
                    continue
                log.warning(
                    "No checkpoint of iteration %d in %s: %s. The last one is %s.",
                    boundary["iteration"],
                    self._run_dir,
                    error.strerror or error,
                    self.last or "none",
                )

    def _write(self, boundary: Boundary) -> None:
        """Write a checkpoint. If the disk stays full, delete the oldest that is not needed and try again."""
        is_patient, keep = True, self._config.checkpoint.keep_checkpoints
        while True:
            try:
                self.last = checkpoint.save(self._run_dir, name=self._config.name, **boundary)
                break
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                if is_patient:  # the disk may be full only for a moment
                    is_patient = False
                    time.sleep(_FULL_DISK_PAUSE)
                elif not keep or not checkpoint.make_room(self._run_dir):
                    raise
                else:
                    is_patient = True
        self.iteration = boundary["iteration"]
        if keep:
            checkpoint.prune(self._run_dir, keep=keep)


class _Background:
    """A call in a thread. It is not a daemon: a program that ends lets it finish."""

    def __init__(self, function: Callable[[Boundary], None], boundary: Boundary):
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function, boundary), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until the call is over; raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, function: Callable[[Boundary], None], boundary: Boundary) -> None:
        try:
            function(boundary)
        except BaseException as error:
            self._error = error


class Due:
    """Decides when a checkpoint is due: every `checkpoint_freq` steps and every `checkpoint_minutes`."""

    def __init__(self, config: Config, step: int):
        self._freq, self._seconds = config.checkpoint.checkpoint_freq, 60 * config.checkpoint.checkpoint_minutes
        self._step, self._time = step, time.monotonic()

    def __call__(self, step: int) -> bool:
        """Whether one is due; if so, the next is due one interval later."""
        now = time.monotonic()
        by_step = passed(self._freq, self._step, step)
        by_time = bool(self._seconds) and now - self._time >= self._seconds
        if by_step or by_time:
            self._step, self._time = step, now
        return by_step or by_time


def copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the same device; a tensor with several names, as in a shared trunk, is copied and saved once."""
    once = {(x.data_ptr(), x.shape): x.clone() for x in tensors.values()}
    return {name: once[x.data_ptr(), x.shape] for name, x in tensors.items()}


def on_host(boundary: Boundary) -> Boundary:
    """The same state as a thread can write it while training goes on: on the CPU, and without functions.

    The thread itself must not call the GPU: that would break a CUDA graph that is being captured.
    """
    moved: dict[int, Tensor] = {}

    def move(x: Tensor) -> Tensor:
        if id(x) not in moved:  # a tensor with several names stays one
            moved[id(x)] = x.cpu()
        return moved[id(x)]

    with contextlib.ExitStack() as stack:
        if boundary.get("copied") is not None:
            # Beside the stream of training, which may wait for a rank that is lost.
            stream = torch.cuda.Stream()
            stream.wait_event(boundary["copied"])
            stack.enter_context(torch.cuda.stream(stream))
        files = {name: content() if callable(content) else content for name, content in boundary["files"].items()}
        files = tree_map_only(Tensor, move, files)
    return {"iteration": boundary["iteration"], "files": files, "metadata": boundary["metadata"]}
