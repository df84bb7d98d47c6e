"""Wall time and speed of a run."""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxima.training.trainer import Trainer


class Clock:
    """Wall time and speed since training started."""

    def __init__(self, trainer: "Trainer"):
        self._start, source = time.perf_counter(), trainer.source
        self._first = {"global_step": source.global_step, "decisions": source.policy_steps}

    def metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """Given the metrics of the iteration that just ended."""
        seconds = time.perf_counter() - self._start
        rates = {name: (metrics[name] - x) / seconds for name, x in self._first.items() if name in metrics}
        found = {"wall_time": seconds, "steps_per_second": rates.pop("global_step")}
        return found | {f"{name}_per_second": rate for name, rate in rates.items()}
