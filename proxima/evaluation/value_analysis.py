"""Quality of the critic: its values against the discounted returns."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from proxima.evaluation.episodes import Episode
from proxima.text import number, percent

BINS = 12
HARDLY = 0.02
"""Std of the returns, as a share of their mean, below which they count as constant."""


@dataclass(frozen=True)
class ValueAnalysis:
    """Values and discounted returns of the `S` policy steps of some episodes, in units of the env's reward."""

    gamma: float
    predicted: np.ndarray  # [S], values of the critic
    realised: np.ndarray  # [S], discounted returns, bootstrapped at a time limit
    to_end: np.ndarray  # [S] int, env steps from the end of the policy step to the end of the episode
    bootstrapped: np.ndarray  # [S] bool, so near to a time limit that the return is mostly the bootstrapped value
    episodes: list[Episode]

    @classmethod
    def of(cls, episodes: list[Episode], *, gamma: float, smdp: bool = True) -> "ValueAnalysis":
        """Analyse episodes with traces; `smdp`: held actions are discounted by their duration."""
        realised, predicted, to_end, bootstrapped = [], [], [], []
        horizon = round(1.0 / (1.0 - gamma)) if gamma < 1.0 else np.inf
        for episode in episodes:
            assert episode.trace is not None, "evaluate with trace=True"
            realised.append(discounted_returns(episode, gamma=gamma, smdp=smdp))
            predicted.append(episode.trace.value)
            to_end.append(episode.length - np.cumsum(episode.trace.duration))
            bootstrapped.append((to_end[-1] < horizon) & (not episode.terminated))
        value, outcome, left, borrows = map(np.concatenate, (predicted, realised, to_end, bootstrapped))
        return cls(gamma, value, outcome, left, borrows, episodes)

    @property
    def explained_variance(self) -> float:
        """1 is a perfect critic, 0 is as good as a constant; NaN where all returns are equal."""
        variance = float(self.realised.var())
        return 1.0 - float((self.realised - self.predicted).var()) / variance if variance > 0 else float("nan")

    @property
    def scale(self) -> float:
        """The largest magnitude of values and returns: differences far below it are rounding errors."""
        return float(max(np.abs(self.predicted).max(), np.abs(self.realised).max()))

    @property
    def bias(self) -> float:
        """Mean of value minus return: positive means overestimation."""
        return float((self.predicted - self.realised).mean())

    @property
    def rmse(self) -> float:
        """Root mean squared error."""
        return float(np.sqrt(((self.predicted - self.realised) ** 2).mean()))

    @property
    def calibration(self) -> tuple[float, float]:
        """Slope and intercept of the least-squares line from value to return: 1 and 0 are perfect."""
        spread = float(self.predicted.var())
        if spread == 0:
            return float("nan"), float(self.realised.mean())
        centred = self.predicted - self.predicted.mean()
        slope = float((centred * (self.realised - self.realised.mean())).mean() / spread)
        return slope, float(self.realised.mean() - slope * self.predicted.mean())

    def binned(self) -> tuple[np.ndarray, ...]:
        """Mean value, mean return and its standard error in bins of equally many policy steps."""
        order = np.argsort(self.predicted, kind="stable")
        parts = [part for part in np.array_split(order, BINS) if len(part)]
        rows = [
            (self.predicted[p].mean(), self.realised[p].mean(), self.realised[p].std() / np.sqrt(len(p))) for p in parts
        ]
        return tuple(np.array(rows).T)

    def error_by_time_to_end(self) -> tuple[np.ndarray, ...]:
        """Env steps to the end (bin centres), mean error and RMSE; bootstrapped policy steps are left out."""
        edges = np.unique(np.round(np.linspace(0, self.to_end.max() + 1, BINS + 1)).astype(int))
        error = self.predicted - self.realised
        counts = ~self.bootstrapped | self.bootstrapped.all()
        rows = []
        for low, high in pairwise(edges):
            inside = error[counts & (self.to_end >= low) & (self.to_end < high)]
            if len(inside):
                rows.append((0.5 * (low + high - 1), inside.mean(), np.sqrt((inside**2).mean())))
        return tuple(np.array(rows).T)

    def lines(self) -> list[str]:
        """A summary in five lines."""
        slope, intercept = self.calibration
        std = float(self.realised.std())
        bias, rmse, spread = (number(x, scale=self.scale) for x in (abs(self.bias), self.rmse, std))
        direction = "overestimates" if self.bias > 0 else "underestimates"
        share = f", {percent(abs(self.bias) / std)} of the std of the returns" if self._vary else ""
        _, _, errors = self.error_by_time_to_end()
        if rmse == "0":
            where = "rounding errors"
        elif errors[-1] / 1.3 <= errors[0] <= 1.3 * errors[-1]:
            where = "about equal over an episode"
        else:
            where = f"{'larger' if errors[0] > errors[-1] else 'smaller'} near the end of an episode"
        count = len(self.episodes)
        return [
            f"{self._explained()} ({len(self.predicted):,} policy steps of {count} episode{'s' * (count > 1)}, "
            f"gamma {self.gamma:g}).",
            "No bias on average." if bias == "0" else f"On average it {direction} by {bias}{share}.",
            f"Its root mean squared error is {rmse}; the std of the returns is {spread}.",
            f"Calibration: slope {number(slope)}, intercept {number(intercept)} (1 and 0 are perfect): "
            + _slope_in_words(slope),
            f"Its errors are {where}.",
        ]

    @property
    def _vary(self) -> bool:
        return float(self.realised.std()) > HARDLY * abs(float(self.realised.mean()))

    def _explained(self) -> str:
        if not self._vary:
            return "The discounted returns hardly vary: no variance to explain"
        share, what = self.explained_variance, "of the variance of the discounted returns"
        if share >= 0.005:
            return f"The critic explains {percent(share)} {what}"
        worse = f": it is worse than a constant, with an explained variance of {number(share)}" if share < -0.05 else ""
        return f"The critic explains none {what}{worse}"


def discounted_returns(episode: Episode, *, gamma: float, smdp: bool = True) -> np.ndarray:
    """`G_t = R_t + gamma^duration_t G_{t+1}`, bootstrapped with the critic's last value after a time limit."""
    trace = episode.trace
    assert trace is not None
    following = 0.0 if episode.terminated else trace.final_value
    discount = gamma ** (trace.duration if smdp else np.ones_like(trace.duration))
    returns = np.empty(len(trace.reward))
    for t in reversed(range(len(returns))):
        following = returns[t] = float(trace.reward[t]) + float(discount[t]) * following
    return returns


def _slope_in_words(slope: float) -> str:
    if not np.isfinite(slope):
        return "it predicts a constant."
    if slope < 0.2:
        return "it does not tell good states from bad ones."
    if slope < 0.8:
        return "it exaggerates differences between states."
    return "it understates differences between states." if slope > 1.2 else "it tells good states from bad ones."
