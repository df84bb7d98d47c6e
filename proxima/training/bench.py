"""Training speed of a config on this machine, compared with the envs alone and the physics alone."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from torch import Tensor

from proxima.compiling import process_settings_kept
from proxima.config import Config
from proxima.errors import UsageError
from proxima.training.trainer import Trainer

_CEILING_SECONDS = 3.0


@dataclass
class Bench:
    """Env steps per second, and seconds of each phase of an iteration."""

    iterations: int
    rollout_steps: float
    """Mean env steps of the timed iterations."""
    phase_seconds: dict[str, float]
    """Mean of an iteration, without the first."""
    first_iteration: float
    """Seconds, with compilation."""
    envs_alone: float
    """Steps per second with the last rollout's actions, without policy and storage."""
    physics_alone: float | None
    """Steps per second of the physics without observations and rewards; None if the back end has none."""
    machine_use: str

    @property
    def steps_per_second(self) -> float:
        """Env steps per second of training, with updates."""
        return self.rollout_steps / sum(self.phase_seconds.values())

    def text(self) -> str:
        """As a table."""
        total = sum(self.phase_seconds.values())
        lines = [f"{'phase':<12}{'seconds':>10}{'share':>8}{'steps/s alone':>16}"]
        for phase, seconds in self.phase_seconds.items():
            lines.append(f"{phase:<12}{seconds:>10.4f}{seconds / total:>8.0%}{self.rollout_steps / seconds:>16,.0f}")
        lines.append(f"{'training':<12}{total:>10.4f}{1:>8.0%}{self.steps_per_second:>16,.0f}")
        for name, rate in (("envs", self.envs_alone), ("physics", self.physics_alone)):
            if rate is not None:
                share = self.steps_per_second / rate
                lines.append(
                    f"{name:<12}{self.rollout_steps / rate:>10.4f}{'':>8}{rate:>16,.0f}   training is {share:.0%}"
                )
        lines.append(
            f"{self.iterations} iterations of {self.rollout_steps:,.0f} steps; the one before them, with all "
            f"compilation, took {self.first_iteration:.1f} s."
        )
        lines.append(self.machine_use)
        return "\n".join(lines)


def bench(config: Config, *, seconds: float, console: Console | None = None) -> Bench:
    """Train for about `seconds` after a first iteration, then time the envs alone and the physics alone."""
    if not seconds > 0:
        raise UsageError(f"seconds is {seconds}, but it must be > 0.")
    if config.cluster.rollout_workers:
        raise UsageError("bench times the envs in this process: leave rollout_workers out.")
    with process_settings_kept():
        return _bench(Trainer(config, console=console), seconds)


def _bench(trainer: Trainer, seconds: float) -> Bench:
    try:
        start = time.perf_counter()
        first_step = trainer.iterate()["global_step"]
        first = time.perf_counter() - start
        rows: list[dict[str, float]] = []
        start = time.perf_counter()
        while not rows or time.perf_counter() - start < seconds:
            rows.append(trainer.iterate())
        phases = {phase: sum(row[f"{phase}_seconds"] for row in rows) / len(rows) for phase in trainer.algorithm.phases}
        env, actions = trainer.source.env, trainer.source.rollout.action
        choices = [trainer.policy.to_env(action).to(env.device) for action in actions]
        envs_alone = _rate(lambda t: env.step(choices[t % len(choices)]).duration, env.num_envs)
        step_physics = getattr(env, "step_physics", None)
        physics_alone = None if step_physics is None else _rate(lambda _: step_physics(), env.num_envs)
    finally:
        trainer.close()
    use = trainer.machine_use().replace("to be compiled", "compiled")
    steps = (rows[-1]["global_step"] - first_step) / len(rows)
    return Bench(len(rows), steps, phases, first, envs_alone, physics_alone, use)


@torch.no_grad()
def _rate(step: Callable[[int], Tensor | None], num_envs: int) -> float:
    """Env steps per second; `step(t)` returns the env steps of each env, None for one each."""
    calls, taken, start = 0, 0, time.perf_counter()
    while time.perf_counter() - start < _CEILING_SECONDS:
        duration = step(calls)
        taken += num_envs if duration is None else int(duration.sum())
        calls += 1
    return taken / (time.perf_counter() - start)
