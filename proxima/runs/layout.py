"""Files and folders of a run: the only place that has their names.

runs/<name>/<yymmdd_hhmmss>/
  config.yaml  lineage.yaml  metrics.jsonl  tb/  videos/  report/
  <name>-<iteration>-<mmdd_hhmmss>/     a checkpoint: agent.pt metadata.yaml
                                        and, to resume: optimizer.pt training_state.pt
"""

import re
import shutil
import time
from pathlib import Path

import yaml

from proxima.config import Config
from proxima.config.yaml_files import read_yaml
from proxima.errors import UsageError

CONFIG, LINEAGE, METRICS = "config.yaml", "lineage.yaml", "metrics.jsonl"
TENSOR_BOARD, VIDEOS, REPORT = "tb", "videos", "report"

METADATA, AGENT, OPTIMIZER, TRAINING_STATE = "metadata.yaml", "agent.pt", "optimizer.pt", "training_state.pt"
CHECKPOINT = re.compile(r"(.+)-(\d+)-\d{4}_\d{6}$")
"""The folder of a checkpoint: the run's name and the iteration."""


def checkpoint_name(name: str, iteration: int) -> str:
    """The folder name of a checkpoint that is written now."""
    return f"{name}-{iteration:05d}-{time.strftime('%m%d_%H%M%S')}"


def entries(folder: Path) -> list[Path]:
    """Contents of a folder; none if it does not exist or cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def is_file(path: Path) -> bool:
    """Whether `path` is a regular file; False without permission to look, and for impossible paths."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long; a NUL in it
        return False


def make_run_dir(config: Config) -> Path:
    """Make a new `runs/<name>/<yymmdd_hhmmss>/` with the resolved options in it.

    Raises:
        UsageError: it cannot be written, or the path of a checkpoint in it would be too long.
    """
    parent = Path(config.run.runs_dir) / config.name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        run_dir = _make_new(parent)
        try:
            _try_checkpoint(run_dir, config.name)
            (run_dir / CONFIG).write_text(config.to_yaml())
        except BaseException:
            shutil.rmtree(run_dir, ignore_errors=True)
            raise
        return run_dir
    except OSError as error:
        raise UsageError(f"the run folder under {parent} cannot be written: {error.strerror}.") from None


def _make_new(parent: Path) -> Path:
    stamp = time.strftime("%y%m%d_%H%M%S")
    for suffix in ("", *(f"_{i:03d}" for i in range(1, 1000))):
        run_dir = parent / (stamp + suffix)
        try:
            run_dir.mkdir()
        except FileExistsError:  # a run of that name started in the same second
            continue
        return run_dir
    raise UsageError(f"the folder {parent} already has a thousand runs of this second.")


def _try_checkpoint(run_dir: Path, name: str) -> None:
    """Create a file whose path is as long as a checkpoint's can be: better to fail now than at the end of the run."""
    folder = run_dir / checkpoint_name(name, 10**9)
    folder.mkdir()
    (folder / TRAINING_STATE).touch()
    shutil.rmtree(folder)


def write_lineage(run_dir: Path, lineage: list[str]) -> None:
    """Record which checkpoints a run was resumed from, oldest first, independently of its own checkpoints."""
    (run_dir / LINEAGE).write_text(yaml.safe_dump({"lineage": lineage}))


def read_lineage(run_dir: Path) -> list[str]:
    """The checkpoints, none for a run that was not resumed; a UsageError if the file is invalid."""
    file = run_dir / LINEAGE
    if not file.exists():
        return []
    content = read_yaml(file, what="the lineage")
    lineage = content.get("lineage") if isinstance(content, dict) else None
    if not isinstance(lineage, list):
        found = "missing" if lineage is None else repr(lineage)[:80]
        raise UsageError(
            f"the lineage {file} cannot be used: lineage is {found}, but should be a list of checkpoints. Without the "
            "file, the run is compared without the runs before it."
        )
    return [str(checkpoint) for checkpoint in lineage]
