"""Loggers of a user's own, as objects and by name."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from proxima import load_config, train
from proxima.errors import UsageError
from proxima.own_parts import find_part
from proxima.track.own_logger import make_logger
from tests.training.runs import SMALL

OPTIONS = SMALL | {"env": "CartPole-v1", "total_timesteps": 256}


class Memory:
    """Keeps what it is given; a subclass of each test's own."""

    made: ClassVar[list["Memory"]] = []

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.closed = 0
        self.made.append(self)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.append(step)
        assert metrics["global_step"] == step

    def close(self) -> None:
        self.closed += 1


class InFolder(Memory):
    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        (run_dir / "mine.txt").write_text("here")


class Broken(Memory):
    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        raise ConnectionError("no network")


class Picky(Memory):
    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key


def test_objects_get_every_iteration_and_are_closed() -> None:
    one, two = Memory(), Memory()
    result = train(**OPTIONS, loggers=[one, two])
    assert one.steps == two.steps == [128, 256] and one.closed == two.closed == 1
    names = result.config.track.loggers
    assert [find_part(name) for name in names] == [one, two] and names[0].endswith("test_own_logger:Memory()")


def test_one_object_needs_no_list() -> None:
    one = Memory()
    train(**OPTIONS, loggers=one)
    assert one.steps == [128, 256]


def test_a_class_is_made_by_its_name_and_gets_the_run_folder_if_it_wants_it() -> None:
    result = train(**OPTIONS, logger=f"{__name__}:InFolder")
    assert (result.run_dir / "mine.txt").read_text() == "here" and InFolder.made[-1].steps == [128, 256]


def test_a_broken_one_is_named_once_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    good = Memory()
    train(**OPTIONS, loggers=[Broken(), good])
    lines = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [line for line in lines if "Broken cannot be written" in line] == [
        "Broken cannot be written: no network. The run continues and will try again."
    ]
    assert good.steps == [128, 256]


def test_a_resume_that_does_not_find_an_object_can_leave_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(**OPTIONS, loggers=[Memory()])
    monkeypatch.setattr("proxima.own_parts._given", {})  # as in another process
    monkeypatch.delattr(sys.modules[__name__], "Memory")
    with pytest.raises(UsageError, match=r"has no Memory.*; without it: --loggers \[\]"):
        train(resume_from=first.run_dir, total_timesteps=512)
    assert train(resume_from=first.run_dir, total_timesteps=512, loggers=[]).global_step == 512


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pathlib:Path", r"needs the methods write\(step, metrics\) and close\(\)"),
        (f"{__name__}:Picky", "cannot be made .*give it as an object"),
        ("nothing.here:Logger", "cannot import nothing.here"),
    ],
)
def test_what_is_no_logger_is_one_line(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_logger(name, tmp_path)


def test_names_come_from_flags_and_files(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("track: {loggers: [a:B, c:D]}\n")
    assert load_config(tmp_path / "mine.yaml").track.loggers == ["a:B", "c:D"]
    for text in ("a:B,c:D", "[a:B, c:D]"):
        assert load_config(None, {"logger": text}).track.loggers == ["a:B", "c:D"]
    assert load_config(None, {"logger": "[]"}).track.loggers == []


def test_keywords_are_passed_on() -> None:
    train(**OPTIONS, logger=f"{{{__name__}:Picky: {{key: abc}}}}")
    made = Picky.made[-1]
    assert isinstance(made, Picky) and made.key == "abc" and made.steps == [128, 256]
