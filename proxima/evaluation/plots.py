"""Figures of an evaluation report, as PNG files."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")  # never a window

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from proxima.evaluation.policy_analysis import PolicyAnalysis
from proxima.evaluation.value_analysis import ValueAnalysis
from proxima.text import number

if TYPE_CHECKING:
    from proxima.evaluation.gait import GaitAnalysis

BLUE, ORANGE, GREY, RED = "#1f6fb4", "#e07b39", "#7a7a7a", "#b8322a"
MOST_POINTS = 4000
SHOWN_EPISODES = 3
MOST_DIMENSIONS = 24
BINS = 41
"""Odd: a constant is in the middle of a bin."""


def save(figure: Figure, path: Path) -> Path:
    """Write a figure with readable axes, and close it."""
    for axes in figure.axes:
        if axes.get_label() != "<colorbar>":
            axes.set_xlim(_widened(*axes.get_xlim()))
            axes.set_ylim(_widened(*axes.get_ylim()))
        for axis in (axes.xaxis, axes.yaxis):
            formatter = axis.get_major_formatter()
            if isinstance(formatter, ScalarFormatter):  # complete numbers, not differences from an offset
                formatter.set_useOffset(False)
                formatter.set_powerlimits((-5, 9))
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _widened(low: float, high: float) -> tuple[float, float]:
    """Limits of an axis or a histogram, widened where they differ only by rounding errors."""
    level = max(abs(low), abs(high))
    if high - low > max(1e-8, 1e-4 * level):
        return low, high
    centre = 0.5 * (low + high)
    margin = 0.1 * level if level > 1e-8 else 0.5
    return centre - margin, centre + margin


def calibration(analysis: ValueAnalysis, path: Path) -> Path:
    """Value against return: all policy steps, means of bins, the fitted line and the perfect one."""
    figure, axes = plt.subplots(figsize=(6.4, 5.6), layout="constrained")
    every = max(1, len(analysis.predicted) // MOST_POINTS)
    points = analysis.predicted[::every], analysis.realised[::every]
    axes.scatter(*points, s=6, alpha=0.25, color=BLUE, linewidths=0, label="policy steps")
    centre, mean, error = analysis.binned()
    label = "mean of a bin ± 2 standard errors"
    axes.errorbar(centre, mean, 2 * error, fmt="o", color=ORANGE, ms=5, capsize=2, label=label)
    ends = np.array([analysis.predicted.min(), analysis.predicted.max()])
    slope, intercept = analysis.calibration
    if np.isfinite(slope):
        axes.plot(ends, slope * ends + intercept, color=ORANGE, lw=1.5, label=f"fit, slope {number(slope)}")
    axes.plot(ends, ends, color=GREY, lw=1.2, ls="--", label="perfect")
    bias = number(analysis.bias, scale=analysis.scale)
    title = f"Calibration: explained variance {number(analysis.explained_variance)}, bias {bias}"
    axes.set(xlabel="predicted value (units of reward)", ylabel="discounted return (units of reward)", title=title)
    axes.legend(frameon=False)
    return save(figure, path)


def along_episodes(analysis: ValueAnalysis, path: Path) -> Path:
    """Value, return and reward along the first episodes, with their ends marked."""
    shown = analysis.episodes[:SHOWN_EPISODES]
    form: dict[str, Any] = {"figsize": (4.6 * len(shown), 5.4), "sharex": "col", "height_ratios": [2, 1]}
    figure, grid = plt.subplots(2, len(shown), squeeze=False, layout="constrained", **form)
    start = 0
    for i, (episode, top, bottom) in enumerate(zip(shown, *grid, strict=True)):
        assert episode.trace is not None
        duration = episode.trace.duration
        rows = slice(start, start + len(duration))
        start += len(duration)
        time = np.cumsum(duration) - duration
        top.plot(time, analysis.predicted[rows], color=BLUE, lw=1.2, label="predicted value")
        top.plot(time, analysis.realised[rows], color=ORANGE, lw=1.2, label="discounted return")
        bottom.plot(time, episode.trace.reward, color=GREY, lw=0.9)
        colour, word = (RED, "terminated") if episode.terminated else (GREY, "time limit")
        for axes in (top, bottom):
            axes.axvline(episode.length - 1, color=colour, ls=":", lw=1.2)
        title = f"episode {i + 1}: return {number(episode.return_)}, {episode.length} env steps, {word}"
        top.set_title(title, fontsize=10)
        bottom.set_xlabel("env step")
    grid[0][0].set_ylabel("units of reward")
    grid[1][0].set_ylabel("reward")
    grid[0][0].legend(frameon=False, fontsize=9)
    return save(figure, path)


def error_by_time(analysis: ValueAnalysis, path: Path) -> Path:
    """Bias and root mean squared error against the env steps to the end."""
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    centre, mean, rmse = analysis.error_by_time_to_end()
    axes.plot(centre, rmse, "o-", color=ORANGE, label="root mean squared error")
    axes.plot(centre, mean, "o-", color=BLUE, label="mean error (bias)")
    axes.axhline(0, color=GREY, lw=0.8)
    axes.set(xlabel="env steps to the end of the episode", ylabel="predicted value - discounted return")
    axes.set_title("Error of the critic by env steps to the end")
    axes.legend(frameon=False)
    return save(figure, path)


def value_map(value: Callable[[np.ndarray], np.ndarray], seen: np.ndarray, names: tuple[str, str], path: Path) -> Path:
    """The value over two coordinates, with the visited states `seen` `[S, 2]`."""
    figure, axes = plt.subplots(figsize=(6.4, 5.2), layout="constrained")
    low, high = np.transpose([_widened(column.min(), column.max()) for column in seen.T])
    margin = 0.1 * (high - low)
    x, y = (np.linspace(a, b, 121) for a, b in zip(low - margin, high + margin, strict=True))
    grid = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
    values = value(grid).reshape(len(y), len(x))
    least, most = _widened(float(values.min()), float(values.max()))
    image = axes.pcolormesh(x, y, values, shading="nearest", cmap="viridis", vmin=least, vmax=most)
    every = max(1, len(seen) // MOST_POINTS)
    axes.scatter(seen[::every, 0], seen[::every, 1], s=2, color="white", alpha=0.35, linewidths=0)
    axes.set(xlabel=names[0], ylabel=names[1], title="Value over the state space; white: visited states")
    figure.colorbar(image, ax=axes, label="predicted value (units of reward)")
    return save(figure, path)


def action_distributions(analysis: PolicyAnalysis, path: Path) -> Path:
    """A histogram per action dimension, with its bounds."""
    count = min(analysis.action.shape[1], MOST_DIMENSIONS)
    columns = min(count, 4)
    rows = -(-count // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(3.1 * columns, 2.4 * rows), squeeze=False, layout="constrained")
    for i, axes in enumerate(grid.flat):
        if i < count:
            _histogram(axes, analysis, i)
        else:
            axes.axis("off")
    figure.supxlabel("action (units of the env)")
    figure.supylabel("share of policy steps")
    return save(figure, path)


def _histogram(axes: Axes, analysis: PolicyAnalysis, i: int) -> None:
    values = analysis.action[:, i]
    if analysis.discrete:
        choices, counts = np.unique(values.astype(int), return_counts=True)
        axes.bar(choices, counts / len(values), color=BLUE)
        axes.set_xticks(range(int(analysis.low[i]), int(analysis.high[i]) + 1) if analysis.high[i] < 12 else choices)
    else:
        limits = _widened(float(values.min()), float(values.max()))
        axes.hist(values, bins=BINS, range=limits, weights=np.full(len(values), 1 / len(values)), color=BLUE)
        for bound in (analysis.low[i], analysis.high[i]):
            if np.isfinite(bound):
                axes.axvline(bound, color=RED, ls=":", lw=1.2)
    scale = float(np.abs(values).max())
    mean, std = (number(float(x), scale=scale) for x in (values.mean(), values.std()))
    numbers = "" if analysis.discrete else f": mean {mean}, std {std}"
    axes.set_title(f"{analysis.names[i]}{numbers}", fontsize=9)


def action_summary(analysis: PolicyAnalysis, path: Path) -> Path:
    """Saturation and roughness by dimension, and the distribution of the entropy."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.8), layout="constrained")
    place = np.arange(analysis.action.shape[1])
    if analysis.discrete:
        left.bar(place, analysis.roughness, color=ORANGE, label="policy steps that change it")
    else:
        left.bar(place - 0.2, analysis.saturation, width=0.4, color=BLUE, label="policy steps at a bound")
        label = f"change per policy step / range{'' if analysis.bounded.all() else ' (unbounded: / std)'}"
        left.bar(place + 0.2, analysis.roughness, width=0.4, color=ORANGE, label=label)
    left.set_xticks(place[:: -(-len(place) // 16)])
    left.set(xlabel="action dimension", ylabel="share", ylim=(0, max(0.05, left.get_ylim()[1] * 1.25)))
    left.legend(frameon=False, fontsize=9)
    limits = _widened(float(analysis.entropy.min()), float(analysis.entropy.max()))
    right.hist(analysis.entropy, bins=BINS, range=limits, color=BLUE)
    right.set(xlabel="entropy of the policy (nats)", ylabel="policy steps")
    return save(figure, path)


def activations(gait: "GaitAnalysis", path: Path) -> Path:
    """Activation of every muscle over the gait cycle, one row each."""
    figure, axes = plt.subplots(figsize=(7.4, 0.26 * len(gait.muscles) + 1.4), layout="constrained")
    extent = (0.0, 100.0, -0.5, len(gait.muscles) - 0.5)
    style: dict[str, Any] = {"cmap": "magma_r", "vmin": 0.0, "vmax": 1.0, "interpolation": "nearest"}
    picture = axes.imshow(gait.activation.T[::-1], aspect="auto", origin="lower", extent=extent, **style)
    axes.set_yticks(range(len(gait.muscles)), gait.muscles[::-1], fontsize=8)
    axes.set(xlabel="gait cycle (%)", title="Mean activation of each muscle")
    figure.colorbar(picture, ax=axes, label="activation")
    return save(figure, path)


def gait_torques(gait: "GaitAnalysis", path: Path) -> Path:
    """Angles with their reference, and torques asked for and delivered, of every joint over the gait cycle."""
    count = min(len(gait.joints), MOST_DIMENSIONS)
    figure, grid = plt.subplots(2, count, figsize=(2.6 * count, 5.0), squeeze=False, sharex=True, layout="constrained")
    percent = 100.0 * gait.phase
    for i, (above, below) in enumerate(grid.T):
        above.plot(percent, np.degrees(gait.reference[:, i]), color=GREY, ls="--", label="reference")
        above.plot(percent, np.degrees(gait.angle[:, i]), color=BLUE, label="walked")
        below.plot(percent, gait.asked[:, i], color=GREY, ls="--", label="asked for")
        below.plot(percent, gait.delivered[:, i], color=ORANGE, label="delivered")
        above.set_title(gait.joints[i], fontsize=10)
        below.set_xlabel("gait cycle (%)")
    grid[0, 0].set_ylabel("angle (degrees)")
    grid[1, 0].set_ylabel("torque (Nm)")
    for row in grid:
        row[0].legend(frameon=False, fontsize=8)
    return save(figure, path)
