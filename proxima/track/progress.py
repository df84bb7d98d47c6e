"""Console output during training: a progress bar in a terminal, lines elsewhere, and tables of all metrics."""

import contextlib
import logging
import sys
import time
from collections.abc import Iterable, Mapping

from rich.console import Console, RenderableType
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from proxima.config.sections import TrackOptions
from proxima.text import number

_PROGRESS_LINE_SECONDS = 30.0
# Metrics of the line under the progress bar, if the algorithm has them.
_HEALTH = {"approx_kl": ".4f", "clip_fraction": ".2f", "explained_variance": ".2f", "q_loss": ".4g", "epsilon": ".3f"}


class ProgressDisplay:
    """The progress bar or lines, and a table every `log_every` iterations."""

    name = "progress"

    def __init__(self, options: TrackOptions, *, total_steps: int, first_step: int, console: Console):
        self._options, self._console = options, console
        self._total, self._last_line = total_steps, time.monotonic()
        self._iterations, self._last = 0, dict[str, float]()
        self._bar: Progress | None = None
        if options.progress and console.is_terminal:
            self._bar = _TwoLineProgress(
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

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show one iteration."""
        self._iterations += 1
        self._last = dict(metrics)
        if self._bar is not None:
            self._bar.update(self._task, completed=min(step, self._total), summary=summary(metrics))
        elif self._options.progress and time.monotonic() - self._last_line > _PROGRESS_LINE_SECONDS:
            self._last_line = time.monotonic()
            left = (self._total - step) / max(metrics["steps_per_second"], 1e-9)
            self._console.print(f"{step:,}/{self._total:,} steps, ETA {left:,.0f} s, {summary(metrics)}")
        if self._options.log_every and self._iterations % self._options.log_every == 0:
            self._console.print(_table(metrics))

    def close(self) -> None:
        """Stop the bar and show the last metrics."""
        with contextlib.suppress(OSError):  # the terminal was closed
            if self._bar is not None:
                self._bar.stop()
            if self._last:
                self._console.print(_table(self._last))


class _TwoLineProgress(Progress):
    """A progress bar with a summary under it, which wraps in a narrow terminal."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar, then the summary."""
        yield from super().get_renderables()
        for task in self.tasks:
            yield Text(task.fields["summary"], no_wrap=False, overflow="fold")


def summary(metrics: Mapping[str, float]) -> str:
    """The metrics that show whether a run is healthy."""
    health = [f"{name} {metrics[name]:{form}}" for name, form in _HEALTH.items() if name in metrics]
    first = f"{metrics['steps_per_second']:,.0f} steps/s return {number(metrics['episode_return'])}"
    return " ".join([first, *health, *_workers(metrics)])


def _workers(metrics: Mapping[str, float]) -> list[str]:
    """The rollout workers, their speed, and the share of the learner's time that it waits for them."""
    if "rollout_workers" not in metrics:
        return []
    speed, wait = metrics["worker_steps_per_second"], metrics["learner_wait"]
    return [f"{metrics['rollout_workers']:.0f} workers {speed:,.0f} steps/s, learner waits {wait:.0%}"]


def _table(metrics: Mapping[str, float]) -> Table:
    """Every metric of an iteration, in two columns."""
    table = Table(title=f"iteration {int(metrics['iteration'])}", show_header=False, title_justify="left")
    items = list(metrics.items())
    half = -(-len(items) // 2)
    for i in range(half):
        table.add_row(*[cell for name, value in items[i::half] for cell in (name, f"{value:,.6g}")])
    return table


def make_console(*, quiet: bool = False) -> Console:
    """A console on standard error; standard output is for results."""
    return _RunConsole(file=sys.stderr, soft_wrap=True, markup=False, highlight=False, quiet=quiet)


class _RunConsole(Console):
    """Becomes quiet when its pipe is closed (`proxima train 2>&1 | head`); Rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Print nothing from now on."""
        self.quiet = True


def log_handler(console: Console) -> logging.Handler:
    """A log handler that prints above the progress bar in a terminal, and unwrapped lines elsewhere."""
    if console.is_terminal:
        return RichHandler(console=console, show_time=False, show_path=False, markup=False)
    return logging.StreamHandler(sys.stderr)
