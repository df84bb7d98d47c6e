"""Passes the metrics of every iteration to all writers: files, TensorBoard, W&B, own loggers, the progress display."""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from rich.console import Console

from proxima.config.sections import TrackOptions
from proxima.errors import UsageError
from proxima.own_parts import find_part
from proxima.runs.layout import METRICS
from proxima.track.append_file import AppendFile
from proxima.track.own_logger import make_logger
from proxima.track.progress import ProgressDisplay
from proxima.track.tensor_board import TensorBoard
from proxima.track.wandb import WandB, import_wandb

log = logging.getLogger("proxima")


class Writer(Protocol):
    """Writes the metrics of every iteration. Its failure affects neither the run nor other writers.

    Warnings call it by its attribute `name`, or without one by its class.
    """

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of an iteration that ended at env step `step`; NaN means that a metric has no value."""

    def close(self) -> None:
        """Called once, at the end of the run."""


class JsonLines:
    """Writes `metrics.jsonl`, one JSON object per iteration; NaN and infinity become null."""

    name = METRICS

    def __init__(self, run_dir: Path):
        self._file = AppendFile(run_dir / METRICS)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of one iteration."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
        self._file.append(json.dumps(clean).encode() + b"\n")

    def close(self) -> None:
        """Write pending lines and close the file."""
        self._file.close()


class Tracker:
    """The writers of a run; an exception in one is logged."""

    def __init__(self, writers: Sequence[Writer]):
        self.writers = writers
        self._failing: set[int] = set()

    def write(self, metrics: Mapping[str, float]) -> None:
        """Write the metrics of one iteration."""
        for writer in self.writers:
            self._guard(writer, partial(writer.write, int(metrics["global_step"]), metrics))

    def close(self) -> None:
        """Close every writer."""
        for writer in self.writers:
            self._guard(writer, writer.close, at_end=True)

    def _guard(self, writer: Writer, work: Callable[[], None], *, at_end: bool = False) -> None:
        name = getattr(writer, "name", type(writer).__name__)
        try:
            work()
        except Exception as error:  # a user's writer can raise anything
            what = f"{type(error).__name__}: {error}" if not isinstance(error, OSError) else error.strerror or error
            if at_end:
                log.warning("%s is not complete: %s.", name, what)
            elif id(writer) not in self._failing:
                log.warning("%s cannot be written: %s. The run continues and will try again.", name, what)
            self._failing.add(id(writer))
        else:
            self._failing.discard(id(writer))


def check_writers(options: TrackOptions) -> None:
    """Raise a UsageError if Weights & Biases or a logger cannot be imported, before anything is written."""
    if options.wandb is not None:
        import_wandb()
    for named in options.loggers:
        try:
            find_part(named if isinstance(named, str) else next(iter(named)), what="logger")
        except UsageError as error:
            raise UsageError(f"{str(error).removesuffix('.')}; without it: --loggers [].") from None


def make_tracker(
    run_dir: Path,
    options: TrackOptions,
    *,
    config: str,
    total_steps: int,
    first_step: int,
    console: Console,
    wandb_run: str | None = None,
) -> Tracker:
    """Open the writers that the options select.

    Raises:
        OSError: the run folder cannot be written.
        UsageError: TensorBoard, Weights & Biases or a logger of the user's own cannot be imported or made.
    """
    writers: list[Writer] = [JsonLines(run_dir)]
    if options.tensorboard:
        try:
            writers.append(TensorBoard(run_dir, config=config))
        except OSError:
            raise
        except Exception as error:  # often an incompatible protobuf
            raise UsageError(
                f"TensorBoard cannot be imported ({type(error).__name__}: {str(error)[:200]!r}): install it again, or "
                "give --no-tensorboard."
            ) from error
    if options.wandb is not None:
        writers.append(WandB(options.wandb, run_dir, run_id=wandb_run, config=config))
    writers += [make_logger(name, run_dir) for name in options.loggers]
    writers.append(ProgressDisplay(options, total_steps=total_steps, first_step=first_step, console=console))
    return Tracker(writers)
