"""Which checkpoint is chosen: by lineage and progress, whatever the clock says and whatever a live run deletes."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from proxima.config import load_config
from proxima.errors import UsageError
from proxima.runs import checkpoint
from proxima.training.resume import newest_of_name

ROOT = Path(__file__).parents[2]
STATE = {"agent.pt": {}, "training_state.pt": {}}


def save(run: Path, step: int, *, at: float = 0.0, parents: tuple[Path, ...] = (), **metadata: Any) -> Path:
    """A checkpoint of 10 steps an iteration, with the time on the clock and the checkpoints it descends from."""
    run.mkdir(parents=True, exist_ok=True)
    document = {"config": {}, "spec": {}, "iteration": step // 10, "global_step": step, "saved_at": at}
    document |= {"lineage": [str(parent.resolve()) for parent in parents], **metadata}
    return checkpoint.save(run, name=run.parent.name, iteration=step // 10, files=STATE, metadata=document)


def auto_resumed(name: Path) -> Path | None:
    return newest_of_name(load_config(None, {"runs_dir": str(name.parent), "name": name.name}))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "job"


def test_auto_resume_goes_on_with_most_progress_after_the_clock_was_set_back(job: Path) -> None:
    save(job / "261115_120000", 100, at=2000.0)
    further = save(job / "261115_090000", 200, at=1000.0)  # started later, by a clock that was set back
    assert auto_resumed(job) == further


def test_a_resumed_run_replaces_its_parent_whatever_the_clock_says(job: Path) -> None:
    parent = save(job / "261115_120000", 100, at=2000.0)
    child = save(job / "261115_090000", 110, at=1000.0, parents=(parent,))
    grandchild = save(job / "261115_080000", 120, at=500.0, parents=(parent, child))
    assert auto_resumed(job) == grandchild and checkpoint.find(job) == grandchild


def test_going_back_to_an_older_checkpoint_leaves_the_newer_ones_of_that_run_behind(job: Path) -> None:
    older = save(job / "a", 100)
    save(job / "a", 900, at=5000.0)
    branch = save(job / "b", 150, at=1000.0, parents=(older,))
    assert auto_resumed(job) == branch and checkpoint.find(job) == branch


def test_lineage_counts_in_a_folder_that_was_moved(job: Path, tmp_path: Path) -> None:
    parent = save(job / "a", 100, at=2000.0)
    save(job / "a", 900, at=2000.0)
    child = save(job / "b", 110, at=1000.0, parents=(parent,))
    shutil.move(tmp_path / "runs", tmp_path / "archive")
    moved = tmp_path / "archive" / "job"
    assert auto_resumed(moved) == checkpoint.find(moved) == moved / "b" / child.name


def test_the_newest_run_of_a_name_is_the_one_that_saved_last(job: Path) -> None:
    save(job / "a", 900, at=1000.0)
    fresh = save(job / "b", 10, at=2000.0)
    assert checkpoint.find(job) == fresh
    assert auto_resumed(job) == next((job / "a").iterdir())


def test_only_what_can_be_resumed_counts_for_auto_resume(job: Path) -> None:
    resumable = save(job / "a", 100)
    for path in (save(job / "b", 900), save(job / "c", 800)):
        (path / "training_state.pt").write_bytes(b"damaged")
    assert auto_resumed(job) == resumable
    assert auto_resumed(job.with_name("other")) is None


def test_lineages_in_a_circle_and_odd_times_still_give_one(job: Path) -> None:
    one = save(job / "a", 100, at="yesterday")  # type: ignore[arg-type]
    two = save(job / "b", 200, at=float("nan"), parents=(one,))
    save(job / "a", 150, parents=(two,))
    assert auto_resumed(job) == two and checkpoint.find(job).parent.parent == job


# Races ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_deletes_checkpoints_can_be_read_all_the_time(job: Path) -> None:
    run, over = job / "a", threading.Event()
    save(run, 10, episode_return=5.0)

    def train() -> None:
        for step in range(20, 1_000_000, 10):
            save(run, step, episode_return=0.0)
            checkpoint.prune(run, keep=1)
            if over.is_set():
                return

    thread = threading.Thread(target=train)
    thread.start()
    try:
        deadline, last = time.monotonic() + 3.0, 0
        while time.monotonic() < deadline:
            for path in (checkpoint.find(run), checkpoint.find(job), auto_resumed(job)):
                assert path is not None
                iteration = int(path.name.split("-")[1])
                assert iteration >= last, "an older one was taken for the newest, which had just been deleted"
                last = iteration
            checkpoint.find(run, best=True)
            checkpoint.list_checkpoints(run)
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("file", ["metadata.yaml", "agent.pt"])
def test_a_checkpoint_that_vanishes_while_it_is_read_is_looked_for_again(
    file: str, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, old, original = save(job / "a", 10), save(job / "a", 20), Path.open

    def vanishing(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == old / file:
            shutil.rmtree(old)
            save(job / "a", 30)
        return original(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", vanishing)
    assert checkpoint.find(job / "a").name.startswith("job-00003-") and best.exists()


def test_a_checkpoint_that_vanishes_while_the_run_is_listed_is_looked_for_again(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, old, original = save(job / "a", 10), save(job / "a", 20), Path.iterdir

    def vanishing(path: Path) -> Any:
        listed = list(original(path))
        if path == job / "a" and old.exists():
            shutil.rmtree(old)
            save(job / "a", 30)
        return iter(listed)

    monkeypatch.setattr(Path, "iterdir", vanishing)
    assert checkpoint.find(job).name.startswith("job-00003-") and best.exists()


def test_run_folders_that_cannot_be_listed_are_passed_over(job: Path) -> None:
    path = save(job / "a", 10)
    (job / "b").symlink_to(job / "gone")
    (job / "notes.txt").write_text("a file")
    assert checkpoint.find(job) == path and checkpoint.list_checkpoints(job / "gone") == []
    with pytest.raises(UsageError, match="cannot be read: File name too long"):
        checkpoint.find("x" * 300)


# Leftovers -----------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys, time
from pathlib import Path
from proxima.runs import checkpoint
run, how = Path(sys.argv[1]), sys.argv[2]
def stop():
    print("writing", flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.readline()
    return {}
metadata = {"config": {}, "spec": {}, "iteration": 2, "global_step": 20, "lineage": []}
checkpoint.save(run, name="job", iteration=2, files={"agent.pt": {}, "optimizer.pt": stop}, metadata=metadata)
"""


def saving(run: Path, how: str) -> subprocess.Popen[str]:
    """A process in the middle of a save."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(run), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    return process


def hidden(run: Path) -> list[Path]:
    return list(run.glob(".*"))


@pytest.mark.slow
def test_a_killed_save_leaves_nothing_after_a_sweep(job: Path) -> None:
    path = save(job / "a", 10)
    with saving(job / "a", "killed") as process:
        assert process.wait() == -signal.SIGKILL
    assert len(hidden(job / "a")) == 1
    assert checkpoint.sweep(job) == 1
    assert list((job / "a").iterdir()) == [path]
    assert checkpoint.sweep(job) == 0 and checkpoint.sweep(job / "nowhere") == 0


@pytest.mark.slow
def test_a_save_in_another_process_is_left_alone(job: Path) -> None:
    save(job / "a", 10)
    with saving(job / "a", "alive") as process:
        (folder,) = hidden(job / "a")
        for file in (folder, *folder.iterdir()):
            os.utime(file, (0, 0))  # a clock that says it is long ago
        assert checkpoint.sweep(job) == 0
        process.communicate("\n")
    assert process.returncode == 0 and not hidden(job / "a")
    assert checkpoint.find(job).name.startswith("job-00002-")


@pytest.mark.parametrize("name", [".00002-1115_101839.0badc0de.tmp", ".job-00002-1115_101839.tmp"])
def test_folders_of_other_machines_and_versions_are_swept_when_they_are_old(name: str, job: Path) -> None:
    folder = job / "a" / name
    folder.mkdir(parents=True)
    (folder / "agent.pt").write_bytes(b"half")
    os.utime(folder, (0, 0))
    assert checkpoint.sweep(job) == 0, "a file in it is new: somebody may be writing"
    os.utime(folder / "agent.pt", (0, 0))
    os.utime(folder, (0, 0))
    assert checkpoint.sweep(job) == 1 and not folder.exists()


def test_nothing_else_is_swept(job: Path, tmp_path: Path) -> None:
    run = job / "a"
    run.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (run / ".00001-1115_101839.tmp").symlink_to(elsewhere)
    (run / ".00002-1115_101839.tmp").write_text("a file")
    for name in (".cache.tmp", "job-00003-1115_101839.tmp", ".git"):
        (run / name).mkdir()
        os.utime(run / name, (0, 0))
    assert checkpoint.sweep(job) == 0 and len(list(run.iterdir())) == 5 and (elsewhere / "precious").exists()


def test_a_save_whose_folder_is_swept_before_it_is_locked_makes_it_again(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from proxima.runs import temporary

    original, swept = temporary._try_lock, []

    def sweep_first(descriptor: int) -> Any:
        if not swept:
            (folder,) = hidden(job / "a")
            folder.rmdir()
            swept.append(folder)
        return original(descriptor)

    monkeypatch.setattr(temporary, "_try_lock", sweep_first)
    path = save(job / "a", 10)
    assert swept and checkpoint.find(job / "a") == path
