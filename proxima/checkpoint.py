"""Checkpoints on disk: whole or not there, and nothing executes on load.

A checkpoint is a folder `<name>-<iteration>-<mmdd_hhmmss>/` with `agent.pt` and `metadata.yaml`, and to resume also
`optimizer.pt` and `training_state.pt`. What is in them is decided by the trainer; who reads them, by their users.
"""

import hashlib
import os
import pickle
import platform
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import yaml

import proxima
from proxima.errors import UsageError

FORMAT_VERSION = 1
METADATA = "metadata.yaml"
_FOLDER = re.compile(r".+-(\d+)-\d{4}_\d{6}$")


def save(run_dir: Path, *, name: str, iteration: int, files: Mapping[str, Any], metadata: Mapping[str, Any]) -> Path:
    """Write a checkpoint folder atomically: temporary folder, fsync, rename.

    Args:
        run_dir: the run's folder.
        name: the run's name.
        iteration: iterations completed.
        files: what `torch.save` writes, by file name.
        metadata: added to the format version, versions and checksums in `metadata.yaml`.
    """
    target = run_dir / f"{name}-{iteration:05d}-{time.strftime('%m%d_%H%M%S')}"
    temporary = run_dir / f".{target.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    checksums = {}
    for file_name, content in files.items():
        torch.save(content, temporary / file_name)
        checksums[file_name] = _checksum(temporary / file_name)
    document = {
        "format_version": FORMAT_VERSION,
        **metadata,
        "versions": {
            "proxima": proxima.__version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "gymnasium": gymnasium.__version__,
        },
        "checksums": checksums,
    }
    (temporary / METADATA).write_text(yaml.safe_dump(document, sort_keys=False))
    for path in temporary.iterdir():
        _fsync(path)
    _fsync(temporary)
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    _fsync(run_dir)
    return target


def find(path: str | Path) -> Path:
    """The checkpoint that `path` means: itself, the newest of a run, or the newest of the newest run of a name."""
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path} does not exist: give a checkpoint folder or a run folder.")
    if (path / METADATA).is_file():
        return path
    runs = [path, *sorted((p for p in path.iterdir() if p.is_dir()), reverse=True)] if path.is_dir() else []
    for run in runs:
        checkpoints = list_checkpoints(run)
        if checkpoints:
            return checkpoints[-1]
    raise UsageError(f"{path} holds no checkpoint: a run writes one at its end, or every --checkpoint-freq steps.")


def list_checkpoints(run_dir: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    found = [(int(m[1]), p) for p in run_dir.iterdir() if (m := _FOLDER.match(p.name)) and (p / METADATA).is_file()]
    return [path for _, path in sorted(found)]


def prune(run_dir: Path, *, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints of a run."""
    for path in list_checkpoints(run_dir)[:-keep]:
        shutil.rmtree(path, ignore_errors=True)


def read_metadata(checkpoint: Path) -> dict[str, Any]:
    """The metadata of a checkpoint, its format checked."""
    path = checkpoint / METADATA
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        document = None
    if not isinstance(document, dict) or "format_version" not in document:
        raise UsageError(f"{path} is not the metadata of a Proxima checkpoint.")
    if document["format_version"] != FORMAT_VERSION:
        raise UsageError(
            f"{checkpoint} has format {document['format_version']}, and this version reads {FORMAT_VERSION}: use "
            f"proxima-rl {document.get('versions', {}).get('proxima', 'of that time')}."
        )
    return document


def read(checkpoint: Path, file_name: str) -> Any:
    """One file of a checkpoint, checked against its checksum and loaded without executing anything."""
    path = checkpoint / file_name
    expected = read_metadata(checkpoint)["checksums"].get(file_name)
    if expected is None or not path.is_file():
        raise UsageError(f"{checkpoint} has no {file_name}: it was saved without it, or is not whole.")
    if _checksum(path) != expected:
        raise UsageError(f"{path} is damaged (its checksum differs from metadata.yaml): use another checkpoint.")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise UsageError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
