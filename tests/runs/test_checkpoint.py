"""Checkpoints are whole, checked, and execute nothing."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from proxima.config import load_config
from proxima.errors import UsageError
from proxima.nets.spec import Spec
from proxima.runs import checkpoint
from proxima.runs.checkpoint import Checkpoint
from proxima.runs.layout import (
    AGENT,
    CHECKPOINT,
    CONFIG,
    TRAINING_STATE,
    checkpoint_name,
    make_run_dir,
    read_lineage,
    write_lineage,
)
from tests.resealed import tiny

METADATA = {"config": {}, "spec": {}, "iteration": 3, "global_step": 0, "lineage": []}


def save(tmp_path: Path, iteration: int = 3) -> Path:
    files = {"agent.pt": {"weight": torch.arange(3.0)}}
    return checkpoint.save(tmp_path, name="run", iteration=iteration, files=files, metadata=METADATA)


def test_round_trip(tmp_path: Path) -> None:
    path = save(tmp_path)
    assert torch.equal(checkpoint.read(path, "agent.pt")["weight"], torch.arange(3.0))
    assert not list(tmp_path.glob(".*"))


def test_newest_by_iteration_not_by_name(tmp_path: Path) -> None:
    save(tmp_path, 100_000)
    save(tmp_path, 99_999)
    assert checkpoint.find(tmp_path).name.startswith("run-100000-")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path)
    data = bytearray((path / "agent.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "agent.pt").write_bytes(data)
    with pytest.raises(UsageError, match=r"agent.pt is damaged"):
        checkpoint.read(path, "agent.pt")


class Hostile:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("executed"),))


def test_a_hostile_file_executes_nothing_even_with_a_matching_checksum(tmp_path: Path) -> None:
    path = save(tmp_path)
    (path / "agent.pt").write_bytes(pickle.dumps(Hostile()))
    text, _, _ = (path / "metadata.yaml").read_text().rpartition("sealed: ")
    old = checkpoint.read_metadata(path)["checksums"]["agent.pt"]
    text = text.replace(old, hashlib.sha256((path / "agent.pt").read_bytes()).hexdigest())
    seal = hashlib.sha256(text.encode()).hexdigest()
    (path / "metadata.yaml").write_text(f"{text}sealed: {seal}\n")
    with pytest.raises(UsageError, match=r"agent.pt holds more than data, and loading it could run code: refused"):
        checkpoint.read(path, "agent.pt")
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    ("text", "message"), [("a: 1\n", "not the metadata"), ("format_version: 99\n", "has format 99"), ("[", "not the")]
)
def test_foreign_metadata_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = save(tmp_path)
    (path / "metadata.yaml").write_text(text)
    with pytest.raises(UsageError, match=message):
        checkpoint.read_metadata(path)


def test_an_empty_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no complete checkpoint"):
        checkpoint.find(tmp_path)


def test_a_checkpoint_says_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny(tmp_path / "run", gamma=0.5)
    one = Checkpoint(folder)
    assert (one.iteration, one.global_step, one.episode_return, one.run_dir) == (3, 30, 1.5, tmp_path / "run")
    assert one.lineage == ["/runs/a/tiny-00001-1115_101839"] and one.hold == {"low": 1, "high": 2, "gamma": 0.99}
    assert Spec.from_dict(one.spec).to_dict() == one.spec
    assert one.config.algorithm.gamma == 0.5 and one.config is not one.config
    assert one.has(AGENT) and not one.has(TRAINING_STATE)
    assert one.state(AGENT).keys() == checkpoint.read(folder, AGENT).keys()
    with pytest.raises(UsageError, match=r"has no training_state.pt"):
        one.state(TRAINING_STATE)
    monkeypatch.chdir(folder)
    assert Checkpoint("").run_dir == tmp_path / "run"


def test_a_foreign_folder_is_refused_when_it_is_asked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not the metadata of a Proxima checkpoint"):
        _ = Checkpoint(tmp_path).config


def test_a_run_folder_is_new_and_has_the_options(tmp_path: Path) -> None:
    config = load_config(None, {"runs_dir": str(tmp_path), "name": "job", "gamma": 0.5})
    one, two = make_run_dir(config), make_run_dir(config)
    assert one != two and one.parent == two.parent == tmp_path / "job"
    assert [path.name for path in one.iterdir()] == [CONFIG] and load_config(one / CONFIG) == config
    assert CHECKPOINT.sub(r"\1 \2", checkpoint_name("a-b", 7)) == "a-b 00007"


def test_lineage_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_lineage(tmp_path) == []
    write_lineage(tmp_path, ["/a/1", "/a/2"])
    assert read_lineage(tmp_path) == ["/a/1", "/a/2"]
