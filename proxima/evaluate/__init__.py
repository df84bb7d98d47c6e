"""Use of trained policies: evaluation, videos, analysis, export."""
