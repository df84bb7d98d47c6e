"""What lies in a run folder, and under which name: nobody else spells these.

runs/<name>/<yymmdd_hhmmss>/
  config.yaml  lineage.yaml  metrics.jsonl  tb/  videos/  report/
  <name>-<iteration>-<mmdd_hhmmss>/     a checkpoint: agent.pt metadata.yaml
                                        and, to resume: optimizer.pt training_state.pt
"""

import re
import shutil
import time
from pathlib import Path

from proxima.config import Config
from proxima.errors import UsageError

CONFIG = "config.yaml"
"""All options of the run, resolved."""
LINEAGE = "lineage.yaml"
"""The checkpoints that a resumed run descends from."""
METRICS = "metrics.jsonl"
TENSOR_BOARD = "tb"
VIDEOS = "videos"
REPORT = "report"

METADATA = "metadata.yaml"
AGENT = "agent.pt"
"""The weights of the policy, its normaliser included."""
OPTIMIZER = "optimizer.pt"
TRAINING_STATE = "training_state.pt"
CHECKPOINT = re.compile(r"(.+)-(\d+)-\d{4}_\d{6}$")
"""The folder of a checkpoint: the run's name and the iteration."""


def checkpoint_name(name: str, iteration: int) -> str:
    """The folder of a checkpoint that is written now."""
    return f"{name}-{iteration:05d}-{time.strftime('%m%d_%H%M%S')}"


def entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing where it is gone or cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def is_file(path: Path) -> bool:
    """Whether there is a regular file; False also where one may not look, and for paths that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long; a NUL in it
        return False


def make_run_dir(config: Config) -> Path:
    """A fresh `runs/<name>/<yymmdd_hhmmss>/` with the resolved options in it.

    Raises:
        UsageError: it cannot be written, or what will be written into it later cannot.
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
    """Make a file as deep and as long as a checkpoint's will be: better to fail now than at the end of the run."""
    folder = run_dir / checkpoint_name(name, 10**9)
    folder.mkdir()
    (folder / TRAINING_STATE).touch()
    shutil.rmtree(folder)
