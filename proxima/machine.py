"""Cores and memory of the machine that this process can use, and its standard output."""

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def available_cores() -> int:
    """Cores that this process may use; can be fewer than the machine has, above all in a container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # there is no limit: the quota is "max", or the file is not there
        return cores


def physical_memory() -> float:
    """RAM of the machine in bytes; infinite if unknown."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, in blocks of up to 256 MiB, for later allocations of this process.

    By default it returns large blocks to the system, and every new page costs a page fault: a seventh of the time of
    PPO on images, which allocates and frees its activations in every minibatch. No effect on other C libraries.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    # glibc before 2.35 allows 32 MiB at most. If this fails, the trim threshold alone would make it slower.
    if mallopt is not None and (mallopt(_M_MMAP_THRESHOLD, 2**28) or mallopt(_M_MMAP_THRESHOLD, 2**25)):
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def stdout_to_stderr(active: bool = True) -> Iterator[None]:
    """Send standard output to standard error, also that of native code: PyBullet prints when an env is made."""
    if not active:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)  # C has a buffer of its own, which is otherwise written at exit
        os.dup2(kept, 1)
        os.close(kept)
