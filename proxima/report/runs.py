"""Runs read from disk, grouped into seeds of one experiment."""

import pprint
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from proxima.config import compared_options
from proxima.config.config import spellings
from proxima.errors import UsageError
from proxima.report.run_files import FIRST_ALGORITHM, column, joined, read_columns, read_options, read_parents
from proxima.runs.layout import METRICS, is_file

_ALGORITHM_SECTIONS = ("ppo", "dqn")
_MOST_IN_LABEL = 3
LONGEST_LABEL = 80
"""Characters that fit into a legend."""


@dataclass
class Run:
    """One run, including the runs that it was resumed from."""

    path: Path
    options: dict[str, Any]
    columns: dict[str, np.ndarray]
    """Every metric by iteration, NaN where it was not written."""
    ancestors: list[Path] = field(default_factory=list)
    damaged: int = 0
    """Rows of its metrics that could not be read."""

    @property
    def seed(self) -> Any:
        """The seed; None where the config is missing."""
        return self.options.get("seed")

    @property
    def env(self) -> str | None:
        """The env id; None where the config is missing."""
        found = self.options.get("env")
        return None if found is None else str(found)

    def curve(self, name: str, *, against: str = "global_step") -> tuple[np.ndarray, np.ndarray]:
        """x and y of a metric, without the iterations in which it has no value."""
        y = column(self.columns, name)
        known = np.isfinite(y)
        return self.columns[against][known], y[known]


@dataclass
class Group:
    """Runs that differ only in the seed."""

    label: str
    runs: list[Run]

    @property
    def options(self) -> dict[str, Any]:
        """Options of the first run; the others may differ only in a group that the user has labelled."""
        return self.runs[0].options

    @property
    def seeds(self) -> int:
        """Number of different seeds: runs of the same seed are not independent."""
        known = {repr(run.seed) for run in self.runs if run.seed is not None}
        return len(known) + sum(run.seed is None for run in self.runs)

    @property
    def envs(self) -> list[str]:
        """Ids of the envs of its runs."""
        return sorted({run.env for run in self.runs if run.env is not None})

    @property
    def algorithm(self) -> str:
        """In capitals; joined by + where the runs differ."""
        return "+".join(sorted({str(run.options.get("algorithm", FIRST_ALGORITHM)).upper() for run in self.runs}))


def load_groups(paths: Sequence[str]) -> list[Group]:
    """Group runs that share all options but the seed; `LABEL=PATH` makes one group of all runs in a path."""
    named: dict[str, list[Run]] = {}
    others: list[Run] = []
    for text in paths:
        label, equals, path = text.partition("=")
        if equals and not _exists(Path(text)):
            _check_label(label, text)
            named.setdefault(label, []).extend(load_runs(Path(path)))
        else:
            others.extend(load_runs(Path(text)))
    groups = [Group(label, _without_ancestors(runs)) for label, runs in named.items()]
    by_options: dict[str, list[Run]] = {}
    for run in _without_ancestors(others):
        by_options.setdefault(_plain(compared_options(run.options)), []).append(run)
    found = [Group("", runs) for runs in by_options.values()]
    for group, label in zip(found, _labels(found), strict=True):
        group.label = _shortened(label)
    taken: set[str] = set()
    for group in (groups := [*groups, *found]):
        label, number = group.label, 1
        while group.label in taken:
            number += 1
            group.label = f"{label} ({number})"
        taken.add(group.label)
    return groups


def load_runs(path: Path) -> list[Run]:
    """The run in a folder, or all runs in its subfolders."""
    if is_file(path / METRICS):
        return [load_run(path)]
    is_folder = _exists(path) and path.is_dir()
    files = (sorted(path.glob(f"*/{METRICS}")) or sorted(path.glob(f"*/*/{METRICS}"))) if is_folder else []
    if not files:
        what = f"contains no run (no {METRICS} in it or below)" if is_folder else "is not a run folder"
        raise UsageError(
            f"{_shortened(str(path))} {what}: give folders that `proxima train` made, such as runs/HalfCheetah-v5."
        )
    return [load_run(file.parent) for file in files]


def load_run(folder: Path) -> Run:
    """One run, with the history of the runs that it was resumed from, if they still exist."""
    (columns, damaged), parents = read_columns(folder / METRICS), read_parents(folder)
    for parent in reversed(parents):
        before, more = read_columns(parent / METRICS)
        columns, damaged = joined(before, columns), damaged + more
    return Run(folder, read_options(folder), columns, parents, damaged)


def differing(groups: Sequence[Group]) -> list[str]:
    """Names of the options that differ between groups."""
    seen = [compared_options(used_options(group)) for group in groups]
    names = dict.fromkeys(name for options in seen for name, value in options.items() if _was_chosen(name, value))
    return [name for name in names if len({_plain(options.get(name)) for options in seen}) > 1]


def used_options(group: Group) -> dict[str, Any]:
    """The options of a group, without those of other algorithms; all of them for an unknown algorithm."""
    own = str(group.options.get("algorithm", FIRST_ALGORITHM)).lower()
    unused = [section for section in _ALGORITHM_SECTIONS if own in _ALGORITHM_SECTIONS and section != own]
    return {name: value for name, value in group.options.items() if _section(name) not in unused}


def _was_chosen(name: str, value: Any) -> bool:
    """Whether to show an option: one of a single algorithm only if it differs from the default."""
    return _section(name) not in _ALGORITHM_SECTIONS or value != spellings()[name].default


def _section(name: str) -> str | None:
    return spellings()[name].section if name in spellings() else None  # an option of another version


def _without_ancestors(runs: Iterable[Run]) -> list[Run]:
    """Leave out runs that another of them was resumed from: its history includes them."""
    unique = {run.path.resolve(): run for run in runs}
    continued = {parent.resolve() for run in unique.values() for parent in run.ancestors}
    return [run for path, run in unique.items() if path not in continued]


def _labels(groups: list[Group]) -> list[str]:
    """A label per group: the name of its runs where that is unique, else the options that differ."""
    names = [{str(run.options.get("name") or run.path.parent.name) for run in group.runs} for group in groups]
    own = [next(iter(name)) if len(name) == 1 else "" for name in names]
    by_algorithm: dict[str, list[Group]] = {}
    for group in groups:
        by_algorithm.setdefault(group.algorithm, []).append(group)
    several = len(by_algorithm) > 1
    if all(own) and len(set(own)) == len(own):
        return [
            f"{name} ({group.algorithm})" if several and group.algorithm.lower() not in name.lower() else name
            for name, group in zip(own, groups, strict=True)
        ]
    labels = []
    for group in groups:
        # Algorithms differ in most options: only those that differ between groups of one algorithm.
        shown = differing(by_algorithm[group.algorithm])[:_MOST_IN_LABEL]
        parts = [group.algorithm] * several + [f"{name} {group.options.get(name)}" for name in shown]
        labels.append(", ".join(parts) or own[0] or "runs")
    return labels


def _check_label(label: str, text: str) -> None:
    if not label:
        raise UsageError(f"{_shortened(text)!r} has no label before the `=`: write LABEL=RUN, or the run alone.")
    if len(label) > LONGEST_LABEL:
        raise UsageError(
            f"the label {label[:20] + '...'!r} has {len(label):,} characters, and at most {LONGEST_LABEL} are shown: "
            "give a shorter one."
        )
    if not label.isprintable():
        raise UsageError(f"the label {label!r} has characters that cannot be printed: leave them out.")


def _shortened(label: str) -> str:
    printable = "".join(letter if letter.isprintable() else "?" for letter in label)
    return printable if len(printable) <= LONGEST_LABEL else printable[: LONGEST_LABEL - 3] + "..."


def _plain(value: Any) -> str:
    """The same text for equal values of any type, independent of the order of keys."""
    return pprint.pformat(value, width=10**6, sort_dicts=True)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long; a NUL in it
        return False
