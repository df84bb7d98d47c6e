"""Finished runs, compared by what they wrote down: never a model."""
