"""One write an iteration: the metrics file (the truth), TensorBoard, the progress bar and the console table."""

import contextlib
import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from proxima.sections import TrackOptions

log = logging.getLogger("proxima")

METRICS_FILE = "metrics.jsonl"
_PROGRESS_LINE_SECONDS = 30.0
_TENSORBOARD_GROUPS = {
    "action_hold": "hold",
    "decisions": "hold",
    "episode": "episodes",
    "policy_loss": "losses",
    "value_loss": "losses",
    "q_loss": "losses",
    "entropy": "losses",
    "steps_per_second": "speed",
    "seconds": "speed",
}

# Metrics of the line under the progress bar, where the algorithm has them.
_HEALTH = {
    "approx_kl": ".4f",
    "clip_fraction": ".2f",
    "explained_variance": ".2f",
    "q_loss": ".4g",
    "epsilon": ".3f",
}


class Tracker:
    """Writes the metrics of every iteration to all that show them."""

    def __init__(self, run_dir: Path, options: TrackOptions, *, total_steps: int, first_step: int, console: Console):
        self.options, self.console = options, console
        self._file = (run_dir / METRICS_FILE).open("w", buffering=1)
        self._board: Any = None
        if options.tensorboard:
            # Imported here: it takes a second, and only a run that writes it should pay.
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run_dir / "tb"), flush_secs=30)
        self._iterations = 0
        self._failed = False
        self._total, self._last_line = total_steps, time.monotonic()
        self._bar: Progress | None = None
        if options.progress and console.is_terminal:
            self._bar = TwoLineProgress(
                TextColumn("[bold]steps"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("ETA"),
                TimeRemainingColumn(compact=True),
                console=console,
                expand=True,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task("train", total=total_steps, completed=first_step, summary="")
            self._bar.start()

    def write(self, metrics: Mapping[str, float]) -> None:
        """Record one iteration."""
        self._iterations += 1
        # NaN is not JSON: a metric that has no value yet is null.
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
        end = self._file.tell()
        try:
            self._file.write(json.dumps(clean) + "\n")
            self._write_board(clean)
        except OSError as error:  # a full disk must not cost the run
            if not self._failed:
                log.warning("Metrics of iteration %s are lost: %s. The run goes on.", metrics["iteration"], error)
            self._failed = True
            with contextlib.suppress(OSError):
                os.truncate(self._file.fileno(), end)  # no half lines
        with contextlib.suppress(OSError):  # nor must a terminal that has gone
            self._show(metrics)

    def _write_board(self, metrics: Mapping[str, float | None]) -> None:
        if self._board is None:
            return
        for name, value in metrics.items():
            if value is not None and name not in ("iteration", "global_step"):
                self._board.add_scalar(f"{_board_group(name)}/{name}", value, metrics["global_step"])

    def _show(self, metrics: Mapping[str, float]) -> None:
        step = int(metrics["global_step"])
        if self._bar is not None:
            self._bar.update(self._task, completed=min(step, self._total), summary=summary(metrics))
        elif self.options.progress and time.monotonic() - self._last_line > _PROGRESS_LINE_SECONDS:
            self._last_line = time.monotonic()
            left = (self._total - step) / max(metrics["steps_per_second"], 1e-9)
            self.console.print(
                f"{step:,}/{self._total:,} steps, ETA {left:,.0f} s, {summary(metrics)}", highlight=False
            )
        if self.options.log_every and self._iterations % self.options.log_every == 0:
            self.table(metrics)

    def table(self, metrics: Mapping[str, float]) -> None:
        """Print every metric of an iteration."""
        table = Table(title=f"iteration {int(metrics['iteration'])}", show_header=False, title_justify="left")
        items = list(metrics.items())
        half = -(-len(items) // 2)
        for i in range(half):
            row = [cell for name, value in items[i::half] for cell in (name, f"{value:,.6g}")]
            table.add_row(*row)
        self.console.print(table)

    def close(self, metrics: Mapping[str, float]) -> None:
        """Stop the bar, show the last metrics, and flush everything."""
        with contextlib.suppress(OSError):
            if self._bar is not None:
                self._bar.stop()
            if metrics:
                self.table(metrics)
        with contextlib.suppress(OSError):
            if self._board is not None:
                self._board.close()
            self._file.close()


class TwoLineProgress(Progress):
    """The bar, and the numbers under it, which wrap in a narrow terminal."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar's own table, then the summary."""
        yield from super().get_renderables()
        for task in self.tasks:
            yield Text(task.fields["summary"])


def summary(metrics: Mapping[str, float]) -> str:
    """The few numbers that tell whether a run is well, those of its algorithm."""
    health = [f"{name} {metrics[name]:{form}}" for name, form in _HEALTH.items() if name in metrics]
    first = f"{metrics['steps_per_second']:,.0f} steps/s return {metrics['episode_return']:,.1f}"
    return " ".join([first, *health])


def make_console() -> Console:
    """Where people read: standard error, so that standard output stays free for results."""
    return Console(file=sys.stderr, soft_wrap=True)


def log_handler(console: Console) -> logging.Handler:
    """Log records above the progress bar in a terminal, and unbroken lines in a file."""
    if console.is_terminal:
        return RichHandler(console=console, show_time=False, show_path=False, markup=False)
    return logging.StreamHandler(sys.stderr)


def _board_group(name: str) -> str:
    return next((group for part, group in _TENSORBOARD_GROUPS.items() if part in name), "update")
