"""Proxima trains PPO agents that are exact, fast and readable.

`from proxima import train, load_policy, make_env` is the whole of it for a notebook; `proxima --help` for a terminal.
"""

TYPE_CHECKING = False  # as in `typing`, whose import takes longer than all else here
if TYPE_CHECKING:
    from typing import Any

    from proxima.config import Config
    from proxima.envs.make import make_env
    from proxima.evaluate.policy import load_policy
    from proxima.training.trainer import train

__version__ = "0.1.0"
__all__ = ["Config", "load_policy", "make_env", "train"]

# Resolved on first use, so that an environment worker, or `proxima --help`, does not pay for importing torch.
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
