"""Batched physics for our own worlds: one interface, on the CPU (`mujoco.batch`) and on a GPU (MuJoCo Warp)."""
