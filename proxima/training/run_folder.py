"""Where a run leaves everything."""

import shutil
import time
from pathlib import Path

from proxima.config import Config
from proxima.errors import UsageError


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
            (run_dir / "config.yaml").write_text(config.to_yaml())
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
    folder = run_dir / f"{name}-{10**9}-{time.strftime('%m%d_%H%M%S')}"
    folder.mkdir()
    (folder / "training_state.pt").touch()
    shutil.rmtree(folder)
