"""One checkpoint on disk: written atomically, checked when it is read."""

import contextlib
import hashlib
import io
import os
import pickle
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import yaml

import proxima
from proxima.config.yaml_files import MAX_BYTES, parse_yaml
from proxima.errors import ProximaError, UsageError
from proxima.runs.layout import CHECKPOINT, METADATA, checkpoint_name, entries, is_file
from proxima.runs.temporary import locked_folder, temporary_name

FORMAT_VERSION = 3
_SEAL = "sealed: "  # the last line of the metadata: a checksum of everything before it


def versions() -> dict[str, str]:
    """Of Python and the packages that results depend on."""
    return {
        "proxima": proxima.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
    }


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_file_table(value: Any) -> bool:
    plain = isinstance(value, dict) and all(isinstance(x, str) for item in value.items() for x in item)
    return plain and not any("/" in name or "\0" in name for name in value)


_REQUIRED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "checksums": (_is_file_table, "checksums by file name"),
    "config": (lambda value: isinstance(value, dict), "options by section"),
    "spec": (lambda value: isinstance(value, dict), "a mapping"),
    "iteration": (_is_count, "a whole number >= 0"),
    "global_step": (_is_count, "a whole number >= 0"),
    "lineage": (lambda value: isinstance(value, list) and all(isinstance(x, str) for x in value), "a list of paths"),
}


def save(run_dir: Path, *, name: str, iteration: int, files: Mapping[str, Any], metadata: Mapping[str, Any]) -> Path:
    """Write a checkpoint folder atomically: temporary folder, fsync, rename.

    `files` are contents for `torch.save` by file name, or functions that return them; `metadata` is added to the format
    version, versions and checksums in `metadata.yaml`.
    """
    target = run_dir / checkpoint_name(name, iteration)
    temporary = run_dir / temporary_name(target)
    try:
        with locked_folder(temporary):
            _write(temporary, files, metadata)
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
            _fsync(run_dir)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def _write(temporary: Path, files: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    checksums = {}
    for file_name, content in files.items():
        buffer = io.BytesIO()  # written to the file directly, torch hides that a disk is full behind another error
        torch.save(content() if callable(content) else content, buffer)
        (temporary / file_name).write_bytes(buffer.getbuffer())
        checksums[file_name] = _checksum(temporary / file_name)
    document = {
        "format_version": FORMAT_VERSION,
        "saved_at": time.time(),
        **metadata,
        "versions": versions(),
        "checksums": checksums,
    }
    text = yaml.safe_dump(document, sort_keys=False)
    (temporary / METADATA).write_text(text + _SEAL + hashlib.sha256(text.encode()).hexdigest() + "\n")
    for path in temporary.iterdir():
        _fsync(path)
    _fsync(temporary)


def list_checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, lowest iteration first; none if the folder does not exist."""
    found = [(int(m[2]), p) for p in entries(run_dir) if (m := CHECKPOINT.match(p.name)) and is_file(p / METADATA)]
    return [path for _, path in sorted(found)]


def read_metadata(checkpoint: Path) -> dict[str, Any]:
    """The metadata of a checkpoint, its format and its seal checked."""
    path = checkpoint / METADATA
    foreign = f"{path} is not the metadata of a Proxima checkpoint"
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{foreign}.")
        content = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"{foreign}.") from None
    text, _, seal = content.rpartition(_SEAL)
    try:
        document = parse_yaml(text or content, source="it")
    except UsageError as error:
        raise UsageError(f"{foreign}: {error}") from None
    if not isinstance(document, dict) or not _is_count(document.get("format_version")):
        raise UsageError(f"{foreign}.")
    if document["format_version"] != FORMAT_VERSION:
        versions = document.get("versions")
        version = versions.get("proxima") if isinstance(versions, dict) else None
        raise UsageError(
            f"{checkpoint} has format {document['format_version']}, and this version reads {FORMAT_VERSION}: use "
            f"proxima-rl {version if isinstance(version, str) else 'of that time'}."
        )
    if seal.strip() != hashlib.sha256(text.encode()).hexdigest():
        raise UsageError(f"{path} is damaged (it was changed after it was written).")
    for key, (is_valid, expected) in _REQUIRED.items():
        if not is_valid(document.get(key)):
            raise UsageError(f"{path} is incomplete ({key} is missing or is not {expected}).")
    return document


def read(checkpoint: Path, file_name: str, metadata: Mapping[str, Any] | None = None) -> Any:
    """Contents of a file of a checkpoint, checked against its checksum and loaded without executing anything."""
    path, metadata = checkpoint / file_name, metadata or read_metadata(checkpoint)
    if file_name not in metadata["checksums"]:
        raise UsageError(f"{checkpoint} has no {file_name}: it was saved without the files that a resume needs.")
    try:
        _check_file(checkpoint, file_name, metadata)
        return torch.load(path, map_location="cpu", weights_only=True)
    except UsageError as error:
        problem = str(error)
    except pickle.UnpicklingError:
        problem = f"{path} holds more than data, and loading it could run code: refused"
    except Exception:  # a file made to fail can raise anything
        problem = f"{path} cannot be read"
    raise UsageError(problem + alternative_to(checkpoint))


@contextlib.contextmanager
def explained(checkpoint: Path, what: str = "cannot be loaded") -> Iterator[None]:
    """Turn any exception that the contents of a checkpoint cause into a UsageError: checksums do not make it valid."""
    try:
        yield
    except ProximaError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        raise UsageError(f"{checkpoint} {what} ({reason}){alternative_to(checkpoint)}") from error


def alternative_to(checkpoint: Path) -> str:
    """The end of an error message: names the newest other complete checkpoint of the same run, if there is one."""
    others = [path for path in list_checkpoints(checkpoint.parent) if path != checkpoint and is_intact(path)]
    return f": use {others[-1]}." if others else ", and its run has no other complete checkpoint."


def is_intact(checkpoint: Path) -> bool:
    """Whether metadata and files of a checkpoint are as they were written."""
    try:
        check_files(checkpoint, read_metadata(checkpoint))
    except UsageError:
        return False
    return True


def check_files(checkpoint: Path, metadata: Mapping[str, Any]) -> None:
    """Raise a UsageError if a file is missing or damaged."""
    for name in metadata["checksums"]:
        _check_file(checkpoint, name, metadata)


def _check_file(checkpoint: Path, name: str, metadata: Mapping[str, Any]) -> None:
    path, found = checkpoint / name, None
    with contextlib.suppress(OSError):  # deleted since
        found = _checksum(path) if path.is_file() else None
    if found is None:
        raise UsageError(f"{path} is missing")
    if found != metadata["checksums"][name]:
        raise UsageError(f"{path} is damaged (its checksum differs from metadata.yaml)")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
