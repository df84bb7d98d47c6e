"""Where a run leaves everything."""

import time
from pathlib import Path

import yaml

from proxima.config import Config
from proxima.errors import UsageError


def make_run_dir(config: Config) -> Path:
    """A fresh `runs/<name>/<yymmdd_hhmmss>/` with the resolved options in it."""
    parent, options = Path(config.run.runs_dir) / config.name, yaml.safe_dump(config.to_dict(), sort_keys=False)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        stamp = time.strftime("%y%m%d_%H%M%S")
        for suffix in ("", *(f"_{i:03d}" for i in range(1, 1000))):
            try:
                (parent / (stamp + suffix)).mkdir()
            except FileExistsError:  # a run of that name started in the same second
                continue
            run_dir = parent / (stamp + suffix)
            (run_dir / "config.yaml").write_text(options)
            return run_dir
    except OSError as error:
        raise UsageError(f"the run folder under {parent} cannot be written: {error.strerror}.") from None
    raise UsageError(f"the folder {parent} already has a thousand runs of this second.")
