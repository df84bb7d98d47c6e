"""Figures of a comparison, as PNG files."""

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from proxima.evaluation.plots import GREY, plt, save
from proxima.evaluation.statistics import FEWEST
from proxima.report.comparison import EVALUATED, HEALTH, RETURN, Comparison, band, extra_curves
from proxima.report.runs import Group
from proxima.runs.metrics import label
from proxima.text import number

COLOURS = ("#1f6fb4", "#e07b39", "#3a923a", "#b8322a", "#7d5fb2", "#8c613c", "#d977b4", "#5f5f5f")


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Write all figures of a comparison."""
    # A label or the name of a metric may contain dollars, which are not math here, and glyphs that the font lacks.
    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        return [
            *_returns(comparison, RETURN, "global_step", folder / "return-steps.png"),
            *_returns(comparison, RETURN, "wall_time", folder / "return-time.png"),
            *_returns(comparison, EVALUATED, "global_step", folder / "evaluated-return-steps.png"),
            _finals(comparison, folder / "final.png"),
            *_panels(comparison, extra_curves(comparison.groups), folder / "extras.png"),
            *_panels(comparison, HEALTH, folder / "health.png"),
        ]


def _returns(comparison: Comparison, name: str, against: str, path: Path) -> list[Path]:
    """Return of training or evaluated episodes, mean over seeds with its band; none unless every run has it."""
    path.unlink(missing_ok=True)  # of an earlier comparison
    if any(band(group, name) is None for group in comparison.groups):
        return []
    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    for i, group in enumerate(comparison.groups):
        _draw_band(axes, group, name, against, i)
    if comparison.threshold is not None and name == RETURN:
        legend = f"threshold {number(comparison.threshold)}"
        axes.axhline(comparison.threshold, color=GREY, lw=0.9, ls=":", label=legend)
    axes.set(xlabel=label(against), ylabel=label(name))
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    if against == "wall_time":
        _use_larger_units(axes)
    axes.legend(frameon=False, fontsize=9)
    _warn_of_envs(axes, comparison)
    return [save(figure, path)]


def _finals(comparison: Comparison, path: Path) -> Path:
    """Final training return of every run, with the IQM and, with enough seeds, its interval."""
    results = comparison.results
    figure, axes = plt.subplots(figsize=(7.2, 1.2 + 0.6 * len(results)), layout="constrained")
    for i, result in enumerate(results):
        colour, place, final = COLOURS[i % len(COLOURS)], len(results) - 1 - i, result.final["training"]
        if result.group.seeds >= FEWEST:
            axes.plot([final.iqm_low, final.iqm_high], [place] * 2, color=colour, lw=6, alpha=0.35)
        axes.plot(final.iqm, place, "|", color=colour, ms=18, mew=3)
        axes.plot(result.finals["training"], np.full(final.count, place), "o", color=colour, ms=4)
    axes.set_yticks(range(len(results)), [_wrapped(result.group.label, 28) for result in reversed(results)])
    axes.set_ylim(-0.6, len(results) - 0.4)
    bars = "; bar: its 95 % interval" if any(result.group.seeds >= FEWEST for result in results) else ""
    axes.set_xlabel(f"final training return\ndots: runs; line: IQM{bars}")
    _warn_of_envs(axes, comparison)
    return save(figure, path)


def _panels(comparison: Comparison, names: Sequence[str], path: Path) -> list[Path]:
    """One figure with one panel per metric that some group has, two in a row; none without any."""
    path.unlink(missing_ok=True)  # of an earlier comparison
    names = [name for name in names if any(band(group, name) is not None for group in comparison.groups)]
    if not names:
        return []
    rows = -(-len(names) // 2)
    figure, grid = plt.subplots(rows, 2, figsize=(9.6, 3.0 * rows), layout="constrained", squeeze=False)
    explained: set[str] = set()
    for axes, name in zip(grid.flat, names, strict=False):
        for i, group in enumerate(comparison.groups):
            _draw_band(axes, group, name, "global_step", i)
        axes.set_title(_wrapped(label(name), 60), fontsize=10)
        axes.set_xlabel(label("global_step"))
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        labels = set(axes.get_legend_handles_labels()[1])
        if labels - explained:  # a legend for groups that no earlier panel has
            axes.legend(frameon=False, fontsize=8)
        explained |= labels
    for axes in grid.flat[len(names) :]:
        axes.axis("off")
    return [save(figure, path)]


def _draw_band(axes: Axes, group: Group, name: str, against: str, place: int) -> None:
    found = band(group, name, against=against)
    if found is None:
        return
    colour = COLOURS[place % len(COLOURS)]
    kind = "95 % interval" if found.is_interval else "min to max"
    seeds = f"{group.seeds} seeds, {kind}" if group.seeds > 1 else "1 seed"
    axes.plot(found.x, found.mean, color=colour, lw=1.5, label=_wrapped(f"{group.label} ({seeds})", 60))
    if len(group.runs) > 1:
        axes.fill_between(found.x, found.low, found.high, color=colour, alpha=0.18, lw=0)


def _wrapped(text: str, width: int) -> str:
    """A label over several lines; a leading space, since matplotlib leaves `_...` out of legends."""
    text = textwrap.fill(textwrap.shorten(text, 4 * width, placeholder=" ...") if " " in text else text, width)
    return f" {text}" if text.startswith("_") else text


def _warn_of_envs(axes: Axes, comparison: Comparison) -> None:
    if len(comparison.envs) > 1:
        axes.set_title("different envs: their returns cannot be compared", fontsize=10)


def _use_larger_units(axes: Axes) -> None:
    """Minutes or hours on an axis of many seconds."""
    seconds = axes.dataLim.x1
    if seconds < 120:
        return
    size, unit = (60, "min") if seconds < 7200 else (3600, "h")
    ticks = MaxNLocator(8).tick_values(0.0, seconds / size)
    axes.set_xticks([size * tick for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.set(xlabel=label("wall_time").replace("(s)", f"({unit})"), xlim=(-0.02 * seconds, 1.02 * seconds))


def _short(value: float, _: int) -> str:
    """1500000 as 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
