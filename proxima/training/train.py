"""`train`: a run from options to result, resumed if that is asked for."""

import logging
from pathlib import Path
from typing import Any

from rich.console import Console

from proxima.config import Config, load_config
from proxima.errors import UsageError
from proxima.evaluation.restored import restore_policy
from proxima.runs import checkpoint
from proxima.training.distributed import this_rank
from proxima.training.result import TrainResult
from proxima.training.resume import newest_of_name, resumed_config
from proxima.training.trainer import OnIteration, Trainer

log = logging.getLogger("proxima")


def train(
    config: Config | str | Path | None = None,
    *,
    resume_from: str | Path | None = None,
    console: Console | None = None,
    on_iteration: OnIteration | None = None,
    **overrides: Any,
) -> TrainResult:
    """Train a policy.

    Args:
        config: options, or a YAML file with them.
        resume_from: a checkpoint or run folder to continue from; its options are changed by `config` and `overrides`.
        console: where progress is shown; standard error by default.
        on_iteration: called as `on_iteration(trainer, metrics)` after every iteration; returning False stops the run.
            It is not saved: a resume has to be given it again.
        **overrides: single options, like the flags of the command: `train(env="Hopper-v5", num_envs=16)`.

    Example:
        >>> result = train(env="CartPole-v1", total_timesteps=1024, num_envs=4, num_steps=128)  # doctest: +SKIP
        >>> result.episode_return > 10  # doctest: +SKIP
        True
    """
    if not isinstance(config, Config):
        path, options = config, load_config(config, overrides)
    elif overrides or resume_from is not None:
        raise TypeError("give either a Config, or a file and single options")
    else:
        path, options = None, config
    source, ranks = None, this_rank()
    if resume_from is not None:
        source = ranks.from_first(checkpoint.find(resume_from) if ranks.is_first else None)
        options = resumed_config(source, path, overrides)
    elif options.checkpoint.auto_resume:
        source = ranks.from_first(newest_of_name(options) if ranks.is_first else None)
        options = options if source is None else resumed_config(source, None, options.set_options())
    if source is not None and (done := checkpoint.Checkpoint(source).global_step) >= options.run.total_timesteps:
        if resume_from is None:
            log.warning("%s already has total_timesteps env steps: nothing to do.", source)
            saved = restore_policy(source)
            return_ = saved.checkpoint.episode_return
            return TrainResult(source.parent, source, return_, done, saved.policy, saved.config)
        raise UsageError(
            f"{source} already has {done:,} of total_timesteps {options.run.total_timesteps:,}: raise "
            "--total-timesteps to train on."
        )
    trainer = Trainer(options, console=console)
    if source is not None:
        trainer.restore(source)
    return trainer.run(on_iteration)
