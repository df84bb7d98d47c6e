"""What a run leaves on disk: the folder's layout, its checkpoints, where it was resumed from, and what its metrics mean."""
