"""`proxima compare`: one page, its figures, and markdown for a README."""

import html
from collections.abc import Sequence
from pathlib import Path

from proxima.errors import UsageError
from proxima.evaluate import page
from proxima.report.comparison import Comparison, Result, compare
from proxima.report.runs import Group, differing, load_groups, used_options

LARGEST_VIDEO = 8_000_000  # bytes, that go into the page
HEAD = ("", "seeds", "final IQM", "95 % interval", "mean over steps", "steps to threshold", "time", "steps/s")


def write_comparison(
    paths: Sequence[str], *, out: str | Path, threshold: float | None = None
) -> tuple[Path, str, Comparison]:
    """Compare runs into a folder; returns the page, the markdown and what was found."""
    from proxima.report import figures  # a second to import

    comparison = compare(load_groups(paths), threshold=threshold)
    target = Path(out)
    try:
        target.mkdir(parents=True, exist_ok=True)
        drawn = figures.draw(comparison, target)
        (target / "index.html").write_text(_html(comparison, drawn))
        text = _markdown(comparison, drawn)
        (target / "comparison.md").write_text(text)
    except OSError as error:
        raise UsageError(f"the comparison cannot be written to {target}: {error.strerror}.") from None
    return target / "index.html", text, comparison


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """One a group, in the order of `HEAD`."""
    return [_row(result) for result in comparison.results]


def sentences(comparison: Comparison) -> list[str]:
    """What the numbers say about each two groups, and how sure that is."""
    lines = []
    for number, one in enumerate(comparison.results):
        for other in comparison.results[number + 1 :]:
            first, second = (one, other) if one.final.iqm >= other.final.iqm else (other, one)
            chance, low, high = comparison.improvement[first.label, second.label]
            if min(one.seeds, other.seeds) == 1:
                how = "higher, but with one seed that may be luck"
            elif low <= 0.5:
                how = f"higher with probability {chance:.2f} ({low:.2f} to {high:.2f}): these seeds do not decide it"
            else:
                how = f"higher with probability {chance:.2f} ({low:.2f} to {high:.2f})"
            lines.append(f"{first.label} against {second.label}: {how}.")
    return lines


def _row(result: Result) -> tuple[str, ...]:
    steps, seconds = result.steps_to_threshold, result.seconds_to_threshold
    missed = f"{result.reached} of {result.seeds} reached it"
    return (
        result.label,
        str(result.seeds),
        f"{result.final.iqm:,.1f}",
        f"{result.final.iqm_low:,.1f} to {result.final.iqm_high:,.1f}" if result.seeds > 1 else "-",
        f"{result.area:,.1f}",
        missed if steps is None else f"{steps:,.0f}",
        "-" if seconds is None else f"{seconds:,.0f} s",
        f"{result.steps_per_second:,.0f}",
    )


def _options(groups: list[Group]) -> list[tuple[str, ...]]:
    seen = [used_options(group) for group in groups]
    return [(name, *(str(options.get(name, "-")) for options in seen)) for name in differing(groups)]


def _notes(comparison: Comparison) -> list[str]:
    return [
        "Returns are those of training episodes. Final: mean of the last tenth of a run; IQM is the mean of the middle "
        "half over seeds. Bands and intervals are 95 % bootstrap intervals over seeds.",
        f"Mean over steps: the area under the curve up to the last step that all runs have. Threshold: "
        f"{comparison.threshold:,.1f}.",
    ]


def _html(comparison: Comparison, drawn: list[Path]) -> str:
    labels = [group.label for group in comparison.groups]
    parts = ["<h1>Comparison</h1>", page.table(HEAD, rows(comparison)), page.paragraph(sentences(comparison))]
    parts += [page.paragraph(_notes(comparison)), *map(page.picture, drawn)]
    if len(labels) > 1:
        chances = [
            (one, *("" if one == other else f"{comparison.improvement[one, other][0]:.2f}" for other in labels))
            for one in labels
        ]
        parts += ["<h2>Probability that a run of the row ends above one of the column</h2>"]
        parts += [page.table(("", *labels), chances)]
        parts += ["<h2>Options that differ</h2>", page.table(("", *labels), _options(comparison.groups))]
    parts += ["<h2>Runs</h2>", page.table(("group", "seed", "final", "folder"), _runs(comparison))]
    for group in comparison.groups:
        parts += _videos(group)
    return page.page("Comparison", parts)


def _runs(comparison: Comparison) -> list[tuple[str, ...]]:
    return [
        (group.label, str(run.seed), f"{final:,.1f}", str(run.path))
        for group, result in zip(comparison.groups, comparison.results, strict=True)
        for run, final in zip(group.runs, result.finals, strict=True)
    ]


def _videos(group: Group) -> list[str]:
    """The newest video of the group, if there is one and it is not too large."""
    files = [file for run in group.runs for file in (run.path / "videos").glob("*.mp4")]
    files = [file for file in files if file.stat().st_size <= LARGEST_VIDEO]
    if not files:
        return []
    newest = max(files, key=lambda file: file.stat().st_mtime)
    return [f"<h2>{html.escape(group.label)}: {html.escape(newest.stem)}</h2>", page.video(newest)]


def _markdown(comparison: Comparison, drawn: list[Path]) -> str:
    def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
        lines = [head, ["---"] * len(head), *body]
        return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]

    labels = [group.label for group in comparison.groups]
    parts = [*table(HEAD, rows(comparison)), "", *sentences(comparison), "", *_notes(comparison), ""]
    parts += [f"![{file.stem}]({file.name})" for file in drawn]
    if len(labels) > 1:
        parts += ["", "Options that differ:", "", *table(("", *labels), _options(comparison.groups))]
    return "\n".join(parts) + "\n"
