"""Proxima, a PPO library: `from proxima import train, load_policy, make_env`, or `proxima --help` in a terminal."""

TYPE_CHECKING = False  # as in `typing`, which is slow to import
if TYPE_CHECKING:
    from typing import Any

    from proxima.config import Config, load_config
    from proxima.envs.make import make_env
    from proxima.evaluation.episodes import evaluate
    from proxima.evaluation.policy import load_policy
    from proxima.evaluation.video import record_checkpoint as record
    from proxima.report.compare import compare_runs as compare
    from proxima.training.train import train
    from proxima.training.trainer import Trainer

__version__ = "0.1.0"
__all__ = ["Config", "Trainer", "compare", "evaluate", "load_config", "load_policy", "make_env", "record", "train"]

# Imported on first use, so that env workers and `proxima --help` do not import torch.
_HOMES = {
    "Config": "proxima.config:Config",
    "Trainer": "proxima.training.trainer:Trainer",
    "compare": "proxima.report.compare:compare_runs",
    "evaluate": "proxima.evaluation.episodes:evaluate",
    "load_config": "proxima.config:load_config",
    "load_policy": "proxima.evaluation.policy:load_policy",
    "make_env": "proxima.envs.make:make_env",
    "record": "proxima.evaluation.video:record_checkpoint",
    "train": "proxima.training.train:train",
}


def __getattr__(name: str) -> "Any":
    if name not in _HOMES:
        raise AttributeError(f"module 'proxima' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOMES[name].split(":")
    return getattr(import_module(module), attribute)
