"""What does the policy do? Its actions over some episodes, dimension by dimension."""

from dataclasses import dataclass

import numpy as np

from proxima.evaluate.episodes import Episode
from proxima.nets.spec import ActionSpec

NEAR_BOUND = 0.01
"""Share of the range within which an action counts as at its bound."""
ROUGH = 0.2
"""Mean change of an action from one decision to the next, as a share of its range, that real motors would not like."""


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
        """Of episodes with traces."""
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
        """[A], share of the steps within a hundredth of the range from a bound; 0 where there is none."""
        span = np.where(np.isfinite(self.high - self.low), self.high - self.low, 0.0)
        near = NEAR_BOUND * span
        at_bound = (self.action <= self.low + near) | (self.action >= self.high - near)
        return np.where(np.isfinite(self.high - self.low), at_bound.mean(0), 0.0)

    @property
    def roughness(self) -> np.ndarray:
        """[A], mean change between decisions as a share of the range; discrete: how often the choice changes."""
        if not len(self.change):
            return np.zeros(self.action.shape[1])
        if self.discrete:
            return (self.change > 0).mean(0)
        span = np.where(np.isfinite(self.high - self.low), self.high - self.low, np.maximum(self.std, 1e-12))
        return (self.change / span).mean(0)

    def lines(self) -> list[str]:
        """A few lines that say what it means."""
        size = self.action.shape[1]
        busiest, idlest = int(self.std.argmax()), int(self.std.argmin())
        stuck = [self.names[i] for i in np.flatnonzero(self.std < 1e-6)]
        lines = [
            f"{size} action dimension{'s' * (size > 1)}, {len(self.action):,} decisions; entropy of the policy "
            f"{self.entropy.mean():.2f} nats on average ({self.entropy.min():.2f} to {self.entropy.max():.2f}).",
        ]
        if size > 1 and not self.discrete:
            lines.append(
                f"It moves {self.names[busiest]} most (deviation {self.std[busiest]:.3g}) and {self.names[idlest]} "
                f"least ({self.std[idlest]:.3g})."
            )
        if self.discrete:
            lines += [self._choices(i) for i in range(min(size, 4))]
            lines.append(f"It changes its choice in {self.roughness.mean():.0%} of its decisions.")
        else:
            worst = int(self.saturation.argmax())
            meaning = _saturation_in_words(float(self.saturation.mean()), float(self.roughness.mean()))
            lines.append(
                f"{self.saturation.mean():.0%} of all actions are at a bound, most in {self.names[worst]} "
                f"({self.saturation[worst]:.0%}): {meaning}"
            )
            lines.append(
                f"From decision to decision an action changes by {self.roughness.mean():.1%} of its range: "
                + ("rough, as real motors would not like." if self.roughness.mean() > ROUGH else "smooth.")
            )
        lines.append(f"Always the same: {', '.join(stuck)}." if stuck else "Every dimension is used.")
        return lines

    def _choices(self, i: int) -> str:
        choices, counts = np.unique(self.action[:, i].astype(int), return_counts=True)
        order = np.argsort(-counts, kind="stable")[:4]
        shares = ", ".join(f"{choices[j]} in {counts[j] / len(self.action):.0%}" for j in order)
        return f"{self.names[i]} is {shares} of its decisions."


def _columns(episode: Episode) -> np.ndarray:
    assert episode.trace is not None, "evaluate with trace=True"
    return episode.trace.action.reshape(len(episode.trace.action), -1).astype(float)


def _saturation_in_words(share: float, roughness: float) -> str:
    if share > 0.5:
        return "it switches between extremes rather than steers." if roughness > ROUGH else "it stays at its limits."
    return "it often asks for more than there is." if share > 0.1 else "it has room to steer."
