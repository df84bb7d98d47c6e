"""How good is the critic? Its predictions against the discounted returns that followed."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from proxima.evaluate.episodes import Episode
from proxima.text import number, percent

BINS = 12
HARDLY = 0.02
"""Std of the returns, as a share of their mean, below which there is no variance to explain."""


@dataclass(frozen=True)
class ValueAnalysis:
    """Predictions and outcomes of every step of some episodes, in units of the env's reward."""

    gamma: float
    predicted: np.ndarray  # [S]
    realised: np.ndarray  # [S], discounted
    """After a time limit, bootstrapped with the critic's value of the last observation."""
    to_end: np.ndarray  # [S] int, env steps from the end of the step, or of the held action, to that of the episode
    borrowed: np.ndarray  # [S] bool
    """So near to a time limit that the outcome is mostly the bootstrapped value: it says little about the critic."""
    episodes: list[Episode]

    @classmethod
    def of(cls, episodes: list[Episode], *, gamma: float, smdp: bool = True) -> "ValueAnalysis":
        """Analyse episodes with traces; `smdp`: whether the critic discounts held actions by their duration."""
        realised, predicted, to_end, borrowed = [], [], [], []
        horizon = round(1.0 / (1.0 - gamma)) if gamma < 1.0 else np.inf
        for episode in episodes:
            assert episode.trace is not None, "evaluate with trace=True"
            realised.append(discounted_returns(episode, gamma=gamma, smdp=smdp))
            predicted.append(episode.trace.value)
            to_end.append(episode.length - np.cumsum(episode.trace.duration))
            borrowed.append((to_end[-1] < horizon) & (not episode.terminated))
        value, outcome, left, borrows = map(np.concatenate, (predicted, realised, to_end, borrowed))
        return cls(gamma, value, outcome, left, borrows, episodes)

    @property
    def explained_variance(self) -> float:
        """1 is a perfect critic, 0 is what a constant reaches; NaN where every return is the same."""
        variance = float(self.realised.var())
        return 1.0 - float((self.realised - self.predicted).var()) / variance if variance > 0 else float("nan")

    @property
    def scale(self) -> float:
        """The largest magnitude of predictions and outcomes: differences far below it are rounding errors."""
        return float(max(np.abs(self.predicted).max(), np.abs(self.realised).max()))

    @property
    def bias(self) -> float:
        """Mean of prediction minus outcome: positive means overestimation."""
        return float((self.predicted - self.realised).mean())

    @property
    def rmse(self) -> float:
        """Root of the mean squared error."""
        return float(np.sqrt(((self.predicted - self.realised) ** 2).mean()))

    @property
    def calibration(self) -> tuple[float, float]:
        """Slope and intercept of the line that predicts outcomes from predictions best: 1 and 0 are perfect."""
        spread = float(self.predicted.var())
        if spread == 0:
            return float("nan"), float(self.realised.mean())
        centred = self.predicted - self.predicted.mean()
        slope = float((centred * (self.realised - self.realised.mean())).mean() / spread)
        return slope, float(self.realised.mean() - slope * self.predicted.mean())

    def binned(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean prediction, mean outcome and its standard error in bins of equally many steps."""
        order = np.argsort(self.predicted, kind="stable")
        parts = [part for part in np.array_split(order, BINS) if len(part)]
        rows = [
            (self.predicted[p].mean(), self.realised[p].mean(), self.realised[p].std() / np.sqrt(len(p))) for p in parts
        ]
        centre, mean, error = np.array(rows).T
        return centre, mean, error

    def error_by_time_to_end(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps to the end (bin centres), mean error and root mean squared error there, without the borrowed."""
        edges = np.unique(np.round(np.linspace(0, self.to_end.max() + 1, BINS + 1)).astype(int))
        error = self.predicted - self.realised
        counts = ~self.borrowed | self.borrowed.all()
        rows = []
        for low, high in pairwise(edges):
            inside = error[counts & (self.to_end >= low) & (self.to_end < high)]
            if len(inside):
                rows.append((0.5 * (low + high - 1), inside.mean(), np.sqrt((inside**2).mean())))
        centre, mean, rmse = np.array(rows).T
        return centre, mean, rmse

    def lines(self) -> list[str]:
        """Five lines that say what it means."""
        slope, intercept = self.calibration
        std = float(self.realised.std())
        _, _, rmse = self.error_by_time_to_end()
        ends = "larger near the end of an episode" if rmse[0] > 1.3 * rmse[-1] else "much the same at every distance"
        ends = "smaller near the end of an episode" if rmse[0] < rmse[-1] / 1.3 else ends
        ends = "rounding errors" if number(self.rmse, scale=self.scale) == "0" else ends
        direction = "overestimates" if self.bias > 0 else "underestimates"
        size = number(abs(self.bias), scale=self.scale)
        share = f", {percent(abs(self.bias) / std)} of the std of the returns" if self._vary else ""
        bias = f"On average it {direction} by {size}{share}."
        count = len(self.episodes)
        return [
            f"{self._explained()} ({len(self.predicted):,} decisions of {count} episode{'s' * (count > 1)}, "
            f"gamma {self.gamma:g}).",
            bias if size != "0" else "On average it neither over- nor underestimates.",
            f"Its root mean squared error is {number(self.rmse, scale=self.scale)}; the std of the returns is "
            f"{number(std, scale=self.scale)}.",
            f"Calibration: slope {number(slope)}, intercept {number(intercept)} (1 and 0 are perfect): "
            + _slope_in_words(slope),
            f"Its errors are {ends}.",
        ]

    @property
    def _vary(self) -> bool:
        return float(self.realised.std()) > HARDLY * abs(float(self.realised.mean()))

    def _explained(self) -> str:
        if not self._vary:
            return "The discounted returns hardly vary: there is no variance to explain"
        share, what = self.explained_variance, "of the variance of the discounted returns"
        if share >= 0.005:
            return f"The critic explains {percent(share)} {what}"
        worse = f": it is worse than a constant, with an explained variance of {number(share)}" if share < -0.05 else ""
        return f"The critic explains none {what}{worse}"


def discounted_returns(episode: Episode, *, gamma: float, smdp: bool = True) -> np.ndarray:
    """`G_t = R_t + gamma^duration_t G_{t+1}`; after a time limit, with the critic's value of the last observation."""
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
        return "it predicts the same everywhere."
    if slope < 0.2:
        return "it does not tell good states from bad ones."
    if slope < 0.8:
        return "it exaggerates differences between states."
    return "it plays differences between states down." if slope > 1.2 else "it tells good states from bad ones."
