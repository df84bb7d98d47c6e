"""What this process may use of the machine, and how it does."""

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def available_cores() -> int:
    """Cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_memory() -> float:
    """Bytes of memory that the machine has; infinite where it does not tell."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def keep_freed_memory() -> None:
    """Let the C library keep memory that is freed for what is allocated next, blocks of up to 256 MiB, from now on.

    By default it gives large blocks back to the system, and every new page costs a fault: a seventh of the time of PPO
    on images, whose activations come and go with every minibatch. Only glibc is told; others have ways of their own.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    # Before glibc 2.35 no more than 32 MiB are allowed; and where none is, the other setting alone does harm.
    if mallopt is not None and (mallopt(_M_MMAP_THRESHOLD, 2**28) or mallopt(_M_MMAP_THRESHOLD, 2**25)):
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
