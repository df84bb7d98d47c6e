"""Statistics of the last training episodes."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

EPISODE_WINDOW = 100
_OWN = ("return", "length", "success")


class EpisodeStatistics:
    """Returns, lengths, success and the env's own numbers of the last 100 finished episodes, or of one per env.

    Success and the env's own numbers are NaN for an episode that did not report them.
    """

    def __init__(self, names: Iterable[str] = (), num_envs: int = 1) -> None:
        """`names` of the env's own numbers; with more than 100 envs, the last `num_envs` episodes count."""
        self._size = max(EPISODE_WINDOW, num_envs)
        self.names = (*_OWN, *names)
        """Of the numbers of an episode."""
        self._window: NDArray[np.float64] = np.empty((len(self.names), 0))
        """`[K, R]`: a row per number, the oldest episode first."""
        self._reports_success = False
        self.count = 0

    def add(self, rows: NDArray[np.float64]) -> None:
        """Add finished episodes `[R, K]`, with the numbers `names`."""
        if len(rows):
            self._reports_success |= not np.isnan(rows[:, 2]).all()
            self._window = np.concatenate((self._window, rows.T), 1)[:, -self._size :]
            self.count += len(rows)

    @property
    def returns(self) -> list[float]:
        """Of the window, the oldest first."""
        return [float(x) for x in self._window[0]]

    @property
    def mean_return(self) -> float:
        """Mean of the window, NaN before the first episode ends."""
        return float(self._window[0].mean()) if self._window.size else math.nan

    def metrics(self) -> dict[str, float]:
        """Means and extremes of the window, NaN before the first episode ends."""
        known = np.isfinite(self._window)
        means = np.where(known, self._window, 0.0).sum(1) / np.where(known.any(1), known.sum(1), math.nan)
        mean = dict(zip(self.names, means.tolist(), strict=True))
        found = {"episode_return": self.mean_return, "episode_length": mean["length"], "episodes": self.count}
        for row, name in enumerate(_OWN[:2]):
            values = self._window[row] if self._window.size else np.array([math.nan])
            found |= {f"episode_{name}_min": float(values.min()), f"episode_{name}_max": float(values.max())}
        names = self.names[2 if self._reports_success else 3 :]
        return found | {f"episode_{name}": mean[name] for name in names}

    def get_state(self) -> dict[str, Any]:
        """The window and the count."""
        return {"names": list(self.names), "window": torch.tensor(self._window), "count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        """Load what `get_state` returned; older states have lists."""
        if "window" in state:
            rows = dict(zip(state["names"], state["window"].numpy(), strict=True))
        else:
            rows = {**state.get("info", {}), "return": state["returns"], "length": state["lengths"]}
            rows["success"] = state.get("success", [])
        count = len(rows["return"])
        # Before the env's first report, older states have shorter lists.
        rows = {name: [math.nan] * (count - len(x)) + list(x) if len(x) else [] for name, x in rows.items()}
        unknown = np.full(count, math.nan)
        columns = [np.asarray(rows[name], float) if len(rows.get(name, ())) else unknown for name in self.names]
        self.add(np.stack(columns, 1))
        self._reports_success = not all(map(math.isnan, rows["success"]))
        self.count = state["count"]
