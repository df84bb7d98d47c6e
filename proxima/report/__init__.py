"""Comparison of finished runs by their metrics; loads no policy."""
