"""Writers: what each leaves behind, and that the failure of one touches no other."""

import errno
import io
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from proxima.config.sections import TrackOptions
from proxima.errors import UsageError
from proxima.runs.layout import METRICS
from proxima.runs.metrics import tag
from proxima.track import append_file
from proxima.track.progress import ProgressDisplay, summary
from proxima.track.tensor_board import TensorBoard
from proxima.track.tracker import JsonLines, Tracker, make_tracker

COMMON = {"iteration": 1.0, "global_step": 100.0, "steps_per_second": 1234.0, "episode_return": 5.0}
PPO = {"approx_kl": 0.0123, "clip_fraction": 0.1, "explained_variance": 0.9}
DQN = {"q_loss": 0.25, "epsilon": 0.1, "q_mean": 3.0}


def row(iteration: int) -> dict[str, float]:
    return COMMON | {"iteration": iteration, "global_step": 100 * iteration}


def rows(run_dir: Path) -> list[int]:
    return [json.loads(line)["iteration"] for line in (run_dir / METRICS).read_text().splitlines()]


def events(run_dir: Path) -> list[int]:
    (file,) = (run_dir / "tb").iterdir()
    found = list(EventFileLoader(str(file)).Load())
    return [event.step for event in found if event.summary.value and event.step]


class Disk:
    """Takes `room` more bytes, then refuses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.room = 10**9
        real = os.write

        def write(descriptor: int, data: bytes) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken = min(self.room, len(data))
            self.room -= taken
            return real(descriptor, data[:taken])

        monkeypatch.setattr(append_file.os, "write", write)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (PPO, "1,234 steps/s return 5 approx_kl 0.0123 clip_fraction 0.10 explained_variance 0.90"),
        (DQN, "1,234 steps/s return 5 q_loss 0.25 epsilon 0.100"),
        ({"episode_return": 0.946}, "1,234 steps/s return 0.946"),
    ],
)
def test_the_summary_is_of_what_there_is(own: dict[str, float], expected: str) -> None:
    assert summary(COMMON | own) == expected


def test_metrics_without_those_of_ppo_are_written_and_shown(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    options = TrackOptions(tensorboard=False, progress=True, log_every=1)
    tracker = make_tracker(tmp_path, options, config="", total_steps=1000, first_step=0, console=console)
    tracker.write(COMMON | DQN | {"episode_x_pos": float("nan")})
    tracker.close()
    assert json.loads((tmp_path / METRICS).read_text())["episode_x_pos"] is None
    assert "q_loss" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_narrow_terminal_shows_the_whole_summary() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=50, soft_wrap=True)
    display = ProgressDisplay(TrackOptions(), total_steps=1000, first_step=0, console=console)
    display.write(100, COMMON | PPO)
    display.close()
    shown = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert all(name in shown for name in PPO)


def test_a_disk_that_is_full_for_a_while_costs_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    tracker = Tracker([JsonLines(tmp_path), TensorBoard(tmp_path)])
    tracker.write(row(1))
    disk.room = 40  # the second row is cut in the middle
    tracker.write(row(2))
    tracker.write(row(3))
    disk.room = 10**9
    tracker.write(row(4))
    tracker.close()
    assert rows(tmp_path) == [1, 2, 3, 4]
    assert events(tmp_path) == [100, 200, 300, 400]


def test_a_disk_that_stays_full_is_named_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(monkeypatch)
    tracker = Tracker([JsonLines(tmp_path)])
    disk.room = 0
    for iteration in range(1, 4):
        tracker.write(row(iteration))
    tracker.close()
    assert [record.getMessage() for record in caplog.records] == [
        "metrics.jsonl cannot be written: No space left on device. The run continues and will try again.",
        "metrics.jsonl is not complete: No space left on device.",
    ]


def test_rows_that_wait_for_room_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    monkeypatch.setattr(append_file, "MAX_PENDING_BYTES", 250)
    tracker = Tracker([JsonLines(tmp_path)])
    disk.room = 0
    for iteration in range(1, 20):
        tracker.write(row(iteration))
    disk.room = 10**9
    tracker.write(row(20))
    tracker.close()
    assert rows(tmp_path)[:2] == [1, 2]
    assert len(rows(tmp_path)) < 5


def test_deleted_tensorboard_files_touch_nothing_else_and_are_begun_again(tmp_path: Path) -> None:
    tracker = Tracker([JsonLines(tmp_path), TensorBoard(tmp_path, config="seed: 1")])
    tracker.write(row(1))
    shutil.rmtree(tmp_path / "tb")
    tracker.write(row(2))
    tracker.write(row(3))
    tracker.close()
    assert rows(tmp_path) == [1, 2, 3]
    assert events(tmp_path) == [200, 300]


def test_a_writer_that_raises_does_not_keep_the_others_from_writing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        name = "mine"

        def write(self, step: int, metrics: Mapping[str, float]) -> None:
            raise ZeroDivisionError("oops")

        def close(self) -> None:
            raise ZeroDivisionError("again")

    tracker = Tracker([Broken(), JsonLines(tmp_path)])
    tracker.write(row(1))
    tracker.write(row(2))
    tracker.close()
    assert rows(tmp_path) == [1, 2]
    assert [record.getMessage() for record in caplog.records] == [
        "mine cannot be written: ZeroDivisionError: oops. The run continues and will try again.",
        "mine is not complete: ZeroDivisionError: again.",
    ]


def test_tensorboard_has_groups_one_point_per_evaluation_and_the_config(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, config="run:\n  seed: 7")
    for step, value in ((100, float("nan")), (200, 8.0)):
        board.write(step, COMMON | {"global_step": step, "eval_return": value, "wall_time": 1.0})
    board.close()
    (file,) = (tmp_path / "tb").iterdir()
    loaded = list(EventFileLoader(str(file)).Load())
    points = [(event.step, value.tag) for event in loaded for value in event.summary.value]
    assert [step for step, name in points if name == "eval/eval_return"] == [200]
    assert (100, "speed/wall_time") in points and (0, "config") in points
    assert any(b"seed: 7" in text for event in loaded for v in event.summary.value for text in v.tensor.string_val)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("eval_length", "eval/eval_length"),
        ("worker_restarts", "faults/worker_restarts"),
        ("collect_seconds", "speed/collect_seconds"),
        ("action_hold_seconds", "hold/action_hold_seconds"),
        ("decisions_per_second", "hold/decisions_per_second"),
        ("episode_return", "episodes/episode_return"),
        ("value_loss", "losses/value_loss"),
        ("approx_kl", "update/approx_kl"),
    ],
)
def test_tags(metric: str, expected: str) -> None:
    assert tag(metric) == expected


def test_a_tensorboard_that_cannot_be_imported_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(UsageError, match="--no-tensorboard"):
        make_tracker(tmp_path, TrackOptions(), config="", total_steps=1, first_step=0, console=Console())
