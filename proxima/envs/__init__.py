"""Worlds behind one contract; `make.py` is the only place that chooses a back end."""
