"""Which checkpoints a resumed run descends from, the first run's first."""

from pathlib import Path

import yaml

from proxima.config.yaml_files import read_yaml
from proxima.errors import UsageError
from proxima.runs.layout import LINEAGE


def write_lineage(run_dir: Path, lineage: list[str]) -> None:
    """Note it in the run's folder, for whoever looks before there is a checkpoint, or after all are deleted."""
    (run_dir / LINEAGE).write_text(yaml.safe_dump({"lineage": lineage}))


def read_lineage(run_dir: Path) -> list[str]:
    """The checkpoints, none for a run that was not resumed; a UsageError where the file holds something else."""
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
