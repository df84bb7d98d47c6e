"""Proxima, a PPO library: `from proxima import train, load_policy, make_env`, or `proxima --help` in a terminal."""

TYPE_CHECKING = False  # as in `typing`, which is slow to import
if TYPE_CHECKING:
    from typing import Any

    from proxima.config import Config
    from proxima.envs.make import make_env
    from proxima.evaluate.policy import load_policy
    from proxima.training.trainer import train

__version__ = "0.1.0"
__all__ = ["Config", "load_policy", "make_env", "train"]

# Imported on first use, so that env workers and `proxima --help` do not import torch.
_HOMES = {
    "Config": "proxima.config",
    "load_policy": "proxima.evaluate.policy",
    "make_env": "proxima.envs.make",
    "train": "proxima.training.trainer",
}


def __getattr__(name: str) -> "Any":
    if name not in _HOMES:
        raise AttributeError(f"module 'proxima' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
