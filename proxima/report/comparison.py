"""Statistics of groups of runs, with their uncertainty over seeds."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from proxima.errors import UsageError
from proxima.evaluation.statistics import FEWEST, RESAMPLES, Summary
from proxima.report.runs import Group, Run
from proxima.text import number

RETURN = "episode_return"
EVALUATED = "eval_return"
SUCCESS = "episode_success"
HEALTH = (
    *("approx_kl", "clip_fraction", "explained_variance", "entropy"),  # of PPO
    *("q_loss", "q_mean", "td_error", "epsilon"),  # of DQN
)
GRID = 200
LAST_SHARE = 0.1
"""Share of a run over which its final training return and success rate are averaged."""


@dataclass
class Band:
    """Mean over the runs of a group, with a band."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    is_interval: bool
    """A 95 % bootstrap interval; with fewer than `FEWEST` seeds the band is from min to max."""


@dataclass
class Result:
    """Statistics of one group."""

    group: Group
    finals: dict[str, list[float]]
    """Final return of each run. `training`: mean over the last tenth of the run; `evaluated`: return of its last
    evaluation, only if every compared run has one."""
    final: dict[str, Summary]
    """The same over runs."""
    success: float | None
    """Share of successful training episodes over the last tenth, mean over runs; None unless every compared run
    reports it."""
    area: float
    """Mean return up to the last env step that all compared runs have."""
    steps_to_threshold: float | None
    seconds_to_threshold: float | None
    """Medians over runs; None unless more than half of them reached the threshold."""
    reached: int
    seconds: float
    """Training time, median over runs."""
    steps_per_second: float


@dataclass(repr=False)
class Comparison:
    """All groups with their statistics."""

    groups: list[Group]
    results: list[Result]
    threshold: float | None
    """None where the envs differ and none was given."""

    def __repr__(self) -> str:
        finals = [f"{result.group.label} {number(result.final['training'].iqm)}" for result in self.results]
        return f"Comparison(final training return: {', '.join(finals)})"

    @property
    def envs(self) -> list[str]:
        """Ids of the envs of all runs."""
        return sorted({env for group in self.groups for env in group.envs})


def compare(groups: Sequence[Group], *, threshold: float | None = None) -> Comparison:
    """Compare groups of runs; the default threshold is 80 % of the way from the lowest to the best final return."""
    if threshold is not None and not math.isfinite(threshold):
        raise UsageError(f"threshold is {threshold}, but it must be a finite number.")
    runs = [run for group in groups for run in group.runs]
    for run in runs:
        if not len(run.curve(RETURN)[0]):
            raise UsageError(f"{run.path} has no finished episode yet: nothing to compare.")
    if threshold is None and len({run.env for run in runs if run.env is not None}) < 2:
        start = min(float(run.curve(RETURN)[1].min()) for run in runs)
        best = max(float(np.mean([final_return(run) for run in group.runs])) for group in groups)
        threshold = start + 0.8 * (best - start)
    end = min(float(run.curve(RETURN)[0][-1]) for run in runs)
    common = {name for name in (EVALUATED, SUCCESS) if all(len(run.curve(name)[0]) for run in runs)}
    results = [_result(group, threshold=threshold, end=end, common=common) for group in groups]
    return Comparison(list(groups), results, threshold)


def improvement(one: Result, other: Result, kind: str) -> tuple[float, float, float] | None:
    """`probability_of_improvement` of final returns; None for different envs or fewer than `FEWEST` seeds."""
    if min(one.group.seeds, other.group.seeds) < FEWEST or not comparable(one.group, other.group):
        return None
    return probability_of_improvement(one.finals[kind], other.finals[kind])


def comparable(one: Group, other: Group) -> bool:
    """Whether two groups are of the same env, according to their configs."""
    return len({*one.envs, *other.envs}) <= 1


def extra_curves(groups: Sequence[Group]) -> list[str]:
    """Metrics of training episodes that every run has, besides return and length: success, and those of the env."""
    runs = [run for group in groups for run in group.runs]
    names = [name for name in runs[0].columns if re.match("episode_(?!return|length)", name)]
    return [name for name in names if all(len(run.curve(name)[0]) for run in runs)]


def final_return(run: Run) -> float:
    """Mean of the training return over the last tenth of the run's env steps."""
    return _final(run, RETURN)


def _final(run: Run, name: str) -> float:
    step, value = run.curve(name)
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
    """Env steps and seconds until the return first reached the threshold."""
    step, value = run.curve(RETURN)
    seconds, _ = run.curve(RETURN, against="wall_time")
    at = np.flatnonzero(value >= threshold)
    return (float(step[at[0]]), float(seconds[at[0]])) if len(at) else None


def probability_of_improvement(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Probability that a value of `one` is above one of `other` (ties count half), with a 95 % bootstrap interval."""
    random = np.random.default_rng(0)
    first, second = np.asarray(one, np.float64), np.asarray(other, np.float64)
    above = np.sign(first[:, None] - second[None, :]) * 0.5 + 0.5
    rows = random.integers(0, len(first), (RESAMPLES, len(first)))
    columns = random.integers(0, len(second), (RESAMPLES, len(second)))
    resampled = above[rows[:, :, None], columns[:, None, :]].mean((1, 2))
    low, high = np.percentile(resampled, (2.5, 97.5))
    return float(above.mean()), float(low), float(high)


def band(group: Group, name: str, *, against: str = "global_step") -> Band | None:
    """Mean of a metric over the runs of a group, with its band; None if a run does not have the metric."""
    curves = [run.curve(name, against=against) for run in group.runs]
    if not all(len(x) for x, _ in curves):
        return None
    x = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), GRID)
    values = np.stack([np.interp(x, *curve) for curve in curves])  # [R, GRID]
    if group.seeds < FEWEST:
        return Band(x, values.mean(0), values.min(0), values.max(0), is_interval=False)
    chosen = np.random.default_rng(0).integers(0, len(values), (RESAMPLES // 4, len(values)))
    low, high = np.percentile(values[chosen].mean(1), (2.5, 97.5), axis=0)
    return Band(x, values.mean(0), low, high, is_interval=True)


def _result(group: Group, *, threshold: float | None, end: float, common: set[str]) -> Result:
    finals = {"training": [final_return(run) for run in group.runs]}
    if EVALUATED in common:
        finals["evaluated"] = [float(run.curve(EVALUATED)[1][-1]) for run in group.runs]
    level = math.inf if threshold is None else threshold
    reached = [found for found in (reach(run, level) for run in group.runs) if found is not None]
    # The others count as infinite, so that the median is finite only if more than half reached it.
    padded = sorted(reached) + [(np.inf, np.inf)] * (len(group.runs) - len(reached))
    steps, seconds = (float(np.median(column)) for column in zip(*padded, strict=True))
    return Result(
        group,
        finals,
        final={kind: Summary.of(values) for kind, values in finals.items()},
        success=float(np.mean([_final(run, SUCCESS) for run in group.runs])) if SUCCESS in common else None,
        area=float(np.mean([area_under_curve(run, end=end) for run in group.runs])),
        steps_to_threshold=steps if np.isfinite(steps) else None,
        seconds_to_threshold=seconds if np.isfinite(seconds) else None,
        reached=len(reached),
        seconds=float(np.median([run.columns["wall_time"][-1] for run in group.runs])),
        steps_per_second=float(np.median([_rate(run) for run in group.runs])),
    )


def _rate(run: Run) -> float:
    """Env steps per second, without the first iteration, which includes compilation; NaN if no time has passed."""
    steps, seconds = run.columns["global_step"], run.columns["wall_time"]
    first = (steps[0], seconds[0]) if len(steps) > 1 else (0.0, 0.0)
    passed = float(seconds[-1] - first[1])
    return float(steps[-1] - first[0]) / passed if passed > 0 else math.nan
