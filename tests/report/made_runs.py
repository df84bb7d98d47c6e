"""Run folders with known metrics."""

import json
from pathlib import Path
from typing import Any

import yaml


def write_run(
    folder: Path,
    *,
    returns: list[float | None],
    seed: int = 1,
    first_step: int = 100,
    lineage: list[str] | None = None,
    extra: dict[str, float | None] | None = None,
    health: bool = True,
    **options: Any,
) -> Path:
    """A run of 100 env steps and one second per iteration."""
    folder.mkdir(parents=True)
    with (folder / "metrics.jsonl").open("w") as file:
        for i, value in enumerate(returns):
            row = {
                "global_step": first_step + 100 * i,
                "wall_time": 1.0 + i,
                "episode_return": value,
                **({"approx_kl": 0.01} if health else {}),
                **(extra or {}),
            }
            file.write(json.dumps(row) + "\n")
    sections = {"run": {"name": folder.parent.name, "seed": seed}, "optimizer": {"learning_rate": 1e-3} | options}
    (folder / "config.yaml").write_text(yaml.safe_dump(sections))
    if lineage:
        (folder / "lineage.yaml").write_text(yaml.safe_dump({"lineage": lineage}))
    return folder
