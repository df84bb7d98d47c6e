"""Runs as their `metrics.jsonl` tells them, and which of them belong together."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from proxima.config import all_options, find_option
from proxima.errors import UsageError

METRICS = "metrics.jsonl"
# Options that do not change what is learned: a group of runs may differ in them.
_INCIDENTAL_SECTIONS = ("checkpoint", "evaluation", "track")
_INCIDENTAL = ("name", "seed", "runs_dir", "device", "num_threads")
_MOST_IN_LABEL = 3
FIRST_ALGORITHM = "ppo"
"""Of runs from before there was a choice."""


@dataclass
class Run:
    """One run, with the runs that it was resumed from before it."""

    path: Path
    options: dict[str, Any]
    columns: dict[str, np.ndarray]
    """Every metric by iteration, NaN where it was not written."""
    ancestors: list[Path] = field(default_factory=list)

    @property
    def seed(self) -> Any:
        """The seed, as it says."""
        return self.options.get("seed")

    def curve(self, name: str, *, against: str = "global_step") -> tuple[np.ndarray, np.ndarray]:
        """A metric and what it is drawn against, without the iterations in which it was not known."""
        y = self.columns.get(name, np.full_like(self.columns["global_step"], math.nan))
        known = np.isfinite(y)
        return self.columns[against][known], y[known]


@dataclass
class Group:
    """Runs that differ in nothing but the seed."""

    label: str
    runs: list[Run]

    @property
    def options(self) -> dict[str, Any]:
        """Those of all its runs."""
        return self.runs[0].options

    @property
    def algorithm(self) -> str:
        """As its runs say; several where they do not agree."""
        return "+".join(sorted({str(run.options.get("algorithm", FIRST_ALGORITHM)).upper() for run in self.runs}))


def load_groups(paths: Sequence[str]) -> list[Group]:
    """Runs by the options that they share; `LABEL=PATH` puts all the runs of a path into one group of that name."""
    named: dict[str, list[Run]] = {}
    others: list[Run] = []
    for text in paths:
        label, equals, path = text.partition("=")
        if equals and not Path(text).exists():
            named.setdefault(label, []).extend(load_runs(Path(path)))
        else:
            others.extend(load_runs(Path(text)))
    groups = [Group(label, _without_ancestors(runs)) for label, runs in named.items()]
    by_options: dict[str, list[Run]] = {}
    for run in _without_ancestors(others):
        by_options.setdefault(json.dumps(_essential(run.options), sort_keys=True, default=str), []).append(run)
    found = [Group("", runs) for runs in by_options.values()]
    for group, label in zip(found, _labels(found), strict=True):
        group.label = label
    return [*groups, *found]


def load_runs(path: Path) -> list[Run]:
    """The run in a folder, or all runs in the folders below it."""
    files = [path / METRICS] if (path / METRICS).is_file() else sorted(path.glob(f"*/{METRICS}"))
    files = files or sorted(path.glob(f"*/*/{METRICS}"))
    if not files:
        what = "holds no run (no metrics.jsonl in it or below)" if path.is_dir() else "is not a run's folder"
        raise UsageError(f"{path} {what}: give the folders that `proxima train` made, such as runs/HalfCheetah-v5.")
    return [load_run(file.parent) for file in files]


def load_run(folder: Path) -> Run:
    """One run; what it was resumed from is put before it, where that can still be found."""
    columns, ancestors = _read_columns(folder / METRICS), []
    for parent in reversed(_parents(folder)):
        ancestors.append(parent)
        columns = _joined(_read_columns(parent / METRICS), columns)
    return Run(folder, _read_options(folder), columns, ancestors)


def differing(groups: Sequence[Group]) -> list[str]:
    """Names of the options that are not the same in all groups."""
    seen = [used_options(group) for group in groups]
    names = dict.fromkeys(name for options in seen for name in _essential(options))
    return [
        name
        for name in names
        if len({repr(options.get(name)) for options in seen}) > 1 and any(_is_told(name, options) for options in seen)
    ]


def used_options(group: Group) -> dict[str, Any]:
    """The options of a group, without those of an algorithm that it did not use."""
    other = {"ppo": "dqn", "dqn": "ppo"}[str(group.options.get("algorithm", "PPO")).lower()]
    return {name: value for name, value in group.options.items() if _section(name) != other}


def _is_told(name: str, options: dict[str, Any]) -> bool:
    """Of what only one algorithm has, what somebody chose; all else."""
    if name not in options:
        return False
    return _section(name) not in ("ppo", "dqn") or options[name] != all_options()[name].default


def _read_columns(file: Path) -> dict[str, np.ndarray]:
    rows: list[dict[str, Any]] = []
    lines = file.read_text(errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if not {"global_step", "wall_time"} <= row.keys():
                raise ValueError
        except (ValueError, AttributeError):
            if number == len(lines) and rows:  # cut short by a kill
                break
            raise UsageError(f"{file}, line {number} is not a line of metrics.") from None
        rows.append(row)
    if not rows:
        raise UsageError(f"{file} is empty: the run has not finished an iteration yet.")
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([_number(row.get(name)) for row in rows]) for name in names}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _read_options(folder: Path) -> dict[str, Any]:
    """All options in one level; none where the file is not there."""
    try:
        sections = yaml.safe_load((folder / "config.yaml").read_text())
    except (OSError, yaml.YAMLError):
        return {}
    if not isinstance(sections, dict):
        return {}
    return {"algorithm": FIRST_ALGORITHM} | {
        name: value for section in sections.values() if isinstance(section, dict) for name, value in section.items()
    }


def _essential(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _INCIDENTAL and not _is_incidental(name)}


def _is_incidental(name: str) -> bool:
    return _section(name) in _INCIDENTAL_SECTIONS


def _section(name: str) -> str | None:
    try:
        return find_option(name, source="config.yaml").section
    except UsageError:  # of another version
        return None


def _parents(folder: Path) -> list[Path]:
    """The runs that a run descends from, the first one first; where folders were moved together, beside it."""
    try:
        lineage = yaml.safe_load((folder / "lineage.yaml").read_text())["lineage"]
    except (OSError, TypeError, KeyError, yaml.YAMLError):
        return []
    found = []
    for checkpoint in lineage:
        parent = Path(str(checkpoint)).parent
        places = [place for place in (parent, folder.parent / parent.name) if (place / METRICS).is_file()]
        if places and places[0].resolve() != folder.resolve():
            found.append(places[0])
    return list(dict.fromkeys(found))


def _joined(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One history out of two: of the earlier run, what came before the later one's first iteration."""
    kept = before["global_step"] < after["global_step"][0]
    if not kept.any():
        return after
    names = dict.fromkeys([*before, *after])
    lengths = int(kept.sum()), len(after["global_step"])
    columns = {
        name: np.concatenate(
            [
                before[name][kept] if name in before else np.full(lengths[0], math.nan),
                after[name] if name in after else np.full(lengths[1], math.nan),
            ]
        )
        for name in names
    }
    columns["wall_time"][lengths[0] :] += columns["wall_time"][lengths[0] - 1]
    return columns


def _without_ancestors(runs: Iterable[Run]) -> list[Run]:
    """Each history once: a run that another one went on from is a part of that one."""
    unique = {run.path.resolve(): run for run in runs}
    continued = {parent.resolve() for run in unique.values() for parent in run.ancestors}
    return [run for path, run in unique.items() if path not in continued]


def _labels(groups: list[Group]) -> list[str]:
    """A name for each group: the runs' own where it tells the groups apart, else the options that do."""
    names = [{str(run.options.get("name") or run.path.parent.name) for run in group.runs} for group in groups]
    own = [next(iter(name)) if len(name) == 1 else "" for name in names]
    by_algorithm: dict[str, list[Group]] = {}
    for group in groups:
        by_algorithm.setdefault(group.algorithm, []).append(group)
    several = len(by_algorithm) > 1
    if all(own) and len(set(own)) == len(own):
        return [_with_algorithm(name, group) if several else name for name, group in zip(own, groups, strict=True)]
    labels = []
    for group in groups:
        # Two algorithms differ in most options: those that tell an algorithm's own groups apart say more.
        shown = differing(by_algorithm[group.algorithm])[:_MOST_IN_LABEL]
        parts = [group.algorithm] * several + [f"{name} {group.options.get(name)}" for name in shown]
        labels.append(", ".join(parts) or own[0] or "runs")
    return labels


def _with_algorithm(name: str, group: Group) -> str:
    return name if group.algorithm.lower() in name.lower() else f"{name} ({group.algorithm})"
