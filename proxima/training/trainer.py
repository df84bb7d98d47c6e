"""The training loop. Everything else is called from here, and nothing here knows how it is done."""

import logging
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from proxima.compiling import freeze_garbage, process_settings_kept
from proxima.config import Config, config_from_dict, load_config
from proxima.envs.action_hold import Hold
from proxima.envs.base import ExactState
from proxima.envs.snapshot import NotPlain
from proxima.errors import ProximaError, UsageError
from proxima.evaluate.restored import restore_policy
from proxima.machine import keep_freed_memory
from proxima.nets.make import Agent
from proxima.nets.spec import Spec
from proxima.runs import checkpoint
from proxima.runs.layout import make_run_dir
from proxima.track.progress import make_console
from proxima.track.tracker import Tracker, make_tracker
from proxima.training import setup
from proxima.training.algorithm import Algorithm
from proxima.training.dqn_iteration import DQN
from proxima.training.examiner import Examiner
from proxima.training.hold_schedule import HoldSchedule
from proxima.training.ppo_iteration import PPO
from proxima.training.resume import check_incomplete, is_complete, newest_of_name, resumed_config
from proxima.training.saving import Boundary, Due, Saver, copies
from proxima.training.seeding import stream_seed
from proxima.training.signals import Interrupted, StopSignals

log = logging.getLogger("proxima")


@dataclass
class TrainResult:
    """What a run left behind."""

    run_dir: Path
    checkpoint: Path | None
    episode_return: float
    """Mean over the last 100 training episodes."""
    global_step: int
    policy: Agent
    config: Config


class Trainer:
    """A run: builds its parts from the options, then iterates."""

    def __init__(self, config: Config, *, console: Console | None = None):
        self.config = config
        self.console = make_console(quiet=True) if config.track.quiet else console or make_console()
        self.notices = config.validate()
        keep_freed_memory()
        self.env = setup.build_env(config)
        try:
            self._build()
        except BaseException:
            self.env.close()
            raise

    def _build(self) -> None:
        config, run = self.config, self.config.run
        self.spec = Spec.from_spaces(self.env.observation_space, self.env.action_space)
        self.hold_schedule = HoldSchedule(config, self.env.step_seconds)
        self.env.hold = self.hold_schedule.at(0.0)
        images = setup.has_images(self.spec)
        self.device = setup.choose_device(config, images=images or self.env.device.type == "cuda")
        setup.check_precision(config, self.device)
        self.threads = setup.choose_threads(config, images=images)
        if run.num_threads is not None and run.num_threads > self.threads.learn:
            self.notices.append(
                f"num_threads is {run.num_threads}, but there are {self.threads.learn} cores: so many are used."
            )
        algorithm = PPO if config.algorithm.algorithm == "PPO" else DQN
        self.algorithm: Algorithm = algorithm(
            self.env,
            self.spec,
            config,
            device=self.device,
            threads=self.threads,
            decisions=max(1, round(run.total_timesteps / self.hold_schedule.steps_a_decision())),
        )
        self.policy, self.collector = self.algorithm.policy, self.algorithm.collector
        self.examiner = Examiner(config, self.policy, step=0)
        self.iteration = 0
        self.lineage: list[str] = []
        wanted = config.checkpoint.save_checkpoint and config.checkpoint.save_optimizer
        self.obstacle = self.env.why_inexact() if wanted else None
        if self.obstacle:
            self.notices.append(
                f"A resume of this run will start new episodes, and so not be exact: {config.env.env}: {self.obstacle}."
            )

    def run(self) -> TrainResult:
        """Train to the end, or to a signal; what has been learned up to the last iteration is on disk then."""
        boundary = self.snapshot()
        with process_settings_kept(), StopSignals() as signals:
            try:
                self.run_dir = make_run_dir(self.config)
                checkpoint.sweep(self.run_dir.parent)
                self.saver = Saver(self.config, self.run_dir)
                tracker = self._start_tracking()
            except BaseException:
                self.env.close()
                raise
            metrics: dict[str, float] = {}
            try:
                signals.hear()
                start, first_step, first_decision = time.perf_counter(), *self.collector.counts
                due = Due(self.config, first_step)
                while self.collector.global_step < self.config.run.total_timesteps:
                    started = bool(metrics)
                    metrics = self.iterate()
                    if not started:
                        freeze_garbage()
                    is_best = self.examiner.examine(self.collector.global_step, self.run_dir, self.env.hold)
                    metrics |= self.examiner.metrics
                    with signals.shield():
                        boundary = self.snapshot()
                        metrics["wall_time"] = time.perf_counter() - start
                        metrics["steps_per_second"] = (metrics["global_step"] - first_step) / metrics["wall_time"]
                        if self.hold_schedule.active:
                            decisions = metrics["decisions"] - first_decision
                            metrics["decisions_per_second"] = decisions / metrics["wall_time"]
                        tracker.write(metrics)
                        if due(self.collector.global_step) or is_best:
                            self.saver.save(boundary)
                with signals.shield():
                    self.saver.save(boundary, is_last=True)
            except Interrupted as stop:
                raise self._interrupted(stop, boundary) from None
            except KeyboardInterrupt:  # raised by the env itself; a real Ctrl-C is Interrupted
                signals.defer()
                raise self._interrupted(Interrupted(signal.SIGINT), boundary) from None
            except BaseException as error:
                signals.defer()
                saved = self.saver.save(boundary, is_last=True)
                if isinstance(error, Exception):
                    raise
                what = f"stopped by {type(error).__name__}: {error}" if str(error) else type(error).__name__
                raise ProximaError(f"{what}; the last checkpoint is {saved or 'none'}.") from error
            finally:
                signals.defer()
                tracker.close()
                self.env.close()
                self.examiner.close()
        if boundary is not None and self.saver.iteration != self.iteration:
            raise ProximaError(
                f"trained to the end, but the end could not be saved in {self.run_dir}; the last checkpoint is "
                f"{self.saver.last or 'none'}."
            )
        statistics = self.collector.episodes.metrics()
        return TrainResult(
            run_dir=self.run_dir,
            checkpoint=self.saver.last,
            episode_return=statistics["episode_return"],
            global_step=self.collector.global_step,
            policy=self.policy,
            config=self.config,
        )

    def iterate(self) -> dict[str, float]:
        """One iteration of the algorithm, with the learning rate and the hold of this moment of the run."""
        progress = min(1.0, self.collector.global_step / self.config.run.total_timesteps)
        self.algorithm.learner.set_progress(progress)
        self.env.hold = self.hold_schedule.at(progress)
        metrics = self.algorithm.iterate()
        self.iteration += 1
        return {
            "iteration": self.iteration,
            "global_step": self.collector.global_step,
            "wall_time": 0.0,
            "steps_per_second": 0.0,
            **self.algorithm.take_seconds(),
            **self.collector.episodes.metrics(),
            **metrics,
            **self.env.counters(),
            **self.hold_schedule.metrics(progress, decisions=self.collector.decisions),
        }

    # Checkpoints -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Boundary | None:
        """All that a checkpoint of this iteration boundary holds, copied; None where none is ever written."""
        if not self.config.checkpoint.save_checkpoint:
            return None
        files: dict[str, Any] = {"agent.pt": copies(self.policy.state_dict())}
        if self.config.checkpoint.save_optimizer:
            own, state = self.algorithm.get_state()
            files |= own
            env_state = self.env.get_state() if isinstance(self.env, ExactState) and not self.obstacle else None
            files["training_state.pt"] = {
                "iteration": self.iteration,
                **state,
                "env": env_state,
                "examiner": self.examiner.get_state(),
                "env_type": type(self.env).__name__,
            }
        metadata = {
            "name": self.config.name,
            "iteration": self.iteration,
            "global_step": self.collector.global_step,
            "episode_return": self.collector.episodes.metrics()["episode_return"],
            "eval_return": self.examiner.eval_return,
            "action_hold": self.env.hold.to_dict(),
            "resumed_from": self.lineage[-1] if self.lineage else None,
            "lineage": self.lineage,
            "spec": self.spec.to_dict(),
            "config": self.config.to_dict(),
        }
        return {"iteration": self.iteration, "files": files, "metadata": metadata}

    def restore(self, source: Path) -> None:
        """Go on from a checkpoint, exactly where the env's state is in it."""
        try:
            with checkpoint.explained(source, "cannot be restored"):
                self._restore(source)
        except BaseException:
            self.env.close()
            raise

    def _restore(self, source: Path) -> None:
        metadata, state = checkpoint.read_metadata(source), checkpoint.read(source, "training_state.pt")
        self.policy.load_state_dict(checkpoint.read(source, "agent.pt"))
        self.iteration = state["iteration"]
        self.examiner.set_state(state["examiner"])
        exact = self._restore_envs(state)
        seed = None if exact else stream_seed(self.config.run.seed + self.iteration, "resumed envs") % 2**31

        def read(name: str) -> Any | None:
            return checkpoint.read(source, name) if name in metadata["checksums"] else None

        different = self.algorithm.set_state(read, state, new_episodes_seed=seed)
        self.algorithm.learner.follow_changes(config_from_dict(metadata["config"], source=str(source)))
        if not exact:
            different.append(f"{source} has no state that fits these envs; new episodes")
        self.notices += [f"This resume is not exact: {what}." for what in different]
        progress = min(1.0, self.collector.global_step / self.config.run.total_timesteps)
        self.notices += self.hold_schedule.changed_by_resume(Hold(**metadata["action_hold"]), progress)
        self.notices += self.algorithm.changed_by_resume(progress)
        self.lineage = [*metadata["lineage"], str(source.resolve())]

    def _restore_envs(self, state: dict[str, Any]) -> bool:
        fits = state["env"] is not None and setup.share_states(type(self.env).__name__, state["env_type"])
        if not fits or not isinstance(self.env, ExactState):
            return False
        try:
            self.env.set_state(state["env"])
        except NotPlain as error:
            log.warning("The envs' state cannot be put back: %s.", error)
            return False
        return True

    def _interrupted(self, stop: Interrupted, boundary: Boundary | None) -> ProximaError:
        saved = self.saver.save(boundary, is_last=True)
        if saved is None:
            error = ProximaError(f"stopped by {stop.name}; nothing was saved.")
        elif not self.config.checkpoint.save_optimizer:
            error = ProximaError(f"stopped by {stop.name}; the policy is saved in {saved} (no optimizer: no resume).")
        else:
            error = ProximaError(
                f"stopped by {stop.name}; iteration {self.saver.iteration} is saved in {saved}; "
                f"go on with: proxima resume {self.run_dir}"
            )
        error.exit_code = 128 + stop.signum
        return error

    # What people read ------------------------------------------------------------------------------------------------

    def _start_tracking(self) -> Tracker:
        self._announce()
        try:
            if self.lineage:
                checkpoint.write_lineage(self.run_dir, self.lineage)
            return make_tracker(
                self.run_dir,
                self.config.track,
                config=self.config.to_yaml(),
                total_steps=max(self.config.run.total_timesteps, self.collector.global_step),
                first_step=self.collector.global_step,
                console=self.console,
            )
        except OSError as error:
            raise UsageError(f"the run folder {self.run_dir} cannot be written: {error.strerror}.") from None

    def _announce(self) -> None:
        for notice in self.notices:
            log.warning(notice)
        parameters = sum(p.numel() for p in self.policy.parameters())
        self.console.print(
            f"{self.config.env.env} on {self.env.num_envs} envs ({type(self.env).__name__}), "
            f"{self.hold_schedule.text()}{parameters:,} parameters, {self.device}, {self.machine_use()}, "
            f"run {self.run_dir}"
        )

    def machine_use(self) -> str:
        """Threads of each phase, and what is to be compiled, in a few words."""
        wanted = {"learner": self.algorithm.learner.compiled, "acting": self.collector.compiles}
        compiled = " and ".join(what for what, is_wanted in wanted.items() if is_wanted)
        physics = getattr(self.env, "num_threads", None)
        threads = "threads: " + (f"{physics} physics, " if physics else "")
        threads += f"{self.threads.act} acting, {self.threads.learn} learning"
        return f"{threads}, {compiled + ' to be compiled' if compiled else 'eager'}"


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
        resume_from: a checkpoint or run folder to go on from, with its options where `config` and `overrides` say
            nothing else.
        console: where progress is shown; standard error by default.
        **overrides: single options, as the flags of the command: `train(env="Hopper-v5", num_envs=16)`.

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
    source = None if resume_from is None else checkpoint.find(resume_from)
    if source is not None:
        options = resumed_config(source, path, overrides)
        check_incomplete(source, options)
    elif options.checkpoint.auto_resume:
        source = newest_of_name(options)
        if source is not None:
            options = resumed_config(source, None, options.flat())
            if is_complete(source, options):
                return finished_result(source)
    with process_settings_kept():
        trainer = Trainer(options, console=console)
        if source is not None:
            trainer.restore(source)
        return trainer.run()


def finished_result(source: Path) -> TrainResult:
    """The result of a run that has nothing left to do."""
    log.warning("%s has all the steps that are asked for: nothing to do.", source)
    saved = restore_policy(source)
    return TrainResult(
        run_dir=source.parent,
        checkpoint=source,
        episode_return=saved.checkpoint.episode_return,
        global_step=saved.checkpoint.global_step,
        policy=saved.policy,
        config=saved.config,
    )
