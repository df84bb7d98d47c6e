"""Statistics of a policy's actions over some episodes, by dimension."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from proxima.evaluation.episodes import Episode
from proxima.nets.spec import ActionSpec
from proxima.text import number, percent

NEAR_BOUND = 0.01
"""Distance from a bound, as a share of the range, within which an action counts as at the bound."""
ROUGH = 0.2
"""Mean change of an action between policy steps, as a share of its range, above which it is rough."""
MOST_LISTED = 4
"""Dimensions, or choices of a dimension, that the text lists."""


@dataclass(frozen=True)
class PolicyAnalysis:
    """Actions `[S, A]` of all `S` policy steps, in the env's units; a discrete choice is one column of integers."""

    action: np.ndarray
    low: np.ndarray  # [A]
    high: np.ndarray  # [A]
    discrete: bool
    entropy: np.ndarray  # [S], nats
    change: np.ndarray  # [S - episodes, A], absolute, between policy steps of an episode
    names: list[str]

    @classmethod
    def of(cls, episodes: list[Episode], spec: ActionSpec) -> "PolicyAnalysis":
        """Analyse episodes with traces."""
        traces = [episode.trace for episode in episodes if episode.trace is not None]
        parts = [trace.action.reshape(len(trace.action), -1).astype(float) for trace in traces]
        action, discrete = np.concatenate(parts), spec.kind != "box"
        size = action.shape[1]
        if discrete:
            most = [1] * size if spec.kind == "multi_binary" else [n - 1 for n in spec.sizes]
            first = np.array(spec.start or [0] * size, float)
            action = action + first
            low, high = first, first + np.array(most, float)
        else:
            low, high = np.array(spec.low, float), np.array(spec.high, float)
        entropy = np.concatenate([trace.entropy for trace in traces])
        change = np.concatenate([np.abs(np.diff(part, axis=0)) for part in parts])
        return cls(action, low, high, discrete, entropy, change, [f"action {i}" for i in range(size)])

    @property
    def std(self) -> np.ndarray:
        """[A]."""
        return self.action.std(0)

    @property
    def saturation(self) -> np.ndarray:
        """[A], share of policy steps at a bound; 0 for unbounded dimensions."""
        span = np.where(self.bounded, self.high - self.low, 0.0)
        near = NEAR_BOUND * span
        at_bound = (self.action <= self.low + near) | (self.action >= self.high - near)
        return np.where(self.bounded, at_bound.mean(0), 0.0)

    @property
    def roughness(self) -> np.ndarray:
        """[A], mean change between policy steps, as a share of the range or, for unbounded dimensions, of the std.

        Discrete: share of policy steps in which the choice changes.
        """
        if not len(self.change):
            return np.zeros(self.action.shape[1])
        if self.discrete:
            return (self.change > 0).mean(0)
        span = np.where(self.bounded, self.high - self.low, np.maximum(self.std, 1e-12))
        return (self.change / span).mean(0)

    @property
    def bounded(self) -> np.ndarray:
        """[A] bool: whether a dimension has bounds on both sides."""
        return np.isfinite(self.high - self.low)

    def lines(self) -> list[str]:
        """A summary, one sentence or two per line."""
        size = self.action.shape[1]
        stuck = [self.names[i] for i in np.flatnonzero(self.std < 1e-6)]
        mean, low, high = (number(float(x)) for x in (self.entropy.mean(), self.entropy.min(), self.entropy.max()))
        return [
            f"{size} action dimension{'s' * (size > 1)}, {len(self.action):,} policy steps; entropy of the policy "
            f"{mean} nats on average ({low} to {high}).",
            *(self._discrete_lines() if self.discrete else self._continuous_lines()),
            f"Constant: {', '.join(stuck)}." if stuck else "No dimension is constant.",
        ]

    def _discrete_lines(self) -> list[str]:
        lines = [self._choices(i) for i in range(min(len(self.names), MOST_LISTED))]
        if len(self.names) > MOST_LISTED:
            lines.append(f"The figure has the choices of the other {len(self.names) - MOST_LISTED} dimensions.")
        # By dimension: a mean over one that often changes and one that never does describes neither.
        order = np.argsort(-self.roughness, kind="stable")
        listed, rest = order[:MOST_LISTED], order[MOST_LISTED:]
        shares = ", ".join(f"{self.names[i]} in {percent(self.roughness[i])}" for i in listed)
        others = f", the other {len(rest)} in at most {percent(self.roughness[rest].max())}" if len(rest) else ""
        return [*lines, f"It changes {shares} of its policy steps{others}."]

    def _choices(self, i: int) -> str:
        choices, counts = np.unique(self.action[:, i].astype(int), return_counts=True)
        order = np.argsort(-counts, kind="stable")[:MOST_LISTED]
        shares = ", ".join(f"{choices[j]} in {percent(counts[j] / len(self.action))}" for j in order)
        return f"{self.names[i].capitalize()} is {shares} of its policy steps."

    def _continuous_lines(self) -> list[str]:
        everything = np.arange(len(self.names))
        lines = [f"Std: {self._extremes(self.std, everything, lambda x: number(x, scale=np.abs(self.action).max()))}."]
        bounded, free = np.flatnonzero(self.bounded), np.flatnonzero(~self.bounded)
        if len(bounded):
            most = bounded[self.saturation[bounded].argmax()]
            words = "is often clipped." if self.saturation[most] > 0.1 else "is seldom clipped."
            if self.saturation[most] > 0.5:
                words = "switches between its bounds." if self.roughness[most] > ROUGH else "stays at its bounds."
            changes = self._extremes(self.roughness, bounded, "{:.1%}".format)
            verdict = "Rough: hard on real motors." if self.roughness[bounded].max() > ROUGH else "Smooth."
            lines += [
                f"Policy steps at a bound: {self._extremes(self.saturation, bounded, percent)}. "
                f"{self.names[most].capitalize()} {words}",
                f"Change between policy steps, as a share of the range: {changes}. {verdict}",
            ]
        if len(free):
            changes = self._extremes(self.roughness, free, "{:.1f} std".format)
            lines.append(f"Change between policy steps of unbounded actions: {changes}.")
        return lines

    def _extremes(self, values: np.ndarray, which: np.ndarray, show: Callable[[float], str]) -> str:
        """The greatest and the least value among the dimensions `which`: `most action 2 (31%), least action 0 (4%)`."""
        order = which[np.argsort(-values[which], kind="stable")]
        shown = [f"{self.names[i]} ({show(float(values[i]))})" for i in order]
        return shown[0] if len(shown) == 1 else f"most {shown[0]}, least {shown[-1]}"
