"""Weights & Biases: an offline run read back with its own reader; without the package, one clear sentence."""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxima import train
from proxima.errors import UsageError
from proxima.runs import checkpoint
from tests.training.runs import SMALL

OPTIONS = SMALL | {"env": "CartPole-v1", "total_timesteps": 256, "wandb": "proxima-tests"}


def test_without_the_package_a_run_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"pip install 'proxima-rl\[wandb\]', or leave --wandb out"):
        train(**OPTIONS)
    assert not Path("runs").exists()


def payloads(content: bytes) -> Iterator[bytes]:
    """The records of a W&B file, which is a LevelDB log: newer releases of the package have no reader in Python."""
    place, payload = 7, b""  # after the header of the file
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # the end of a block is padded
            place += 32768 - place % 32768
        _, size, kind = struct.unpack("<IHB", content[place : place + 7])
        payload += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a full record, or the last part of one
            yield payload
            payload = b""


def records(run_dir: Path) -> list[Any]:
    from wandb.proto import wandb_internal_pb2

    (file,) = run_dir.glob("wandb/offline-run-*/run-*.wandb")
    return [wandb_internal_pb2.Record.FromString(payload) for payload in payloads(file.read_bytes())]


def history(run_dir: Path) -> list[dict[str, Any]]:
    rows = [record.history for record in records(run_dir) if record.WhichOneof("record_type") == "history"]
    return [{"/".join(x.nested_key) or x.key: json.loads(x.value_json) for x in row.item} for row in rows]


def run_record(run_dir: Path) -> Any:
    return next(record.run for record in records(run_dir) if record.WhichOneof("record_type") == "run")


@pytest.mark.slow
def test_an_offline_run_has_options_metrics_and_videos_and_a_resume_continues_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    first = train(**OPTIONS, record_every=128, video_length=5)
    rows, run = history(first.run_dir), run_record(first.run_dir)
    assert [row["global_step"] for row in rows] == [128, 256] and "losses/entropy" in rows[0]
    assert rows[1]["videos/CartPole-v1/_type"] == "video-file"
    assert run.project == "proxima-tests"
    config = {x.key: json.loads(x.value_json) for x in run.config.update}
    assert config["env"]["env"] == "CartPole-v1"
    assert run.run_id == checkpoint.read_metadata(first.checkpoint)["wandb_run"]
    second = train(resume_from=first.run_dir, total_timesteps=512)
    assert run_record(second.run_dir).run_id == run.run_id
    assert [row["global_step"] for row in history(second.run_dir)] == [384, 512]
