"""Gymnasium's MuJoCo tasks on `mujoco.batch`: simulations on native threads, bit-identical to Gymnasium."""
