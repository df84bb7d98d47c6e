"""What a run leaves on disk: its folder's layout, checkpoints, lineage, and what its metrics mean."""
