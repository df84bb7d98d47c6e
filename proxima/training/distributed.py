"""The ranks of a run: processes that `torchrun` started, each with its share of the envs. Rank 0 writes.

Numbers are exchanged by torch.distributed: with NCCL between GPUs of their own, with gloo otherwise.
"""

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from proxima.algo.peers import Peers
from proxima.errors import ProximaError, UsageError, first_line
from proxima.training.source import Share

# Set by torchrun, and by Kubernetes' and Slurm's ways to start PyTorch without it.
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# A rank that ended is noticed at once; this is for one that hangs. An evaluation on rank 0 must not take longer.
_TIMEOUT, _LAST_TIMEOUT, _ANSWER = timedelta(minutes=30), timedelta(seconds=15), timedelta(seconds=3)


log = logging.getLogger("proxima")
_broken: list[int] = []
"""This rank, if its run has failed."""


class LostRank(ProximaError):
    """Another rank has ended."""


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks of a run; a single one without torchrun."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among the ranks of this machine."""
    local_size: int = 1
    exchanges: bool = False
    """Whether torch.distributed is used: with torchrun, also for one rank."""

    @property
    def launcher(self) -> str:
        """What to put before `proxima resume` to continue with as many ranks."""
        if not self.exchanges:
            return ""
        several = "" if self.size == self.local_size else "... "  # the options for several machines
        return f"torchrun --nproc-per-node {self.local_size} {several}-m "

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def share(self, num_envs: int) -> Share:
        """This rank's part of the envs."""
        return Share(0, num_envs, num_envs).split(self.size)[self.rank]

    def peers(self, num_envs: int) -> Peers:
        """The ranks as a learner sees them."""
        counts = tuple(share.count for share in Share(0, num_envs, num_envs).split(self.size))
        return Peers(counts, self.rank, self.sum if self.exchanges else None)

    def sum(self, x: Tensor) -> Tensor:
        """The sum of a tensor over all ranks, in place."""
        _call(dist.all_reduce, x)
        return x

    def gather(self, value: Any) -> list[Any]:
        """The values that all ranks give, in order."""
        if not self.exchanges:
            return [value]
        found: list[Any] = [None] * self.size
        _call(dist.all_gather_object, found, value)
        return found

    def gather_first(self, value: Any, *, to: int = 0) -> list[Any] | None:
        """The values that all ranks give, on rank 0, or on rank `to`; None on the others."""
        if not self.exchanges:
            return [value]
        found: list[Any] | None = [None] * self.size if self.rank == to else None
        _call(dist.gather_object, value, found, dst=to)
        return found

    def gather_last(self, value: Any) -> list[Any] | None:
        """Like `gather_first`, when the run is over: whatever the others were doing, or LostRank before long."""
        found: list[Any] | None = [None] * self.size if self.is_first else None
        _call(dist.gather_object, value, found, dst=0, group=_last_words())
        return found

    def from_first(self, value: Any) -> Any:
        """The value that rank 0 gives."""
        if not self.exchanges:
            return value
        found = [value]
        _call(dist.broadcast_object_list, found, src=0)
        return found[0]

    @property
    def is_deputy(self) -> bool:
        """Whether this rank saves if rank 0 is lost."""
        return self.rank == 1

    def takes_over(self) -> bool:
        """Whether this is the rank that has to save, after one was lost: rank 0, or its deputy if that was rank 0."""
        if self.is_deputy:
            with contextlib.suppress(RuntimeError):  # it does not: or, not with torchrun, the store is gone with it
                dist.distributed_c10d._get_default_store().wait(["rank 0 saves"], _ANSWER)
                return False
        return self.is_first or self.is_deputy

    def abandon(self) -> None:
        """The run is broken: this rank leaves without waiting for the others. Rank 0 says that it saves."""
        _broken.append(self.rank)
        if self.exchanges and self.is_first:
            with contextlib.suppress(RuntimeError):
                dist.distributed_c10d._get_default_store().set("rank 0 saves", "")

    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        """Make tensors equal to those of rank 0: other kinds of processors round differently."""
        if not self.exchanges or self.size == 1:
            return
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for x in tensors:
            kinds.setdefault(x.dtype, []).append(x)
        for alike in kinds.values():  # one exchange per kind: its latency counts, not its size
            flat = torch.cat([x.flatten() for x in alike])
            _call(dist.broadcast, flat, src=0)
            for x, part in zip(alike, flat.split([x.numel() for x in alike]), strict=True):
                x.copy_(part.view(x.shape))


def _call(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
    try:
        function(*arguments, **keywords)
    except RuntimeError as error:  # what torch.distributed raises is derived from it
        log.debug("%s", error)
        raise LostRank("another rank ended or does not answer") from error


@cache
def this_rank() -> Ranks:
    """This process among the ranks that torchrun started; torch.distributed is started with the first call."""
    if any(name not in os.environ for name in _VARIABLES):
        return Ranks()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, local_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if not dist.is_available():
        raise UsageError("torchrun needs a PyTorch with torch.distributed, which this build does not have.")
    if not dist.is_initialized():
        # Several ranks on one GPU cannot use NCCL.
        on_gpus = dist.is_nccl_available() and local_size <= torch.cuda.device_count()
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        notice = threading.Timer(10.0, log.warning, ["Rank %d waits for the others at %s.", rank, place])
        notice.daemon = True
        notice.start()
        try:
            dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo", timeout=_TIMEOUT)
        except (ValueError, RuntimeError, OSError) as error:
            raise UsageError(
                f"the {size} ranks cannot meet at {place} ({first_line(error)}): start them with torchrun, or unset "
                f"{', '.join(_VARIABLES)}."
            ) from error
        finally:
            notice.cancel()
        _last_words()
        atexit.register(_leave)
    if rank:
        logging.getLogger("proxima").addFilter(_Named(rank))
    return Ranks(rank, size, local_rank, local_size, exchanges=True)


@cache
def _last_words() -> Any:
    """A group of all ranks that training does not use, and that is not waited for long; made with the first rank."""
    return dist.new_group(backend="gloo", timeout=_LAST_TIMEOUT)


def _leave() -> None:
    """End torch.distributed once all ranks are done with it; a process that just exits may abort in its threads."""
    if dist.is_initialized():
        if not _broken:
            with contextlib.suppress(RuntimeError):  # a rank is lost
                dist.barrier(group=_last_words())
        dist.destroy_process_group()


def exit_rank(code: int) -> None:
    """End this process, if it is one of several ranks, without the end of the interpreter.

    With the threads of gloo, that aborts now and then, and torchrun would take a good run for a failed one.
    """
    if dist.is_initialized():
        _leave()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Named(logging.Filter):
    """Puts the number of the rank in front of what it logs."""

    def __init__(self, rank: int):
        super().__init__()
        self._rank = rank

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the message."""
        record.msg = f"rank {self._rank}: {record.msg}"
        return True
