"""What every use of a compiler shares: one sentence where it fails, and the process as it was when a run is over."""

import contextlib
import gc
import logging
from collections.abc import Iterator

import torch

log = logging.getLogger("proxima")


def report_failure(what: str, error: Exception) -> None:
    """Say in one sentence that something is not compiled, and why."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = next((line for line in lines if line and line != "from user code:"), "")
    log.warning("The %s is not compiled (%s): the run goes on, slower.", what, told or type(error).__name__)


def is_toolchain_failure(error: Exception) -> bool:
    """Whether any other compilation will fail as well: no C++ compiler, or no place for what it makes."""
    return isinstance(error, OSError) or type(error).__name__ in ("InvalidCxxCompiler", "CppCompileError")


@contextlib.contextmanager
def process_settings_kept() -> Iterator[None]:
    """Leave the host program its torch threads and its frozen objects."""
    threads, frozen = torch.get_num_threads(), gc.get_freeze_count()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if not frozen:
            gc.unfreeze()


def freeze_garbage() -> None:
    """What compilation made is large and stays: not to be walked through again and again while the run lasts."""
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


@contextlib.contextmanager
def float32_by_default() -> Iterator[None]:
    """Make tensors in float32, whatever the host program's default is."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
