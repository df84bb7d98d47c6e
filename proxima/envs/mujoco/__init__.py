"""Gymnasium's MuJoCo tasks on `mujoco.batch`: many simulations on native threads, bit-exact to Gymnasium."""
