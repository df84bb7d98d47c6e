"""Labels and run folders that are damaged, hostile or of another version: never a traceback."""

import json
import logging
from pathlib import Path

import pytest

from proxima.cli import main
from proxima.errors import UsageError
from proxima.report.compare import write_comparison
from proxima.report.comparison import compare
from proxima.report.runs import LONGEST_LABEL, load_groups, load_run
from tests.report.made_runs import write_run


@pytest.mark.slow
@pytest.mark.parametrize("label", [r"$\frac$", "$x$", "_hidden", "<b>&amp;</b>", "a|b", "名前", "*bold* `code` [x](y)"])
def test_a_label_is_shown_as_it_is(tmp_path: Path, label: str, recwarn: pytest.WarningsRecorder) -> None:
    run = write_run(tmp_path / "a" / "1", returns=[1.0, 2.0], extra={"episode_$\\frac$": 1.0})
    other = write_run(tmp_path / "b" / "1", returns=[1.0, 2.0], learning_rate=1e-4)
    page, markdown, _ = write_comparison([f"{label}={run}", f"other={other}"], out=tmp_path / "out")
    text = page.read_text(encoding="utf-8")
    assert "<b>" not in text and "&amp;lt;" not in text
    if label.startswith("<"):
        assert "&lt;b&gt;&amp;amp;&lt;/b&gt;" in text and "<b>" not in markdown.replace("\\<", "")
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in rows[:3]}) == 1
    assert not [str(w.message) for w in recwarn if "Glyph" in str(w.message) or "legend" in str(w.message)]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("x" * 5000, f"has 5,000 characters, and at most {LONGEST_LABEL} are shown: give a shorter one"),
        ("", "has no label before the `=`"),
        ("a\nb", r"label 'a\\nb' has characters that cannot be printed"),
        ("a\udcff", r"label 'a\\udcff' has characters that cannot be printed"),
    ],
)
def test_a_label_that_cannot_be_shown_is_one_line(tmp_path: Path, label: str, message: str) -> None:
    run = write_run(tmp_path / "a" / "1", returns=[1.0])
    with pytest.raises(UsageError, match=message) as caught:
        load_groups([f"{label}={run}"])
    assert len(str(caught.value)) < 300


def test_a_path_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run folder"):
        load_groups([str(tmp_path / ("x" * 5000))])


def test_labels_from_long_names_and_options_are_cut_and_stay_apart(tmp_path: Path) -> None:
    for number in (1, 2):
        write_run(tmp_path / "a" / str(number), returns=[1.0], activation="x" * 500 + str(number))
    same = write_run(tmp_path / "b" / "1", returns=[1.0])
    labels = [group.label for group in load_groups([str(tmp_path / "a"), f"c={same}", f"a={tmp_path / 'a' / '1'}"])]
    assert all(len(label) <= LONGEST_LABEL + 4 for label in labels) and len(set(labels)) == len(labels)
    again = write_run(tmp_path / "c" / "1", returns=[1.0], learning_rate=1e-4)
    assert [group.label for group in load_groups([f"c={same}", str(again)])] == ["c", "c (2)"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.yaml", b"run: \xff\xfe", "is not UTF-8 text"),
        ("config.yaml", b"run: [", "is not valid YAML"),
        ("config.yaml", b"[1, 2]", "holds a list, but should hold sections of options"),
        ("config.yaml", b"[" * 5000, "nests deeper"),
        ("lineage.yaml", b"lineage: 5", "lineage is 5, but should be a list of checkpoints"),
        ("lineage.yaml", b"5", "lineage is missing, but should be a list of checkpoints"),
        ("lineage.yaml", b"\xff", "is not UTF-8 text"),
    ],
)
def test_a_damaged_file_is_one_line(
    tmp_path: Path, file: str, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "a" / "1", returns=[1.0])
    (run / file).write_bytes(content)
    assert main(["compare", str(run), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert message in said and file in said and said.count("\n") == 1


def test_lineages_may_name_anything(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a" / "1", returns=[1.0], lineage=["x" * 5000, "a\0b", "/no/such/run/checkpoint"])
    (run / "lineage.yaml").write_text("lineage: [5, null, {a: b}, " + "x" * 5000 + "/y]")
    assert load_run(run).ancestors == []


def test_a_run_of_an_unknown_algorithm_is_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "1", returns=[1.0, 2.0], algorithm="sac", clip_range=0.3)
    write_run(tmp_path / "b" / "1", returns=[1.0, 2.0], algorithm=["x"])
    write_run(tmp_path / "c" / "1", returns=[1.0, 2.0])
    page, _, comparison = write_comparison([str(tmp_path)], out=tmp_path / "out")
    assert [group.label for group in comparison.groups] == ["a (SAC)", "b (['X'])", "c (PPO)"]
    assert "clip_range" in page.read_text()


def test_option_names_and_values_may_be_anything(tmp_path: Path) -> None:
    for number in (1, 2):
        run = write_run(tmp_path / "a" / str(number), returns=[1.0, 2.0], seed=number)
        (run / "config.yaml").write_text("run: {1: x, true: 2, a: {2020-01-01: 1, b: 2}, c: .nan, clip_epsilon: 3}")
    _, _, comparison = write_comparison([str(tmp_path)], out=tmp_path / "out")
    assert [len(group.runs) for group in comparison.groups] == [2]


GOOD = '{"global_step": %d, "wall_time": %d, "episode_return": 1.0}\n'
DAMAGED = [
    b"\x00\x00\x00\x00\n",
    b'{"global_step": 3, "wall_t\n',
    b"[1, 2]\n",
    b"5\n",
    b"null\n",
    b'{"global_step": "3", "wall_time": 3}\n',
    b'{"global_step": 3, "wall_time": null}\n',
    b'{"global_step": -3, "wall_time": 3}\n',
    b'{"global_step": 3, "wall_time": 3, "episode_return": "high"}\n',
    b'{"global_step": 3, "wall_time": 3, "episode_return": [1]}\n',
    b'{"global_step": 3, "wall_time": 3, "episode_return": 1e308}\n',
    b'{"global_step": 3, "wall_time": 3, "episode_return": 1' + b"0" * 400 + b"}\n",
    b'{"global_step": 3, "wall_time": 3, "episode_ret\xff": 1}\n',
    b"[" * 100_000 + b"\n",
]


def test_damaged_rows_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_run(tmp_path / "a" / "1", returns=[1.0])
    good = [(GOOD % (100 * i, i)).encode() for i in range(1, len(DAMAGED) + 2)]
    lines = [line for pair in zip(good, DAMAGED, strict=False) for line in pair]
    (folder / "metrics.jsonl").write_bytes(b"".join([*lines, good[-1], b'{"global_step": 9']))
    assert load_run(folder).columns["global_step"].tolist() == [100 * i for i in range(1, len(DAMAGED) + 2)]
    other = write_run(tmp_path / "b" / "1", returns=[1.0, 2.0], learning_rate=1e-4)
    with caplog.at_level(logging.WARNING):
        page, markdown, _ = write_comparison([str(folder), str(other)], out=tmp_path / "out")
    (notice,) = caplog.messages
    count = len(DAMAGED) + 1
    assert notice == f"Damaged rows of metrics that were left out: {count} ({count} in {folder})."
    assert notice in page.read_text() and "Damaged rows" in markdown


def test_a_file_of_damaged_rows_alone_is_one_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a" / "1", returns=[1.0])
    (folder / "metrics.jsonl").write_bytes(b"".join(DAMAGED))
    with pytest.raises(UsageError, match=rf"has no valid row of metrics \({len(DAMAGED)} are damaged\)"):
        load_run(folder)


def test_values_that_are_not_finite_are_not_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a" / "1", returns=[1.0])
    rows = [{"global_step": i, "wall_time": i, "episode_return": x} for i, x in enumerate((1.0, float("inf"), 3.0))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_comparison([str(folder)], out=tmp_path / "out")
    with pytest.raises(UsageError, match="threshold is inf, but it must be a finite number"):
        compare(load_groups([str(folder)]), threshold=float("inf"))
