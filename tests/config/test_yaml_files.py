import os
from pathlib import Path

import pytest

from proxima.config.yaml_files import MAX_BYTES, parse_yaml, read_yaml
from proxima.errors import UsageError

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 9))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "more than 200,000 values"),
        (MERGES, "more than 200,000 values"),
        ("[" * 5000 + "]" * 5000, "deeper than 50"),
        ("x: " + "9" * 5000, "cannot be read"),
        ("x: 1" + ":1" * 1_000_000, "more than 1,000 digits"),
        ("x: 0x" + "f" * 5000, "more than 1,000 digits"),
        ("x: 2001-13-45", "cannot be read"),
        ("x: !!bool maybe", "cannot be read"),
        ("x: !!int ''", "cannot be read"),
        ("x: !!timestamp soon", "cannot be read"),
        ("x: &x {y: [*x]}", "contains itself"),
        ("x: [1", "not valid YAML at line"),
        ("x: !!python/object/apply:os.system [true]", "not valid YAML"),
        ("? [a, b]\n: 1\n? {a: 1}\n: 2", "not valid YAML"),
        ("x: '" + "y" * MAX_BYTES + "'", "at most"),
    ],
)
def test_hostile_text_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_yaml(text, source="the file")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("the file ")


def test_anchors_and_merges_of_honest_files_work() -> None:
    text = "base: &base {lr: 1}\nrun:\n  <<: *base\n  seed: 2\n"
    assert parse_yaml(text, source="x") == {"base": {"lr": 1}, "run": {"lr": 1, "seed": 2}}


def test_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "latin").write_bytes(b"name: caf\xe9")
    for name, message in {
        "fifo": "regular file",
        "latin": "not UTF-8",
        "nowhere": "No such file",
        ".": "regular",
    }.items():
        with pytest.raises(UsageError, match=message):
            read_yaml(tmp_path / name, what="config file")
    with pytest.raises(UsageError, match="null"):
        read_yaml(Path("a\0b"), what="config file")


def test_a_key_twice_is_an_error_and_a_merged_one_is_not() -> None:
    with pytest.raises(UsageError, match=r"a file is not valid YAML at line 3, column 3: b is given twice\."):
        parse_yaml("a:\n  b: 1\n  b: 2", source="a file")
    merged = parse_yaml("a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, y: 4}", source="a file")
    assert merged == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}, "c": {"x": 3, "y": 4}}
