"""Writes the checkpoints of a run: when they are due, and again where the disk does not take one."""

import errno
import logging
import time
from pathlib import Path
from typing import Any

import torch

from proxima.config import Config
from proxima.runs import checkpoint
from proxima.training.examiner import passed

log = logging.getLogger("proxima")

Boundary = dict[str, Any]
"""All that a checkpoint of one iteration boundary holds: `iteration`, `files` and `metadata`."""
_LAST_SAVE_PAUSES = (0.2, 0.5, 1.0, 2.0)  # seconds
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Saver:
    """Saves the checkpoints of one run folder."""

    def __init__(self, config: Config, run_dir: Path):
        self._config, self._run_dir = config, run_dir
        self.last: Path | None = None
        """The checkpoint saved last."""
        self.iteration: int | None = None
        """The iteration that it is of."""

    def save(self, boundary: Boundary | None, *, is_last: bool = False) -> Path | None:
        """Write a checkpoint; where the disk does not take it, say so and let the run go on.

        The last one is tried again for some seconds: there is no later one to make up for it.
        """
        if boundary is None or boundary["iteration"] == self.iteration:
            return self.last
        for pause in (*_LAST_SAVE_PAUSES, None) if is_last else (None,):
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
        return self.last

    def _write(self, boundary: Boundary) -> None:
        while True:
            try:
                self.last = checkpoint.save(self._run_dir, name=self._config.name, **boundary)
                break
            except OSError as error:  # a full disk may have room for the newest in place of the oldest
                if error.errno not in _NO_ROOM or not checkpoint.make_room(self._run_dir):
                    raise
        self.iteration = boundary["iteration"]
        checkpoint.prune(self._run_dir, keep=self._config.checkpoint.keep_checkpoints)


class Due:
    """Tells when a checkpoint is due: every so many steps, every so many minutes."""

    def __init__(self, config: Config, step: int):
        self._freq, self._seconds = config.checkpoint.checkpoint_freq, 60 * config.checkpoint.checkpoint_minutes
        self._step, self._time = step, time.monotonic()

    def __call__(self, step: int) -> bool:
        """Whether one is due now; if so, the next is due one interval later."""
        now = time.monotonic()
        by_step = passed(self._freq, self._step, step)
        by_time = bool(self._seconds) and now - self._time >= self._seconds
        if by_step or by_time:
            self._step, self._time = step, now
        return by_step or by_time


def copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """On the CPU; what has several names, as a shared trunk has, is copied and so saved once."""
    once = {(x.data_ptr(), x.shape): x.cpu().clone() for x in tensors.values()}
    return {name: once[x.data_ptr(), x.shape] for name, x in tensors.items()}
