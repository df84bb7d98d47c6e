"""Trained policies in use: evaluation, videos, analysis, export."""
