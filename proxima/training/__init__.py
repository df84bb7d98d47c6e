"""The training loop and what it needs: collection, checkpoints, seeds."""
