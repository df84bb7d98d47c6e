"""Writes `metrics.jsonl`: one JSON object per iteration, the source of all reports."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from proxima.runs.layout import METRICS
from proxima.track.append_file import AppendFile


class JsonLines:
    """Appends one line per iteration; NaN and infinity, which JSON does not have, become null."""

    name = METRICS

    def __init__(self, run_dir: Path):
        self._file = AppendFile(run_dir / METRICS)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of one iteration."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
        self._file.append(json.dumps(clean).encode() + b"\n")

    def close(self) -> None:
        """Write pending lines and close the file."""
        self._file.close()
