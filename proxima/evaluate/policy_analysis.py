"""What does the policy do? Its actions over some episodes, by dimension."""

from dataclasses import dataclass

import numpy as np

from proxima.evaluate.episodes import Episode
from proxima.nets.spec import ActionSpec
from proxima.text import number, percent

NEAR_BOUND = 0.01
"""Share of the range within which an action counts as at its bound."""
ROUGH = 0.2
"""Mean change of an action from one decision to the next, as a share of its range, above which it is rough."""
MOST_LISTED = 4
"""Dimensions, or choices of a dimension, that are named one by one."""


@dataclass(frozen=True)
class PolicyAnalysis:
    """Actions `[S, A]` of all decisions, in the env's units; a discrete choice is one column of whole numbers."""

    action: np.ndarray
    low: np.ndarray  # [A]
    high: np.ndarray  # [A]
    discrete: bool
    entropy: np.ndarray  # [S], nats
    change: np.ndarray  # [S - episodes, A], from one decision to the next within an episode
    names: list[str]

    @classmethod
    def of(cls, episodes: list[Episode], spec: ActionSpec) -> "PolicyAnalysis":
        """Analyse episodes with traces."""
        parts = [_columns(episode) for episode in episodes]
        action = np.concatenate(parts)
        discrete = spec.kind != "box"
        size = action.shape[1]
        if discrete:
            most = [1] * size if spec.kind == "multi_binary" else [n - 1 for n in spec.sizes]
            first = np.array(spec.start or [0] * size, float)
            action = action + first
            low, high = first, first + np.array(most, float)
        else:
            low, high = np.array(spec.low, float), np.array(spec.high, float)
        entropy = np.concatenate([e.trace.entropy for e in episodes if e.trace is not None])
        change = np.concatenate([np.abs(np.diff(part, axis=0)) for part in parts])
        return cls(action, low, high, discrete, entropy, change, [f"action {i}" for i in range(size)])

    @property
    def mean(self) -> np.ndarray:
        """[A]."""
        return self.action.mean(0)

    @property
    def std(self) -> np.ndarray:
        """[A], over all steps."""
        return self.action.std(0)

    @property
    def saturation(self) -> np.ndarray:
        """[A], share of the steps within a hundredth of the range from a bound; 0 for unbounded dimensions."""
        span = np.where(self.bounded, self.high - self.low, 0.0)
        near = NEAR_BOUND * span
        at_bound = (self.action <= self.low + near) | (self.action >= self.high - near)
        return np.where(self.bounded, at_bound.mean(0), 0.0)

    @property
    def roughness(self) -> np.ndarray:
        """[A], mean change between decisions as a share of the range; discrete: share of decisions that change it.

        For unbounded dimensions, as a multiple of their std.
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
        """A few lines that say what it means."""
        size = self.action.shape[1]
        stuck = [self.names[i] for i in np.flatnonzero(self.std < 1e-6)]
        lines = [
            f"{size} action dimension{'s' * (size > 1)}, {len(self.action):,} decisions; entropy of the policy "
            f"{number(float(self.entropy.mean()))} nats on average ({number(float(self.entropy.min()))} to "
            f"{number(float(self.entropy.max()))}).",
        ]
        lines += self._discrete_lines() if self.discrete else self._continuous_lines()
        lines.append(f"Always the same: {', '.join(stuck)}." if stuck else "Every dimension is used.")
        return lines

    def _discrete_lines(self) -> list[str]:
        size = self.action.shape[1]
        lines = [self._choices(i) for i in range(min(size, MOST_LISTED))]
        if size > MOST_LISTED:
            lines.append(f"The figure has the choices of the other {size - MOST_LISTED} dimensions.")
        if size == 1:
            return [*lines, f"It changes its action in {percent(self.roughness[0])} of its decisions."]
        # Dimension by dimension: a mean over one that often changes and one that never does is true of neither.
        order = np.argsort(-self.roughness, kind="stable")
        shares = ", ".join(f"{self.names[i]} in {percent(self.roughness[i])}" for i in order[:MOST_LISTED])
        rest = order[MOST_LISTED:]
        if not len(rest):
            return [*lines, f"It changes {shares} of its decisions."]
        others = f"the other {len(rest)} in at most {percent(self.roughness[rest].max())}"
        return [*lines, f"It changes {shares} of its decisions, {others}."]

    def _continuous_lines(self) -> list[str]:
        lines = []
        if len(self.names) > 1:
            busiest, idlest = int(self.std.argmax()), int(self.std.argmin())
            high, low = (number(self.std[i], scale=np.abs(self.action[:, i]).max()) for i in (busiest, idlest))
            lines.append(f"It moves {self.names[busiest]} most (std {high}) and {self.names[idlest]} least ({low}).")
        bounded, free = np.flatnonzero(self.bounded), np.flatnonzero(~self.bounded)
        if len(bounded):
            lines += [self._saturation_line(bounded), self._roughness_line(bounded)]
        if len(free):
            most, least = self._extremes(self.roughness, free)
            lines.append(
                f"Unbounded actions, change from one decision to the next: most in {self.names[most]} "
                f"({self.roughness[most]:.1f} std)"
                + (f", least in {self.names[least]} ({self.roughness[least]:.1f} std)." if len(free) > 1 else ".")
            )
        return lines

    def _saturation_line(self, which: np.ndarray) -> str:
        most, least = self._extremes(self.saturation, which)
        share = percent(self.saturation[most])
        words = _saturation_in_words(float(self.saturation[most]), float(self.roughness[most]))
        if len(which) == 1:
            return f"{share} of the decisions are at a bound: it {words}"
        return (
            f"At a bound: most often {self.names[most]} ({share} of its decisions), least often {self.names[least]} "
            f"({percent(self.saturation[least])}). {self.names[most].capitalize()} {words}"
        )

    def _roughness_line(self, which: np.ndarray) -> str:
        most, least = self._extremes(self.roughness, which)
        verdict = "Rough: hard on real motors." if self.roughness[most] > ROUGH else "Smooth."
        share = f"{self.roughness[most]:.1%}"
        if len(which) == 1:
            return f"Change from one decision to the next: {share} of the range. {verdict}"
        return (
            f"Change from one decision to the next: most in {self.names[most]} ({share} of its range), least in "
            f"{self.names[least]} ({self.roughness[least]:.1%}). {verdict}"
        )

    @staticmethod
    def _extremes(values: np.ndarray, which: np.ndarray) -> tuple[int, int]:
        """Of the dimensions `which`, the one with the greatest value and the one with the least."""
        return int(which[values[which].argmax()]), int(which[values[which].argmin()])

    def _choices(self, i: int) -> str:
        choices, counts = np.unique(self.action[:, i].astype(int), return_counts=True)
        order = np.argsort(-counts, kind="stable")[:MOST_LISTED]
        shares = ", ".join(f"{choices[j]} in {percent(counts[j] / len(self.action))}" for j in order)
        return f"{self.names[i].capitalize()} is {shares} of its decisions."


def _columns(episode: Episode) -> np.ndarray:
    assert episode.trace is not None, "evaluate with trace=True"
    return episode.trace.action.reshape(len(episode.trace.action), -1).astype(float)


def _saturation_in_words(share: float, roughness: float) -> str:
    if share > 0.5:
        return "switches between its bounds." if roughness > ROUGH else "stays at its bounds."
    return "is often clipped." if share > 0.1 else "is seldom clipped."
