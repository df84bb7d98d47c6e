"""Checkpoints on disk: whole or not there, and nothing executes on load.

A checkpoint is a folder `<name>-<iteration>-<mmdd_hhmmss>/` with `agent.pt` and `metadata.yaml`, and to resume also
`optimizer.pt` and `training_state.pt`. What is in them is decided by the trainer; who reads them, by their users.
"""

import hashlib
import io
import logging
import math
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

log = logging.getLogger("proxima")

FORMAT_VERSION = 3
METADATA = "metadata.yaml"
LINEAGE = "lineage.yaml"
_SEAL = "sealed: "  # the last line of the metadata: a checksum of all before it
_REQUIRED = {"checksums": dict, "config": dict, "spec": dict, "iteration": int, "global_step": int, "lineage": list}
_FOLDER = re.compile(r".+-(\d+)-\d{4}_\d{6}$")


def save(run_dir: Path, *, name: str, iteration: int, files: Mapping[str, Any], metadata: Mapping[str, Any]) -> Path:
    """Write a checkpoint folder atomically: temporary folder, fsync, rename.

    Args:
        run_dir: the run's folder.
        name: the run's name.
        iteration: iterations completed.
        files: what `torch.save` writes, by file name, or a function that gives it.
        metadata: added to the format version, versions and checksums in `metadata.yaml`.
    """
    target = run_dir / f"{name}-{iteration:05d}-{time.strftime('%m%d_%H%M%S')}"
    temporary = run_dir / f".{target.name}.tmp"
    try:
        _write(temporary, files, metadata)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
        _fsync(run_dir)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def _write(temporary: Path, files: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    checksums = {}
    for file_name, content in files.items():
        buffer = io.BytesIO()  # torch would hide a full disk behind an error of its own
        torch.save(content() if callable(content) else content, buffer)
        (temporary / file_name).write_bytes(buffer.getbuffer())
        checksums[file_name] = _checksum(temporary / file_name)
    document = {
        "format_version": FORMAT_VERSION,
        "saved_at": time.time(),
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
    text = yaml.safe_dump(document, sort_keys=False)
    (temporary / METADATA).write_text(text + _SEAL + hashlib.sha256(text.encode()).hexdigest() + "\n")
    for path in temporary.iterdir():
        _fsync(path)
    _fsync(temporary)


def find(path: str | Path, *, best: bool = False) -> Path:
    """The checkpoint that `path` means: itself, or the newest whole one of a run, or of the newest run of a name.

    With `best`, of that run the one that was kept for its return.
    """
    path = Path(path)
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise UsageError(f"{path} {what}: give a checkpoint folder or a run folder.")
    if (path / METADATA).is_file():
        return path
    found = newest_whole(path, *path.iterdir())
    if found is None:
        parent = _resumed_from(path)
        hint = f"; it was resumed from {parent}: use that." if parent else ": give the folder of a run that has saved."
        raise UsageError(f"{path} holds no whole checkpoint{hint}")
    whole = [other for other in list_checkpoints(found.parent) if not _damage(other)] if best else []
    return _best(whole) or found


def run_dir(checkpoint: Path) -> Path:
    """The folder of the run that a checkpoint belongs to, wherever the path is seen from."""
    return checkpoint.resolve().parent if checkpoint.name in ("", "..") else checkpoint.parent


def list_checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    found = [(int(m[1]), p) for p in run_dir.iterdir() if (m := _FOLDER.match(p.name)) and (p / METADATA).is_file()]
    return [path for _, path in sorted(found)]


def newest_whole(*run_dirs: Path, resumable: bool = False) -> Path | None:
    """The checkpoint saved last in any of the runs whose files are all as they were written.

    With `resumable`, only those that hold what a resume needs.
    """
    whole = []
    for run_dir in run_dirs:
        for path in reversed(list_checkpoints(run_dir) if run_dir.is_dir() else []):
            damage = _damage(path)
            if damage is not None:
                log.warning("%s: passed over.", damage)
            elif not resumable or "training_state.pt" in read_metadata(path)["checksums"]:
                whole.append((read_metadata(path)["saved_at"], path))
                break
    return max(whole)[1] if whole else None


def prune(run_dir: Path, *, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints of a run and the best: as evaluated, else as trained."""
    paths = list_checkpoints(run_dir)
    best = _best(paths)
    for path in paths[:-keep]:
        if path != best:
            shutil.rmtree(path, ignore_errors=True)


def make_room(run_dir: Path) -> bool:
    """Delete the oldest checkpoint of a run, but the best only for want of another; False if there is none to spare."""
    paths = list_checkpoints(run_dir)
    if len(paths) < 2:
        return False
    shutil.rmtree(paths[1] if paths[0] == _best(paths) and len(paths) > 2 else paths[0], ignore_errors=True)
    return True


def write_lineage(run_dir: Path, lineage: list[str]) -> None:
    """Note in a run's folder which checkpoints it descends from, the first run's first."""
    (run_dir / LINEAGE).write_text(yaml.safe_dump({"lineage": lineage}))


def read_metadata(checkpoint: Path) -> dict[str, Any]:
    """The metadata of a checkpoint, its format and its seal checked."""
    path = checkpoint / METADATA
    try:
        text, _, seal = path.read_text().rpartition(_SEAL)
        document = yaml.safe_load(text or path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        document = None
    if not isinstance(document, dict) or "format_version" not in document:
        raise UsageError(f"{path} is not the metadata of a Proxima checkpoint.")
    if document["format_version"] != FORMAT_VERSION:
        raise UsageError(
            f"{checkpoint} has format {document['format_version']}, and this version reads {FORMAT_VERSION}: use "
            f"proxima-rl {document.get('versions', {}).get('proxima', 'of that time')}."
        )
    if seal.strip() != hashlib.sha256(text.encode()).hexdigest():
        raise UsageError(f"{path} is damaged (it is not as it was written).")
    if any(not isinstance(document.get(key), kind) for key, kind in _REQUIRED.items()):
        raise UsageError(f"{path} is not whole (it lacks one of {', '.join(_REQUIRED)}).")
    return document


def read(checkpoint: Path, file_name: str) -> Any:
    """One file of a checkpoint, checked against its checksum and loaded without executing anything."""
    path = checkpoint / file_name
    if file_name not in read_metadata(checkpoint)["checksums"]:
        raise UsageError(f"{checkpoint} has no {file_name}: it was saved without what a resume needs.")
    damage = _damage(checkpoint, file_name)
    if damage is None:
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            damage = f"{path} holds more than data, and loading it could run code: refused"
        except (RuntimeError, EOFError, ValueError, KeyError):
            damage = f"{path} cannot be read"
    raise UsageError(damage + alternative_to(checkpoint))


def alternative_to(checkpoint: Path) -> str:
    """The end of a sentence that names the newest other whole checkpoint of the same run, if there is one."""
    others = [path for path in list_checkpoints(checkpoint.parent) if path != checkpoint and not _damage(path)]
    return f": use {others[-1]}." if others else ", and its run has no other whole checkpoint."


def _damage(checkpoint: Path, file_name: str | None = None) -> str | None:
    """What is wrong with a checkpoint's files, or with one of them; None if nothing is."""
    try:
        checksums = read_metadata(checkpoint)["checksums"]
    except UsageError as error:
        return str(error).rstrip(".")
    for name, expected in checksums.items():
        path = checkpoint / name
        if file_name in (None, name) and not path.is_file():
            return f"{path} is missing"
        if file_name in (None, name) and _checksum(path) != expected:
            return f"{path} is damaged (its checksum differs from metadata.yaml)"
    return None


def _best(paths: list[Path]) -> Path | None:
    """As evaluated, else as trained; None where no return is known."""
    returns = {path: (_return(path, "eval_return"), _return(path, "episode_return")) for path in paths}
    best = max(paths, key=lambda path: returns[path], default=None)
    return None if best is None or max(returns[best]) == -math.inf else best


def _return(checkpoint: Path, name: str) -> float:
    try:
        value = float(read_metadata(checkpoint).get(name))  # type: ignore[arg-type]
    except (UsageError, TypeError, ValueError):
        return -math.inf
    return -math.inf if math.isnan(value) else value


def _resumed_from(run_dir: Path) -> str | None:
    try:
        lineage = yaml.safe_load((run_dir / LINEAGE).read_text())["lineage"]
    except (OSError, TypeError, KeyError, yaml.YAMLError):
        return None
    return str(lineage[-1]) if lineage else None


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
