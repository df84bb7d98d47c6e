"""Trained policies in use."""
