"""`proxima compare`: an HTML page, its figures, and markdown."""

import html
import logging
import math
import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from proxima.errors import UsageError
from proxima.evaluation import page
from proxima.evaluation.statistics import FEWEST, Summary
from proxima.report.comparison import Comparison, Result, comparable, compare, improvement
from proxima.report.runs import Group, differing, load_groups, used_options
from proxima.runs.layout import VIDEOS
from proxima.text import duration, number, percent

log = logging.getLogger("proxima")

LARGEST_VIDEO = 8_000_000  # bytes to embed
HEAD = (
    *("", "seeds", "final training return (IQM)", "spread over seeds", "final evaluated return"),
    *("final success rate", "mean over steps", "steps to threshold", "time to threshold", "training time", "steps/s"),
)
_NAMED_PATHS = 3


def write_comparison(
    paths: Sequence[str], *, out: str | Path, threshold: float | None = None
) -> tuple[Path, str, Comparison]:
    """Compare runs into a folder; returns the page, the markdown and the comparison."""
    from proxima.report import figures  # slow to import

    comparison = compare_runs(*paths, threshold=threshold)
    target = Path(out)
    try:
        target.mkdir(parents=True, exist_ok=True)
        drawn = figures.draw(comparison, target)
        # Paths may have bytes that are not UTF-8.
        text = _markdown(comparison, drawn).encode("utf-8", "replace").decode()
        (target / "index.html").write_text(_html(comparison, drawn), encoding="utf-8", errors="replace")
        (target / "comparison.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the comparison cannot be written to {target}: {error.strerror or error}.") from None
    return target / "index.html", text, comparison


def compare_runs(*runs: str | Path, out: str | Path | None = None, threshold: float | None = None) -> Comparison:
    """Compare runs by their metrics. `proxima.compare` is this function.

    Args:
        *runs: Run folders, or folders of runs; `"LABEL=FOLDER"` makes one group of all runs in a folder. Runs that
            differ only in their seed form a group.
        out: Also write the page of `proxima compare`, its figures and markdown to this folder.
        threshold: Return to be reached; None is 80 % of the way from the lowest to the best final return.

    Example:
        >>> found = proxima.compare("ours=runs/a", "theirs=runs/b")  # doctest: +SKIP
        >>> {result.group.label: result.final["training"].iqm for result in found.results}  # doctest: +SKIP
        {'ours': 480.2, 'theirs': 455.9}
    """
    if out is not None:
        return write_comparison(list(map(str, runs)), out=out, threshold=threshold)[2]
    if not runs:
        raise UsageError("compare needs at least one run folder.")
    comparison = compare(load_groups(list(map(str, runs))), threshold=threshold)
    for notice in _damage(comparison):
        log.warning(notice)
    return comparison


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """One row per group, in the order of `HEAD`."""
    return [_row(result, comparison.threshold) for result in comparison.results]


def table(comparison: Comparison) -> list[tuple[str, ...]]:
    """`HEAD` and `rows`, without columns in which no group has a value."""
    columns = zip(HEAD, *rows(comparison), strict=True)
    return list(zip(*(column for column in columns if set(column[1:]) != {"-"}), strict=True))


def sentences(comparison: Comparison) -> list[str]:
    """For each pair of groups of one env, which is better and how certain that is."""
    lines = []
    if len(comparison.envs) > 1:
        whose = ", ".join(f"{group.label} is {' and '.join(group.envs) or 'unknown'}" for group in comparison.groups)
        lines.append(f"Different envs, whose returns cannot be compared: {whose}.")
    for one, other in combinations(comparison.results, 2):
        if comparable(one.group, other.group):
            lines += [_verdict(one, other, kind) for kind in one.finals]
    return lines


def _verdict(one: Result, other: Result, kind: str) -> str:
    first, second = (one, other) if one.final[kind].iqm >= other.final[kind].iqm else (other, one)
    (better, seeds), (worse, others) = ((found.group.label, found.group.seeds) for found in (first, second))
    start = f"{better} against {worse}, final {kind} return: "
    start += f"{number(first.final[kind].iqm)} against {number(second.final[kind].iqm)}"
    found = improvement(first, second, kind)
    if found is None:
        return f"{start}. {_seeds(min(seeds, others))}: too few for a probability."
    chance, low, high = found
    if chance == 1:
        return f"{start}; every run of {better} ({_seeds(seeds)}) ends above every run of {worse} ({_seeds(others)})."
    undecided = ": these seeds do not decide it" if low <= 0.5 else ""
    return f"{start}; higher with probability {chance:.2f} (95 % interval {low:.2f} to {high:.2f}){undecided}."


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


def _row(result: Result, threshold: float | None) -> tuple[str, ...]:
    steps, seconds, rate = result.steps_to_threshold, result.seconds_to_threshold, result.steps_per_second
    seeds, runs = result.group.seeds, len(result.group.runs)
    training, evaluated = result.final["training"], result.final.get("evaluated")
    missed = "-" if threshold is None else f"{result.reached} of {runs} reached it"
    return (
        result.group.label,
        str(seeds) if seeds == runs else f"{seeds} ({runs} runs)",
        number(training.iqm),
        _spread(training, seeds),
        "-" if evaluated is None else f"{number(evaluated.iqm)} ({_spread(evaluated, seeds)})",
        "-" if result.success is None else percent(result.success),
        number(result.area),
        missed if steps is None else f"{steps:,.0f}",
        "-" if seconds is None else duration(seconds),
        duration(result.seconds),
        number(round(rate) if rate >= 10 else rate),
    )


def _spread(summary: Summary, seeds: int) -> str:
    """A bootstrap interval if there are enough seeds; else min to max."""
    if summary.count == 1:
        return "one seed"
    if seeds < FEWEST:
        return f"min to max: {number(summary.min)} to {number(summary.max)}"
    return f"95 %: {number(summary.iqm_low)} to {number(summary.iqm_high)}"


def _options(groups: list[Group]) -> list[tuple[str, ...]]:
    seen = [used_options(group) for group in groups]
    return [(name, *(str(options.get(name, "-")) for options in seen)) for name in differing(groups)]


def _notes(comparison: Comparison) -> list[str]:
    rate = "" if comparison.results[0].success is None else " and success rate"
    notes = [
        f"Final training return{rate}: mean of the training episodes in the last tenth of a run. IQM: "
        "interquartile mean over runs. Intervals and bands are 95 % bootstrap intervals over seeds; with fewer than "
        f"{FEWEST} seeds, min to max.",
        "Mean over steps: mean training return up to the last step that all runs have."
        + ("" if comparison.threshold is None else f" Threshold: {number(comparison.threshold)}."),
    ]
    if "evaluated" in comparison.results[0].finals:
        notes.append("Final evaluated return: each run's last evaluation (--eval-every), IQM over runs.")
    return notes + _damage(comparison)


def _damage(comparison: Comparison) -> list[str]:
    """One line about rows that could not be read, if there are any."""
    damaged = [run for group in comparison.groups for run in group.runs if run.damaged]
    where = [f"{run.damaged:,} in {run.path}" for run in damaged[:_NAMED_PATHS]]
    where += [f"others in {len(damaged) - _NAMED_PATHS} more runs"] * (len(damaged) > _NAMED_PATHS)
    count = sum(run.damaged for run in damaged)
    return [f"Damaged rows of metrics that were left out: {count:,} ({', '.join(where)})."] if count else []


def _html(comparison: Comparison, drawn: list[Path]) -> str:
    labels = [group.label for group in comparison.groups]
    head, *body = table(comparison)
    parts = ["<h1>Comparison</h1>", page.table(head, body), page.paragraph(sentences(comparison))]
    parts += [page.paragraph(_notes(comparison)), *map(page.picture, drawn)]
    results = comparison.results
    for kind in results[0].finals:
        found = [[None if one is other else improvement(one, other, kind) for other in results] for one in results]
        if any(chance is not None for line in found for chance in line):
            cells = [[f"{chance[0]:.2f}" if chance else "" for chance in line] for line in found]
            parts += [f"<h2>Final {kind} return: probability that a run of the row is above one of the column</h2>"]
            parts += [page.table(("", *labels), [(label, *line) for label, line in zip(labels, cells, strict=True)])]
    if len(labels) > 1:
        parts += ["<h2>Options that differ</h2>", page.table(("", *labels), _options(comparison.groups))]
    columns = ("group", "env", "seed", "final training return", "final evaluated return", "folder")
    parts += ["<h2>Runs</h2>", page.table(columns, _runs(comparison))]
    for group in comparison.groups:
        parts += _videos(group)
    return page.page("Comparison", parts)


def _runs(comparison: Comparison) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for result in comparison.results:
        runs, finals = result.group.runs, result.finals
        evaluated = finals.get("evaluated", [math.nan] * len(runs))
        for run, *returns in zip(runs, finals["training"], evaluated, strict=True):
            label, env, seed = result.group.label, run.env or "-", str(run.seed)
            lines.append((label, env, seed, *map(number, returns), str(run.path)))
    return lines


def _videos(group: Group) -> list[str]:
    """The newest video of the group that is small enough to embed, if there is one."""
    files = [file for run in group.runs for file in (run.path / VIDEOS).glob("*.mp4") if file.is_file()]
    files = [file for file in files if file.stat().st_size <= LARGEST_VIDEO]
    if not files:
        return []
    newest = max(files, key=lambda file: file.stat().st_mtime)
    return [f"<h2>{html.escape(group.label)}: {html.escape(newest.stem)}</h2>", page.video(newest)]


def _markdown(comparison: Comparison, drawn: list[Path]) -> str:
    def lines(cells: Sequence[Sequence[str]]) -> list[str]:
        head, *body = [[_literal(cell) for cell in row] for row in cells]
        return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)]

    labels = [group.label for group in comparison.groups]
    said = [f"- {_literal(line)}" for line in sentences(comparison)]
    parts = [*lines(table(comparison)), "", *said, "", *map(_literal, _notes(comparison)), ""]
    parts += [f"![{file.stem}]({file.name})" for file in drawn]
    if len(labels) > 1:
        parts += ["", "Options that differ:", "", *lines([("", *labels), *_options(comparison.groups)])]
    return "\n".join(parts) + "\n"


def _literal(text: str) -> str:
    """Text escaped for markdown, on one line."""
    return re.sub(r"([\\|<$*`\[])", r"\\\1", " ".join(text.split()))
