"""The figures of a comparison, as PNG files."""

import textwrap
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no window, wherever it runs

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from proxima.evaluate.plots import GREY, save
from proxima.evaluate.statistics import FEWEST
from proxima.report.comparison import EVALUATED, HEALTH, RETURN, Comparison, band, extra_curves
from proxima.report.runs import Group
from proxima.text import number

COLOURS = ("#1f6fb4", "#e07b39", "#3a923a", "#b8322a", "#7d5fb2", "#8c613c", "#d977b4", "#5f5f5f")
AXES = {"global_step": "env steps", "wall_time": "wall time (s)"}
TITLES = {
    "approx_kl": "KL from the old policy",
    "clip_fraction": "clipped samples",
    "explained_variance": "explained variance of the critic",
    "entropy": "entropy of the policy (nats)",
    "q_loss": "loss of the action values",
    "q_mean": "mean action value",
    "td_error": "temporal-difference error",
    "epsilon": "share of random actions",
    "episode_success": "success in training episodes",
}


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Every figure of a comparison."""
    # A label or a metric's name may contain dollars, which are no formula here, and letters that the font lacks.
    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        return [
            returns(comparison, RETURN, "global_step", folder / "return-steps.png"),
            returns(comparison, RETURN, "wall_time", folder / "return-time.png"),
            *evaluated_returns(comparison, folder / "evaluated-return-steps.png"),
            finals(comparison, folder / "final.png"),
            *extras(comparison, folder / "extras.png"),
            *health(comparison, folder / "health.png"),
        ]


def returns(comparison: Comparison, name: str, against: str, path: Path) -> Path:
    """Return of training or evaluated episodes, mean over seeds with its band."""
    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    for i, group in enumerate(comparison.groups):
        _draw_band(axes, group, name, against, i)
    if comparison.threshold is not None and name == RETURN:
        label = f"threshold {number(comparison.threshold)}"
        axes.axhline(comparison.threshold, color=GREY, lw=0.9, ls=":", label=label)
    axes.set_xlabel(AXES[against])
    axes.set_ylabel(f"return of {'evaluated' if name == EVALUATED else 'training'} episodes")
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    axes.legend(frameon=False, fontsize=9)
    _warn_of_envs(axes, comparison)
    return save(figure, path)


def evaluated_returns(comparison: Comparison, path: Path) -> list[Path]:
    """The curve of the evaluations; none unless every run has some."""
    if any(result.evaluated is None for result in comparison.results):
        path.unlink(missing_ok=True)  # of another comparison
        return []
    return [returns(comparison, EVALUATED, "global_step", path)]


def finals(comparison: Comparison, path: Path) -> Path:
    """Final training return of every seed, with the IQM and its interval where there are enough seeds."""
    results = comparison.results
    figure, axes = plt.subplots(figsize=(7.2, 1.2 + 0.6 * len(results)), layout="constrained")
    for i, result in enumerate(results):
        colour = COLOURS[i % len(COLOURS)]
        place = len(results) - 1 - i
        if result.seeds >= FEWEST:
            axes.plot([result.final.iqm_low, result.final.iqm_high], [place] * 2, color=colour, lw=6, alpha=0.35)
        axes.plot(result.final.iqm, place, "|", color=colour, ms=18, mew=3)
        axes.plot(result.finals, np.full(len(result.finals), place), "o", color=colour, ms=4)
    axes.set_yticks(range(len(results)), [_wrapped(result.label, 28) for result in reversed(results)])
    axes.set_ylim(-0.6, len(results) - 0.4)
    bars = "; bar: its 95 % interval" if any(result.seeds >= FEWEST for result in results) else ""
    axes.set_xlabel(f"final training return\ndots: runs; line: IQM{bars}")
    _warn_of_envs(axes, comparison)
    return save(figure, path)


def extras(comparison: Comparison, path: Path) -> list[Path]:
    """Other metrics of training episodes that every run has, such as success; none where there are none."""
    return _panels(comparison, extra_curves(comparison.groups), path)


def health(comparison: Comparison, path: Path) -> list[Path]:
    """Diagnostics of the learner, those that some group has; none where no group has any."""
    shown = [name for name in HEALTH if any(band(group, name) is not None for group in comparison.groups)]
    return _panels(comparison, shown, path)


def _panels(comparison: Comparison, names: list[str], path: Path) -> list[Path]:
    """One figure with one panel per metric, two in a row."""
    if not names:
        path.unlink(missing_ok=True)  # of another comparison
        return []
    rows = -(-len(names) // 2)
    figure, grid = plt.subplots(rows, 2, figsize=(9.6, 3.0 * rows), layout="constrained", squeeze=False)
    explained: set[str] = set()
    for axes, name in zip(grid.flat, names, strict=False):
        for i, group in enumerate(comparison.groups):
            _draw_band(axes, group, name, "global_step", i)
        title = TITLES.get(name, f"{name.removeprefix('episode_')} of training episodes")
        axes.set_title(_wrapped(title, 60), fontsize=10)
        axes.set_xlabel("env steps")
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        labels = set(axes.get_legend_handles_labels()[1])
        if labels - explained:  # a group may lack what the first panel shows
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


def _wrapped(label: str, width: int) -> str:
    """A label over several lines; matplotlib leaves those that begin with an underscore out of its legends."""
    text = textwrap.fill(textwrap.shorten(label, 4 * width, placeholder=" ...") if " " in label else label, width)
    return f" {text}" if text.startswith("_") else text


def _warn_of_envs(axes: Axes, comparison: Comparison) -> None:
    if len(comparison.envs) > 1:
        axes.set_title("different envs: their returns do not compare", fontsize=10)


def _short(value: float, _: int) -> str:
    """1500000 as 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
