"""Writes metrics, options and videos to Weights & Biases: online, or with WANDB_MODE=offline to the run folder.

The package is optional and imported on first use.
"""

import math
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxima.config.yaml_files import parse_yaml
from proxima.errors import UsageError
from proxima.runs.layout import VIDEOS
from proxima.runs.metrics import tag


def new_run_id() -> str:
    """A random id for a new run; checkpoints keep it, so that a resume continues the same run."""
    return secrets.token_hex(4)


class WandB:
    """One run of a project. A resumed run has the id of the one before, and continues its curves."""

    name = "Weights & Biases"

    def __init__(self, project: str, run_dir: Path, *, run_id: str | None, config: str):
        """`config` is the options as YAML."""
        wandb = import_wandb()
        try:
            self._run = wandb.init(
                project=project,
                id=run_id,
                resume="allow",
                name=f"{run_dir.parent.name}/{run_dir.name}",
                dir=run_dir,
                config=parse_yaml(config, source="config"),
                # Its copy of the console would be mostly progress bars.
                settings=wandb.Settings(console="off"),
            )
        except Exception as error:
            raise UsageError(
                f"wandb is {project}, but Weights & Biases cannot be started ({type(error).__name__}: "
                f"{str(error)[:200]!r}): log in with `wandb login`, or set WANDB_MODE=offline."
            ) from error
        # Env steps as the axis. W&B's own steps cannot go back, as those of a resume from an older checkpoint do.
        self._run.define_metric("global_step", hidden=True)
        self._run.define_metric("*", step_metric="global_step")
        self._video, self._videos = wandb.Video, run_dir / VIDEOS
        self._uploaded: set[Path] = set()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics that have a value, with the tags of TensorBoard, and videos that are new."""
        row: dict[str, Any] = {"global_step": step}
        for name, value in metrics.items():
            if (shown_as := tag(name)) is not None and math.isfinite(value):
                row[shown_as] = value
        for path in sorted(set(self._videos.glob("*.mp4")) - self._uploaded):
            row[f"videos/{path.stem.rpartition('-')[0]}"] = self._video(str(path), format="mp4")
            self._uploaded.add(path)
        self._run.log(row)

    def close(self) -> None:
        """Wait until everything is written or uploaded."""
        self._run.finish()


def import_wandb() -> Any:
    """The package; a UsageError without it."""
    try:
        import wandb
    except ImportError as error:
        raise UsageError(
            f"Weights & Biases cannot be imported ({error}): pip install 'proxima-rl[wandb]', or leave --wandb out."
        ) from None
    return wandb
