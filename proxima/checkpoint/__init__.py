"""Checkpoints on disk: whole or not there, and nothing executes on load.

A checkpoint is a folder `<name>-<iteration>-<mmdd_hhmmss>/` with `agent.pt` and `metadata.yaml`, and to resume also
`optimizer.pt` and `training_state.pt`. What is in them is decided by the trainer; who reads them, by their users.
"""

from proxima.checkpoint.choice import (
    LINEAGE,
    find,
    furthest_resumable,
    make_room,
    newest_whole,
    prune,
    write_lineage,
)
from proxima.checkpoint.files import (
    FORMAT_VERSION,
    METADATA,
    alternative_to,
    explained,
    list_checkpoints,
    read,
    read_metadata,
    run_dir,
    save,
)
from proxima.checkpoint.temporary import entries, sweep

__all__ = [
    "FORMAT_VERSION",
    "LINEAGE",
    "METADATA",
    "alternative_to",
    "entries",
    "explained",
    "find",
    "furthest_resumable",
    "list_checkpoints",
    "make_room",
    "newest_whole",
    "prune",
    "read",
    "read_metadata",
    "run_dir",
    "save",
    "sweep",
    "write_lineage",
]
