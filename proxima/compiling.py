"""Helpers around compilation: one warning if it fails, and process settings restored after a run."""

import contextlib
import gc
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger("proxima")
_has_frozen = False


def report_failure(what: str, error: Exception) -> None:
    """Warn in one sentence that something is not compiled, and why."""
    lines = [line.strip() for line in str(error).splitlines()]
    reason = next((line for line in lines if line and line != "from user code:"), "")
    log.warning("The %s is not compiled (%s): the run continues, but slower.", what, reason or type(error).__name__)


def is_toolchain_failure(error: Exception) -> bool:
    """Whether every other compilation will fail as well: no C++ compiler, or no disk space for its output."""
    return isinstance(error, OSError) or type(error).__name__ in ("InvalidCxxCompiler", "CppCompileError")


def compiled_note(*settings: Any) -> Path:
    """The file that notes, in the compiler's own cache, that code for these settings has been compiled before."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # takes a second to import

    digest = hashlib.sha256(repr((torch.__version__, torch.backends.cpu.get_cpu_capability(), settings)).encode())
    for room in ("algo", "data", "nets"):
        for path in sorted((Path(__file__).parent / room).glob("*.py")):
            digest.update(path.read_bytes())
    return Path(cache_dir()) / "proxima" / f"{digest.hexdigest()[:32]}.compiled"


def write_note(path: Path) -> None:
    """Write the file of `compiled_note`; a folder that cannot be written only costs the knowledge."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@contextlib.contextmanager
def process_settings_kept() -> Iterator[None]:
    """Restore the host program's torch threads, and unfreeze what was frozen in between."""
    global _has_frozen
    threads, had_frozen = torch.get_num_threads(), _has_frozen
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if _has_frozen and not had_frozen:
            gc.unfreeze()
            _has_frozen = False


def freeze_garbage() -> None:
    """Exclude existing objects, such as the many of the compiler, from garbage collection during the run.

    Not if the host program has frozen objects of its own, which could not be told apart at the end.
    """
    global _has_frozen
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
        _has_frozen = True


@contextlib.contextmanager
def float32_by_default() -> Iterator[None]:
    """Create tensors in float32, whatever the host program's default is."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
