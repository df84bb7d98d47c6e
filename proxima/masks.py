"""The reserved observation key of invalid-action masks."""

ACTION_MASK = "action_mask"
"""For Discrete and MultiDiscrete actions: `[N, sum(sizes)]`, the columns' choices one after another; 0 is invalid."""
