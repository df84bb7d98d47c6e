"""Reads the files of a run folder: metrics, options and lineage. They may be damaged, or of another version."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from proxima.config.yaml_files import read_yaml
from proxima.errors import UsageError
from proxima.runs.layout import CONFIG, METRICS, is_file, read_lineage

FIRST_ALGORITHM = "ppo"
"""Of older runs, whose config does not name the algorithm."""
LARGEST = 1e30
"""Magnitude above which a number counts as damaged: sums of such numbers overflow."""


def read_columns(file: Path) -> tuple[dict[str, np.ndarray], int]:
    """Every metric by iteration, NaN where it has no value; and the number of damaged rows, which are left out."""
    try:
        lines = [line for line in file.read_bytes().split(b"\n") if line.strip()]
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}.") from None
    rows = [row for row in map(_read_row, lines) if row is not None]
    damaged = len(lines) - len(rows)
    if not lines:
        raise UsageError(f"{file} is empty: the run has not finished an iteration yet.")
    if not rows:
        raise UsageError(f"{file} has no valid row of metrics ({damaged:,} are damaged): leave this run out.")
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}, damaged


def _read_row(line: bytes) -> dict[str, float] | None:
    """The metrics of an iteration; None where the line is damaged."""
    try:
        row = {name: _number(value) for name, value in json.loads(line.decode()).items()}
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        return None
    has_axes = all(0 <= row.get(name, math.nan) <= LARGEST for name in ("global_step", "wall_time"))
    return row if has_axes else None


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if not isinstance(value, (int, float)):
        raise TypeError
    number = float(value)
    if LARGEST < abs(number) < math.inf:
        raise OverflowError
    return number


def read_options(folder: Path) -> dict[str, Any]:
    """All options of a run, without sections; none where it has no config.yaml."""
    file = folder / CONFIG
    sections = read_yaml(file, what="the config") if file.exists() else None
    if sections is None:
        return {}
    if not isinstance(sections, dict):
        raise UsageError(f"the config {file} holds a {type(sections).__name__}, but should hold sections of options.")
    return {"algorithm": FIRST_ALGORITHM} | {
        str(name): value
        for section in sections.values()
        if isinstance(section, dict)
        for name, value in section.items()
    }


def read_parents(folder: Path) -> list[Path]:
    """The runs that a run was resumed from, oldest first; also found beside it, if the folders were moved together."""
    parents = []
    for checkpoint in read_lineage(folder):
        parent = Path(checkpoint).parent
        places = [place for place in (parent, folder.parent / parent.name) if is_file(place / METRICS)]
        if places and places[0].resolve() != folder.resolve():
            parents.append(places[0])
    return list(dict.fromkeys(parents))


def joined(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The history of a resumed run: iterations of `before` up to the first one of `after`, then those."""
    kept = before["global_step"] < after["global_step"][0]
    if not kept.any():
        return after
    names, count = dict.fromkeys([*before, *after]), int(kept.sum())
    columns = {name: np.concatenate([column(before, name)[kept], column(after, name)]) for name in names}
    columns["wall_time"][count:] += columns["wall_time"][count - 1]
    return columns


def column(columns: dict[str, np.ndarray], name: str) -> np.ndarray:
    """A metric by iteration; all NaN where the run did not write it."""
    return columns.get(name, np.full_like(columns["global_step"], math.nan))
