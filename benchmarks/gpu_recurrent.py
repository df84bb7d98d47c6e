"""Times a recurrent policy with thousands of envs on a GPU, phase by phase; checks that the update never synchronises.

    python benchmarks/gpu_recurrent.py

The synthetic quadruped of the preset phase1_monolithic (51 + 132 inputs, 12 actions), 4096 envs x 24 steps, GRU 256,
5 epochs x 4 minibatches of 1024 sequences. The host must not wait for the device within an epoch; a rollout
synchronises every 16 steps, to count ended episodes, and at its end.
"""

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from gpu_learner import epochs_without_waiting

from proxima.config import load_config
from proxima.training.trainer import Trainer

ROOT = Path(__file__).parent.parent
TARGET_MS = 90.0
SIZES = {"num_envs": 4096, "num_steps": 24, "minibatch_size": 1024, "update_epochs": 5, "device": "cuda"}
WAYS: dict[str, dict[str, Any]] = {
    "eager (cuDNN)": {"compile": "off"},
    "CUDA graph": {"compile": "on"},
    "CUDA graph, LSTM": {"compile": "on", "rnn": "lstm"},
    "CUDA graph, separate GRUs": {"compile": "on", "share_trunk": "off"},
    "CUDA graph, bf16": {"compile": "on", "precision": "bf16"},
}


def build(**options: Any) -> Trainer:
    config = load_config("phase1_monolithic", {**SIZES, "save_checkpoint": False, **options})
    return Trainer(config)


def seconds(function: Any, *arguments: Any) -> tuple[float, Any]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = function(*arguments)
    torch.cuda.synchronize()
    return time.perf_counter() - start, result


def measure(trainer: Trainer, rounds: int = 6) -> dict[str, float]:
    """Milliseconds of each phase, best of the rounds after the first, and seconds of the first update."""
    times: dict[str, list[float]] = {"collect": [], "prepare": [], "update": []}
    for _ in range(rounds):
        collect, rollout = seconds(trainer.source.collect)
        prepare, batch = seconds(trainer.algorithm.learner.prepare, rollout)
        update, _ = seconds(trainer.algorithm.learner.update, batch)
        trainer.policy.normalizer.update(rollout.step_obs())
        for name, value in zip(times, (collect, prepare, update), strict=True):
            times[name].append(1e3 * value)
    return {name: min(values[1:]) for name, values in times.items()} | {"first": times["update"][0] / 1e3}


def waits(num_steps: int) -> int:
    """Number of host synchronisations while a rollout is collected."""
    trainer = build(compile="off", num_steps=num_steps)
    trainer.source.collect()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.source.collect()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA GPU here")
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    few, many = waits(24), waits(96)
    print(f"host synchronisations: {few} in a rollout of 24 steps, {many} in one of 96")
    print(f"{'variant':<28}{'collect ms':>12}{'prepare ms':>12}{'update ms':>11}{'steps/s':>12}{'first update s':>16}")
    for name, options in WAYS.items():
        trainer = build(**options)
        found = measure(trainer)
        if options["compile"] == "on":
            assert trainer.algorithm.learner.epochs.compiled, "the compiler did not work"
            epochs_without_waiting(trainer.algorithm.learner, trainer.source.rollout)
        total = found["collect"] + found["prepare"] + found["update"]
        rate = trainer.config.rollout_size / total * 1e3
        print(
            f"{name:<28}{found['collect']:>12.1f}{found['prepare']:>12.1f}{found['update']:>11.1f}{rate:>12,.0f}"
            f"{found['first']:>16.1f}",
            flush=True,
        )
    print(f"target for the update: {TARGET_MS:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
