"""The training loop. Everything else is called from here, and nothing here knows how it is done."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from proxima import checkpoint
from proxima.algo.ppo import Learner
from proxima.config import Config, config_from_dict, find_option, load_config
from proxima.envs.base import ExactState
from proxima.errors import EnvFailure, UsageError
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.spec import Spec
from proxima.track.tracker import Tracker, make_console
from proxima.training import setup
from proxima.training.collector import Collector
from proxima.training.seeding import stream_seed

log = logging.getLogger("proxima")


@dataclass
class TrainResult:
    """What a run left behind."""

    run_dir: Path
    checkpoint: Path | None
    episode_return: float
    """Mean over the last 100 training episodes."""
    global_step: int
    policy: ActorCritic


class Trainer:
    """A run: builds its parts from the options, then iterates."""

    def __init__(self, config: Config, *, console: Console | None = None):
        self.config, self.console = config, console or make_console()
        self.notices = config.validate()
        self.env = setup.build_env(config)
        try:
            self._build()
        except BaseException:
            self.env.close()
            raise

    def _build(self) -> None:
        config, run = self.config, self.config.run
        self.spec = Spec.from_spaces(self.env.observation_space, self.env.action_space)
        images = setup.has_images(self.spec)
        self.device = setup.choose_device(config, images=images)
        setup.check_precision(config, self.device)
        torch.set_num_threads(setup.choose_threads(config, images=images))
        self.policy = setup.build_policy(self.spec, config, self.device)
        self.learner = Learner(self.policy, config, device=self.device, seed=stream_seed(run.seed, "minibatches"))
        self.collector = Collector(
            self.env,
            self.policy,
            num_steps=config.ppo.num_steps,
            device=self.device,
            env_seed=run.seed,
            seed=stream_seed(run.seed, "actions"),
        )
        self.iteration = 0
        self.resumed_from: str | None = None
        self.last_checkpoint: Path | None = None

    def run(self) -> TrainResult:
        """Train to the end; the env is closed and the files are flushed whatever happens."""
        self.run_dir = make_run_dir(self.config)
        self._announce()
        tracker = Tracker(
            self.run_dir,
            self.config.track,
            total_steps=max(self.config.run.total_timesteps, self.collector.global_step),
            first_step=self.collector.global_step,
            console=self.console,
        )
        metrics: dict[str, float] = {}
        try:
            start = time.perf_counter()
            first_step, next_save = self.collector.global_step, self._next_save()
            while self.collector.global_step < self.config.run.total_timesteps:
                metrics = self.iterate()
                elapsed = time.perf_counter() - start
                metrics["wall_time"] = elapsed
                metrics["steps_per_second"] = (self.collector.global_step - first_step) / elapsed
                tracker.write(metrics)
                if self.collector.global_step >= next_save:
                    self.save()
                    next_save = self._next_save()
        except EnvFailure:
            self.save()
            raise
        finally:
            tracker.close()
            self.env.close()
        if metrics:
            tracker.table(metrics)
        if self.config.checkpoint.save_checkpoint:
            self.save()
        return TrainResult(
            self.run_dir,
            self.last_checkpoint,
            self.collector.episodes.metrics()["episode_return"],
            self.collector.global_step,
            self.policy,
        )

    def iterate(self) -> dict[str, float]:
        """One iteration: collect, estimate advantages, update, then let the normaliser see the new observations."""
        self.learner.set_progress(min(1.0, self.collector.global_step / self.config.run.total_timesteps))
        times = [time.perf_counter()]
        rollout = self.collector.collect()
        times.append(time.perf_counter())
        batch = self.learner.prepare(rollout)
        times.append(time.perf_counter())
        metrics = self.learner.update(batch, rollout)
        # After the update, so that the first probability ratio of the next one is exactly 1.
        self.policy.normalizer.update(rollout.flat_obs())
        times.append(time.perf_counter())
        self.iteration += 1
        collect, advantage, update = (after - before for before, after in pairwise(times))
        return {
            "iteration": self.iteration,
            "global_step": self.collector.global_step,
            "wall_time": 0.0,
            "steps_per_second": 0.0,
            "collect_seconds": collect,
            "advantage_seconds": advantage,
            "update_seconds": update,
            **self.collector.episodes.metrics(),
            **metrics,
            **self.env.counters(),
        }

    # Checkpoints -----------------------------------------------------------------------------------------------------

    def _next_save(self) -> float:
        options, step = self.config.checkpoint, self.collector.global_step
        if not options.save_checkpoint or not options.checkpoint_freq:
            return float("inf")
        return (step // options.checkpoint_freq + 1) * options.checkpoint_freq

    def save(self) -> Path:
        """Write a checkpoint of the last iteration boundary."""
        files: dict[str, Any] = {"agent.pt": {name: x.cpu().clone() for name, x in self.policy.state_dict().items()}}
        if self.config.checkpoint.save_optimizer:
            learner = self.learner.state_dict()
            files["optimizer.pt"] = learner.pop("optimizer")
            files["training_state.pt"] = {
                "iteration": self.iteration,
                "learner": learner,
                "collector": self.collector.get_state(),
                "env": self.env.get_state() if isinstance(self.env, ExactState) else None,
            }
        metadata = {
            "name": self.config.name,
            "iteration": self.iteration,
            "global_step": self.collector.global_step,
            "episode_return": self.collector.episodes.metrics()["episode_return"],
            "resumed_from": self.resumed_from,
            "spec": self.spec.to_dict(),
            "config": self.config.to_dict(),
        }
        self.last_checkpoint = checkpoint.save(
            self.run_dir, name=self.config.name, iteration=self.iteration, files=files, metadata=metadata
        )
        checkpoint.prune(self.run_dir, keep=self.config.checkpoint.keep_checkpoints)
        return self.last_checkpoint

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint, exactly where the env's state is in it."""
        state = checkpoint.read(path, "training_state.pt")
        self.policy.load_state_dict(checkpoint.read(path, "agent.pt"))
        self.learner.load_state_dict({"optimizer": checkpoint.read(path, "optimizer.pt"), **state["learner"]})
        exact = isinstance(self.env, ExactState) and state["env"] is not None
        if exact:
            self.env.set_state(state["env"])  # type: ignore[attr-defined]
        else:
            self.notices.append("The envs start new episodes: their state is not in the checkpoint, so not exact.")
        self.collector.set_state(state["collector"], restore_obs=exact)
        self.iteration, self.resumed_from = state["iteration"], str(path)

    # What people read ------------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        for notice in self.notices:
            log.warning(notice)
        parameters = sum(p.numel() for p in self.policy.parameters())
        learner = "compiled" if self.learner.compiled else "eager"
        self.console.print(
            f"{self.config.env.env} on {self.env.num_envs} envs ({type(self.env).__name__}), "
            f"{parameters:,} parameters, {self.device}, {torch.get_num_threads()} torch thread(s), {learner} learner, "
            f"run {self.run_dir}",
            highlight=False,
        )


def make_run_dir(config: Config) -> Path:
    """A fresh `runs/<name>/<yymmdd_hhmmss>/` with the resolved options in it."""
    parent = Path(config.run.runs_dir) / config.name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        stamp = time.strftime("%y%m%d_%H%M%S")
        for suffix in ("", *(f"_{i}" for i in range(1, 1000))):
            try:
                (parent / (stamp + suffix)).mkdir()
            except FileExistsError:  # a run of that name started in the same second
                continue
            run_dir = parent / (stamp + suffix)
            (run_dir / "config.yaml").write_text(yaml.safe_dump(config.to_dict(), sort_keys=False))
            return run_dir
    except OSError as error:
        raise UsageError(f"the run folder under {parent} cannot be written: {error.strerror}.") from None
    raise UsageError(f"the folder {parent} already has a thousand runs of this second.")


def train(
    config: Config | str | Path | None = None,
    *,
    resume_from: str | Path | None = None,
    console: Console | None = None,
    **overrides: Any,
) -> TrainResult:
    """Train a policy.

    Args:
        config: options, or a YAML file with them.
        resume_from: a checkpoint or run folder to go on from, with its options.
        console: where progress is shown; standard error by default.
        **overrides: single options, as the flags of the command: `train(env="Hopper-v5", num_envs=16)`.

    Example:
        >>> result = train(env="CartPole-v1", total_timesteps=1024, num_envs=4, num_steps=128)  # doctest: +SKIP
        >>> result.episode_return > 10  # doctest: +SKIP
        True
    """
    source = None if resume_from is None else checkpoint.find(resume_from)
    if source is not None:
        config = resumed_config(source, overrides)
    elif not isinstance(config, Config):
        config = load_config(config, overrides)
    elif overrides:
        raise TypeError("give either a Config or single options, not both")
    trainer = Trainer(config, console=console)
    if source is not None:
        trainer.restore(source)
    return trainer.run()


def resumed_config(source: Path, overrides: Mapping[str, Any]) -> Config:
    """The options of a checkpoint, with what a resume may change changed."""
    metadata = checkpoint.read_metadata(source)
    config = config_from_dict(metadata["config"], source=str(source))
    for name in overrides:
        option = find_option(name, source="resume")
        if option.section not in ("checkpoint", "track") and option.name not in ("total_timesteps", "runs_dir"):
            raise UsageError(
                f"{option.flag} cannot be changed by a resume: it would not be the same run. Leave it out, or "
                "start a new run."
            )
    config = load_config(None, overrides, base=config)
    if config.run.total_timesteps <= metadata["global_step"]:
        raise UsageError(
            f"{source} already has {metadata['global_step']:,} of total_timesteps {config.run.total_timesteps:,}: "
            "raise --total-timesteps to train on."
        )
    return config
