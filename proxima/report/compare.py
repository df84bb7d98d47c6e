"""`proxima compare`: one HTML page, its figures, and markdown for a README."""

import html
import logging
import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from proxima.errors import UsageError
from proxima.evaluate import page
from proxima.evaluate.statistics import FEWEST, Summary
from proxima.report.comparison import Comparison, Improvement, Result, comparable, compare
from proxima.report.runs import Group, differing, load_groups, used_options
from proxima.runs.layout import VIDEOS
from proxima.text import number

log = logging.getLogger("proxima")

LARGEST_VIDEO = 8_000_000  # bytes, that go into the page
HEAD = (
    *("", "seeds", "final training return (IQM)", "spread over seeds", "final evaluated return"),
    *("mean over steps", "steps to threshold", "time", "steps/s"),
)
_NAMED_PATHS = 3


def write_comparison(
    paths: Sequence[str], *, out: str | Path, threshold: float | None = None
) -> tuple[Path, str, Comparison]:
    """Compare runs into a folder; returns the page, the markdown and the comparison."""
    from proxima.report import figures  # a second to import

    comparison = compare(load_groups(paths), threshold=threshold)
    for notice in _damage(comparison):
        log.warning(notice)
    target = Path(out)
    try:
        target.mkdir(parents=True, exist_ok=True)
        drawn = figures.draw(comparison, target)
        # Paths of folders may have bytes that are no text.
        text = _markdown(comparison, drawn).encode("utf-8", "replace").decode()
        (target / "index.html").write_text(_html(comparison, drawn), encoding="utf-8", errors="replace")
        (target / "comparison.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the comparison cannot be written to {target}: {error.strerror or error}.") from None
    return target / "index.html", text, comparison


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """One row per group, in the order of `HEAD`."""
    return [_row(result, comparison.threshold) for result in comparison.results]


def sentences(comparison: Comparison) -> list[str]:
    """Which group of each two is better, and how sure that is; nothing of the kind between different envs."""
    lines = []
    if len(comparison.envs) > 1:
        whose = ", ".join(f"{group.label} is {' and '.join(group.envs) or 'unknown'}" for group in comparison.groups)
        lines.append(f"Different envs, whose returns do not compare: {whose}.")
    groups = zip(comparison.groups, comparison.results, strict=True)
    for (one, first), (other, second) in combinations(groups, 2):
        if not comparable(one, other):
            continue
        lines.append(_verdict("training", (first, first.final), (second, second.final), comparison.improvement))
        if first.evaluated is not None and second.evaluated is not None:
            measured = (first, first.evaluated), (second, second.evaluated)
            lines.append(_verdict("evaluated", *measured, comparison.evaluated_improvement))
    return lines


def _verdict(kind: str, one: tuple[Result, Summary], other: tuple[Result, Summary], improvement: Improvement) -> str:
    (first, best), (second, least) = (one, other) if one[1].iqm >= other[1].iqm else (other, one)
    fewest = min(first.seeds, second.seeds)
    start = f"{first.label} against {second.label}, final {kind} return: {number(best.iqm)} against {number(least.iqm)}"
    if (first.label, second.label) not in improvement:
        return f"{start}. {_seeds(fewest)}: too few for a probability."
    chance, low, high = improvement[first.label, second.label]
    if chance == 1:
        return (
            f"{start}; every run of {first.label} ({_seeds(first.seeds)}) ends above every run of {second.label} "
            f"({_seeds(second.seeds)})."
        )
    undecided = ": these seeds do not decide it" if low <= 0.5 else ""
    return f"{start}; higher with probability {chance:.2f} (95 % interval {low:.2f} to {high:.2f}){undecided}."


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


def _row(result: Result, threshold: float | None) -> tuple[str, ...]:
    steps, seconds = result.steps_to_threshold, result.seconds_to_threshold
    missed = "-" if threshold is None else f"{result.reached} of {len(result.finals)} reached it"
    evaluated = result.evaluated
    return (
        result.label,
        str(result.seeds) if result.seeds == len(result.finals) else f"{result.seeds} ({len(result.finals)} runs)",
        number(result.final.iqm),
        _spread(result.final, result.seeds),
        "-" if evaluated is None else f"{number(evaluated.iqm)} ({_spread(evaluated, result.seeds)})",
        number(result.area),
        missed if steps is None else f"{steps:,.0f}",
        "-" if seconds is None else f"{number(seconds)} s",
        number(round(result.steps_per_second)) if result.steps_per_second >= 10 else number(result.steps_per_second),
    )


def _spread(summary: Summary, seeds: int) -> str:
    """A bootstrap interval where there are enough seeds for one; else what the runs themselves span."""
    if summary.count == 1:
        return "one seed"
    if seeds < FEWEST:
        return f"min to max: {number(summary.min)} to {number(summary.max)}"
    return f"95 %: {number(summary.iqm_low)} to {number(summary.iqm_high)}"


def _options(groups: list[Group]) -> list[tuple[str, ...]]:
    seen = [used_options(group) for group in groups]
    return [(name, *(str(options.get(name, "-")) for options in seen)) for name in differing(groups)]


def _notes(comparison: Comparison) -> list[str]:
    notes = [
        "Final training return: mean of the training episodes in the last tenth of a run. IQM: interquartile mean "
        "over runs. Intervals and bands are 95 % bootstrap intervals over seeds; with fewer than "
        f"{FEWEST} seeds, min to max.",
        "Mean over steps: mean training return up to the last step that all runs have."
        + ("" if comparison.threshold is None else f" Threshold: {number(comparison.threshold)}."),
    ]
    if all(result.evaluated is not None for result in comparison.results):
        notes.append("Final evaluated return: each run's last evaluation (--eval-every), IQM over runs.")
    return notes + _damage(comparison)


def _damage(comparison: Comparison) -> list[str]:
    """One notice of the rows that could not be read, if there are any."""
    damaged = [run for group in comparison.groups for run in group.runs if run.damaged]
    count = sum(run.damaged for run in damaged)
    if not count:
        return []
    where = [f"{run.damaged:,} in {run.path}" for run in damaged[:_NAMED_PATHS]]
    where += [f"others in {len(damaged) - _NAMED_PATHS} more runs"] * (len(damaged) > _NAMED_PATHS)
    rows, were = ("row", "was") if count == 1 else ("rows", "were")
    return [f"{count:,} damaged {rows} of metrics {were} left out: {', '.join(where)}."]


def _html(comparison: Comparison, drawn: list[Path]) -> str:
    labels = [group.label for group in comparison.groups]
    parts = ["<h1>Comparison</h1>", page.table(HEAD, rows(comparison)), page.paragraph(sentences(comparison))]
    parts += [page.paragraph(_notes(comparison)), *map(page.picture, drawn)]
    for kind, improvement in (
        ("training", comparison.improvement),
        ("evaluated", comparison.evaluated_improvement),
    ):
        if improvement:
            chances = [
                (one, *(f"{improvement[one, other][0]:.2f}" if (one, other) in improvement else "" for other in labels))
                for one in labels
            ]
            parts += [f"<h2>Final {kind} return: probability that a run of the row is above one of the column</h2>"]
            parts += [page.table(("", *labels), chances)]
    if len(labels) > 1:
        parts += ["<h2>Options that differ</h2>", page.table(("", *labels), _options(comparison.groups))]
    head = ("group", "env", "seed", "final training return", "final evaluated return", "folder")
    parts += ["<h2>Runs</h2>", page.table(head, _runs(comparison))]
    for group in comparison.groups:
        parts += _videos(group)
    return page.page("Comparison", parts)


def _runs(comparison: Comparison) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for group, result in zip(comparison.groups, comparison.results, strict=True):
        evaluated = [number(value) for value in result.evaluated_finals] or ["-"] * len(group.runs)
        for run, final, shown in zip(group.runs, result.finals, evaluated, strict=True):
            lines.append((group.label, run.env or "-", str(run.seed), number(final), shown, str(run.path)))
    return lines


def _videos(group: Group) -> list[str]:
    """The newest video of the group, if there is one and it is not too large."""
    files = [file for run in group.runs for file in (run.path / VIDEOS).glob("*.mp4") if file.is_file()]
    files = [file for file in files if file.stat().st_size <= LARGEST_VIDEO]
    if not files:
        return []
    newest = max(files, key=lambda file: file.stat().st_mtime)
    return [f"<h2>{html.escape(group.label)}: {html.escape(newest.stem)}</h2>", page.video(newest)]


def _markdown(comparison: Comparison, drawn: list[Path]) -> str:
    def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
        lines = [[_literal(cell) for cell in line] for line in (head, *body)]
        return ["| " + " | ".join(line) + " |" for line in (lines[0], ["---"] * len(head), *lines[1:])]

    labels = [group.label for group in comparison.groups]
    said = [f"- {_literal(line)}" for line in sentences(comparison)]
    parts = [*table(HEAD, rows(comparison)), "", *said, "", *map(_literal, _notes(comparison)), ""]
    parts += [f"![{file.stem}]({file.name})" for file in drawn]
    if len(labels) > 1:
        parts += ["", "Options that differ:", "", *table(("", *labels), _options(comparison.groups))]
    return "\n".join(parts) + "\n"


def _literal(text: str) -> str:
    """Text of a label, an option or a path so that markdown shows it as it is, on one line."""
    return re.sub(r"([\\|<$*`\[])", r"\\\1", " ".join(text.split()))
