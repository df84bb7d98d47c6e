"""Any Gymnasium env as a vector env: in this process or in workers, with an exact state."""
