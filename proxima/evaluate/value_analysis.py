"""How good is the critic? What it predicted, against the discounted return that came."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from proxima.evaluate.episodes import Episode

BINS = 12
HARDLY = 0.02
"""Deviation of the returns, as a share of their mean, below which there is nothing to explain."""


@dataclass(frozen=True)
class ValueAnalysis:
    """Predictions and outcomes of every step of some episodes, in units of the env's reward."""

    gamma: float
    predicted: np.ndarray  # [S]
    realised: np.ndarray  # [S], discounted
    """Beyond a time limit the critic's own value of the last observation stands in."""
    to_end: np.ndarray  # [S] int, env steps from the end of the step, or of the held action, to that of the episode
    borrowed: np.ndarray  # [S] bool
    """So near to a time limit that the outcome is mostly the critic's own value: it says little about the critic."""
    episodes: list[Episode]

    @classmethod
    def of(cls, episodes: list[Episode], *, gamma: float, smdp: bool = True) -> "ValueAnalysis":
        """Of episodes with traces; `smdp` tells whether the critic discounts held actions by their duration."""
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
        """1 is a perfect critic, 0 one that knows only the mean; NaN where every return is the same."""
        variance = float(self.realised.var())
        return 1.0 - float((self.realised - self.predicted).var()) / variance if variance > 0 else float("nan")

    @property
    def bias(self) -> float:
        """Mean of prediction less outcome: above 0, the critic hopes for too much."""
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
        """Steps to the end (bin centres), mean error and root mean squared error there, without what is borrowed."""
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
        scale = float(self.realised.std()) or 1.0
        _, _, rmse = self.error_by_time_to_end()
        ends = "larger near the end of an episode" if rmse[0] > 1.3 * rmse[-1] else "much the same at every distance"
        ends = "smaller near the end of an episode" if rmse[0] < rmse[-1] / 1.3 else ends
        hope = "hopes for too much" if self.bias > 0 else "expects too little"
        count = len(self.episodes)
        share = f"The critic explains {self.explained_variance:.0%} of the variance of the discounted returns"
        if self.realised.std() < HARDLY * abs(float(self.realised.mean())):
            share = "The discounted returns hardly vary: there is no variance to explain"
        return [
            f"{share} ({len(self.predicted):,} decisions of {count} episode{'s' * (count > 1)}, gamma {self.gamma:g}).",
            f"On average it {hope}, by {abs(self.bias):,.3g}: {abs(self.bias) / scale:.0%} of the returns' deviation.",
            f"A typical error is {self.rmse:,.3g}, where returns vary by {scale:,.3g}.",
            f"Outcomes follow predictions with slope {slope:.2f} and intercept {intercept:,.2f} (1 and 0 are perfect): "
            + _slope_in_words(slope),
            f"Its errors are {ends}.",
        ]


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
