"""What the curves of several groups of runs come to, with the uncertainty that a few seeds leave."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from proxima.errors import UsageError
from proxima.evaluate.statistics import RESAMPLES, Summary
from proxima.report.runs import Group, Run

RETURN = "episode_return"
HEALTH = (
    *("approx_kl", "clip_fraction", "explained_variance", "entropy"),  # of PPO
    *("q_loss", "q_mean", "td_error", "epsilon"),  # of DQN
)
GRID = 200
LAST_SHARE = 0.1
"""Of a run, over which its final return is averaged."""


@dataclass
class Band:
    """Mean of a group's runs, and a 95 % bootstrap band around it where there are several."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass
class Result:
    """One group in numbers."""

    label: str
    seeds: int
    final: Summary
    """Over seeds, of the mean return in the last tenth of a run."""
    area: float
    """Mean return over the env steps that all the compared runs have."""
    steps_to_threshold: float | None
    seconds_to_threshold: float | None
    """Median over the runs that reached it; None where fewer than half did."""
    reached: int
    steps_per_second: float
    finals: list[float]


@dataclass
class Comparison:
    """All groups, on one set of axes."""

    groups: list[Group]
    results: list[Result]
    threshold: float
    improvement: dict[tuple[str, str], tuple[float, float, float]]
    """By two labels: how likely a run of the first ends above one of the second, and its 95 % interval."""


def compare(groups: Sequence[Group], *, threshold: float | None = None) -> Comparison:
    """Compare groups of runs; without a threshold, four fifths of the way from the lowest to the best final return."""
    for group in groups:
        for run in group.runs:
            if not len(run.curve(RETURN)[0]):
                raise UsageError(f"{run.path} has no finished episode in it: nothing to compare yet.")
    finals = [[final_return(run) for run in group.runs] for group in groups]
    if threshold is None:
        start = min(float(run.curve(RETURN)[1].min()) for group in groups for run in group.runs)
        threshold = start + 0.8 * (max(float(np.mean(values)) for values in finals) - start)
    end = min(float(run.curve(RETURN)[0][-1]) for group in groups for run in group.runs)
    results = [
        _result(group, values, threshold=threshold, end=end) for group, values in zip(groups, finals, strict=True)
    ]
    improvement = {
        (one.label, other.label): probability_of_improvement(one.finals, other.finals)
        for one in results
        for other in results
        if one is not other
    }
    return Comparison(list(groups), results, threshold, improvement)


def extra_curves(groups: Sequence[Group]) -> list[str]:
    """Metrics of episodes besides return and length that every run has: success, and the env's own numbers."""
    runs = [run for group in groups for run in group.runs]
    names = [name for name in runs[0].columns if name.startswith("episode_")]
    names = [name for name in names if not name.startswith(("episode_return", "episode_length"))]
    return [name for name in names if all(len(run.curve(name)[0]) for run in runs)]


def final_return(run: Run) -> float:
    """Mean of the training return over the last tenth of the run's env steps."""
    step, value = run.curve(RETURN)
    return float(value[step >= step[-1] - LAST_SHARE * step[-1]].mean())


def area_under_curve(run: Run, *, end: float) -> float:
    """Mean return over the env steps from the first finished episode to `end`."""
    step, value = run.curve(RETURN)
    if end <= step[0]:
        return float(value[0])
    inside = step < end
    x, y = np.append(step[inside], end), np.append(value[inside], np.interp(end, step, value))
    return float(np.trapezoid(y, x) / (x[-1] - x[0]))


def reach(run: Run, threshold: float) -> tuple[float, float] | None:
    """Env steps and seconds after which the return was first at the threshold."""
    step, value = run.curve(RETURN)
    seconds, _ = run.curve(RETURN, against="wall_time")
    at = np.flatnonzero(value >= threshold)
    return (float(step[at[0]]), float(seconds[at[0]])) if len(at) else None


def probability_of_improvement(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """How likely a value of the first is above one of the second (a tie counts half), and a 95 % bootstrap interval."""
    random = np.random.default_rng(0)
    first, second = np.asarray(one, np.float64), np.asarray(other, np.float64)
    above = np.sign(first[:, None] - second[None, :]) * 0.5 + 0.5
    rows = random.integers(0, len(first), (RESAMPLES, len(first)))
    columns = random.integers(0, len(second), (RESAMPLES, len(second)))
    resampled = above[rows[:, :, None], columns[:, None, :]].mean((1, 2))
    low, high = np.percentile(resampled, (2.5, 97.5))
    return float(above.mean()), float(low), float(high)


def band(runs: Sequence[Run], name: str, *, against: str = "global_step") -> Band | None:
    """A metric's mean over runs where all of them have it; None where one has none of it at all."""
    curves = [run.curve(name, against=against) for run in runs]
    if not all(len(x) for x, _ in curves):
        return None
    x = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), GRID)
    values = np.stack([np.interp(x, *curve) for curve in curves])  # [R, GRID]
    chosen = np.random.default_rng(0).integers(0, len(values), (RESAMPLES // 4, len(values)))
    low, high = np.percentile(values[chosen].mean(1), (2.5, 97.5), axis=0)
    return Band(x, values.mean(0), low, high)


def _result(group: Group, finals: list[float], *, threshold: float, end: float) -> Result:
    reached = [found for found in (reach(run, threshold) for run in group.runs) if found is not None]
    # Runs that did not reach it count as never: the median exists only if more than half did.
    padded = sorted(reached) + [(np.inf, np.inf)] * (len(group.runs) - len(reached))
    steps, seconds = (float(np.median(column)) for column in zip(*padded, strict=True))
    rates = [_rate(run) for run in group.runs]
    return Result(
        label=group.label,
        seeds=len(group.runs),
        final=Summary.of(finals),
        area=float(np.mean([area_under_curve(run, end=end) for run in group.runs])),
        steps_to_threshold=steps if np.isfinite(steps) else None,
        seconds_to_threshold=seconds if np.isfinite(seconds) else None,
        reached=len(reached),
        steps_per_second=float(np.median(rates)),
        finals=finals,
    )


def _rate(run: Run) -> float:
    """Env steps a second, without the first iteration, in which things are compiled."""
    steps, seconds = run.columns["global_step"], run.columns["wall_time"]
    if len(steps) == 1:
        return float(steps[0] / seconds[0])
    return float((steps[-1] - steps[0]) / (seconds[-1] - seconds[0]))
