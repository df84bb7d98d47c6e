"""The figures of a comparison, as PNG files."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no window, wherever it runs

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from proxima.evaluate.plots import GREY, save
from proxima.report.comparison import HEALTH, RETURN, Comparison, band, extra_curves
from proxima.report.runs import Group

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
    return [
        returns(comparison, "global_step", folder / "return-steps.png"),
        returns(comparison, "wall_time", folder / "return-time.png"),
        finals(comparison, folder / "final.png"),
        *extras(comparison, folder / "extras.png"),
        *health(comparison, folder / "health.png"),
    ]


def returns(comparison: Comparison, against: str, path: Path) -> Path:
    """Return of the training episodes, mean over seeds and its band."""
    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    for number, group in enumerate(comparison.groups):
        _draw_band(axes, group, RETURN, against, number)
    axes.axhline(comparison.threshold, color=GREY, lw=0.9, ls=":", label=f"threshold {comparison.threshold:,.0f}")
    axes.set_xlabel(AXES[against])
    axes.set_ylabel("return of training episodes")
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    axes.legend(frameon=False, fontsize=9)
    return save(figure, path)


def finals(comparison: Comparison, path: Path) -> Path:
    """Final IQM and its interval, with every seed."""
    results = comparison.results
    figure, axes = plt.subplots(figsize=(7.2, 1.2 + 0.5 * len(results)), layout="constrained")
    for number, result in enumerate(results):
        colour = COLOURS[number % len(COLOURS)]
        place = len(results) - 1 - number
        axes.plot([result.final.iqm_low, result.final.iqm_high], [place] * 2, color=colour, lw=6, alpha=0.35)
        axes.plot(result.final.iqm, place, "|", color=colour, ms=18, mew=3)
        axes.plot(result.finals, np.full(len(result.finals), place), "o", color=colour, ms=4)
    axes.set_yticks(range(len(results)), [result.label for result in reversed(results)])
    axes.set_ylim(-0.6, len(results) - 0.4)
    axes.set_xlabel("final return: IQM with 95 % interval; dots are seeds")
    return save(figure, path)


def extras(comparison: Comparison, path: Path) -> list[Path]:
    """What else the env tells of training episodes; none where not every run has some of it."""
    return _panels(comparison, extra_curves(comparison.groups), path)


def health(comparison: Comparison, path: Path) -> list[Path]:
    """The learner's health side by side, of each algorithm what it has; none where no run has any of it."""
    shown = [name for name in HEALTH if any(band(group.runs, name) is not None for group in comparison.groups)]
    return _panels(comparison, shown, path)


def _panels(comparison: Comparison, names: list[str], path: Path) -> list[Path]:
    """One figure with a panel a metric, two in a row."""
    if not names:
        path.unlink(missing_ok=True)  # of another comparison
        return []
    rows = -(-len(names) // 2)
    figure, grid = plt.subplots(rows, 2, figsize=(9.6, 3.0 * rows), layout="constrained", squeeze=False)
    explained: set[str] = set()
    for axes, name in zip(grid.flat, names, strict=False):
        for number, group in enumerate(comparison.groups):
            _draw_band(axes, group, name, "global_step", number)
        axes.set_title(TITLES.get(name, f"{name.removeprefix('episode_')} of training episodes"), fontsize=10)
        axes.set_xlabel("env steps")
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        labels = set(axes.get_legend_handles_labels()[1])
        if labels - explained:  # a group may lack what the first panel shows
            axes.legend(frameon=False, fontsize=8)
        explained |= labels
    for axes in grid.flat[len(names) :]:
        axes.axis("off")
    return [save(figure, path)]


def _draw_band(axes: Axes, group: Group, name: str, against: str, number: int) -> None:
    found = band(group.runs, name, against=against)
    if found is None:
        return
    colour = COLOURS[number % len(COLOURS)]
    axes.plot(found.x, found.mean, color=colour, lw=1.5, label=f"{group.label} ({len(group.runs)})")
    if len(group.runs) > 1:
        axes.fill_between(found.x, found.low, found.high, color=colour, alpha=0.18, lw=0)


def _short(value: float, _: int) -> str:
    """1500000 as 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
