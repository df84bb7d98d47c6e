"""Muscle-driven bodies that follow a reference motion."""
