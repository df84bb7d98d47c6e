"""Checkpoints are whole, checked, and execute nothing."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from proxima import checkpoint
from proxima.errors import UsageError

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
    with pytest.raises(UsageError, match="holds no whole checkpoint"):
        checkpoint.find(tmp_path)
