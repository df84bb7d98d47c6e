"""Statistics of the last training episodes."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

EPISODE_WINDOW = 100


class EpisodeStatistics:
    """Returns, lengths, success and the env's own numbers of the last 100 finished episodes, or of one per env.

    Success and the env's own numbers are NaN for an episode that did not report them.
    """

    def __init__(self, names: Iterable[str] = (), num_envs: int = 1) -> None:
        """`names` of the env's own numbers; with more than 100 envs, the last `num_envs` episodes count."""
        size = max(EPISODE_WINDOW, num_envs)
        self.returns, self.lengths, self.success = (deque[float](maxlen=size) for _ in range(3))
        """Success is empty until the env has reported one."""
        self.info = {name: deque[float](maxlen=size) for name in names}
        self.count = 0

    def add(
        self,
        returns: list[float],
        lengths: list[int],
        success: list[float] | None = None,
        info: Mapping[str, list[float]] | None = None,
    ) -> None:
        """Add finished episodes."""
        self.returns.extend(returns)
        self.lengths.extend(lengths)
        if success is not None and (self.success or not all(map(math.isnan, success))):
            self.success.extend(success)
        for name, window in self.info.items():
            window.extend((info or {}).get(name, []))
        self.count += len(returns)

    def metrics(self) -> dict[str, float]:
        """Means and extremes of the window, NaN before the first episode ends."""
        returns, lengths = (list(window) or [math.nan] for window in (self.returns, self.lengths))
        return {
            "episode_return": sum(returns) / len(returns),
            "episode_return_min": min(returns),
            "episode_return_max": max(returns),
            "episode_length": sum(lengths) / len(lengths),
            "episode_length_min": min(lengths),
            "episode_length_max": max(lengths),
            "episodes": self.count,
            **({"episode_success": _mean(self.success)} if self.success else {}),
            **{f"episode_{name}": _mean(window) for name, window in self.info.items()},
        }

    def get_state(self) -> dict[str, Any]:
        """The windows and the count."""
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "success": list(self.success),
            "info": {name: list(window) for name, window in self.info.items()},
            "count": self.count,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Load what `get_state` returned; older states have no success and info."""
        self.add(state["returns"], state["lengths"], info=state.get("info"))
        self.success.extend(state.get("success", []))
        self.count = state["count"]


def _mean(window: Iterable[float]) -> float:
    """Mean of the finite values; NaN if there is none."""
    values = np.array(list(window), dtype=float)
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan
