"""The training loop: builds the parts of a run, iterates, and calls writers, evaluation and saving."""

import contextlib
import copy
import logging
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from proxima.algorithms import find_algorithm
from proxima.compiling import float32_by_default, freeze_garbage, process_settings_kept
from proxima.config import Config, all_presets, load_config
from proxima.config.options import shown
from proxima.errors import ProximaError, UsageError
from proxima.evaluate.restored import restore_policy
from proxima.nets.policy import Policy
from proxima.own_parts import find_part
from proxima.runs import checkpoint
from proxima.runs.layout import make_run_dir, write_lineage
from proxima.runs.metrics import find_metric
from proxima.track.progress import make_console
from proxima.track.tracker import Tracker, make_tracker
from proxima.training import saving, setup
from proxima.training.algorithm import Algorithm
from proxima.training.examiner import Examiner
from proxima.training.resume import newest_of_name, resumed_config
from proxima.training.signals import Interrupted, StopSignals

log = logging.getLogger("proxima")


@dataclass
class TrainResult:
    """The result of a run."""

    run_dir: Path
    checkpoint: Path | None
    episode_return: float
    """Mean over the last 100 training episodes."""
    global_step: int
    policy: Policy
    config: Config


class Trainer:
    """A run: builds its parts from the options, then iterates.

    Example:
        >>> trainer = Trainer(load_config(None, {"env": "CartPole-v1"}))  # doctest: +SKIP
        >>> for metrics in trainer.iterations():  # doctest: +SKIP
        ...     if metrics["episode_return"] > 450:
        ...         break  # saves a checkpoint
    """

    def __init__(self, config: Config, *, console: Console | None = None):
        self.config = config = copy.deepcopy(config)  # defaults that suit the env are filled in
        self.console = make_console(quiet=True) if config.track.quiet else console or make_console()
        config.validate()
        with float32_by_default():
            self.parts = setup.build_parts(config)
            try:
                self._build()
            except BaseException:
                self.parts.env.close()
                raise

    def _build(self) -> None:
        config = self.config
        algorithm: type[Algorithm] = find_part(find_algorithm(config.algorithm.algorithm).algorithm)
        self.algorithm = algorithm(self.parts)
        if (extra := self.algorithm.learner.extra) is not None:
            extra.check_names(lambda name: find_metric(name) is not None)
        self.notices = list(self.parts.notices)
        self.policy, self.source = self.algorithm.policy, self.algorithm.source
        self.examiner = Examiner(config, self.policy, self.algorithm.networks, step=0)
        self.iteration = 0
        self.lineage: list[str] = []
        if config.checkpoint.save_checkpoint and config.checkpoint.save_optimizer:
            obstacle = self.source.try_exactness()
            notice = f"A resume of this run will start new episodes, and so not be exact: {config.env.env}: {obstacle}."
            self.notices += [notice] if obstacle else []

    def run(self) -> TrainResult:
        """Train to the end, or until a signal; saves a checkpoint of the last iteration in any case."""
        for _ in self.iterations():
            pass
        return self.result()

    def iterations(self) -> Iterator[dict[str, float]]:
        """Train, and yield the metrics of every iteration after they are written; leave the loop to stop early.

        Signals, errors and an early stop save a checkpoint of the last iteration.
        """
        boundary = saving.snapshot(self)
        with process_settings_kept(), StopSignals() as signals:
            tracker = self._start()
            try:
                signals.hear()
                if not self.iteration:
                    self.algorithm.begin()
                clock, due = Clock(self), saving.Due(self.config, self.source.global_step)
                while self.source.global_step < self.config.run.total_timesteps:
                    metrics = self.iterate()
                    is_best = self.examiner.examine(self.source.global_step, self.run_dir, self.source.hold)
                    metrics |= self.examiner.metrics
                    with signals.shield():
                        boundary = saving.snapshot(self)
                        metrics |= clock.metrics(metrics)
                        tracker.write(metrics)
                        if due(self.source.global_step) or is_best:
                            self.saver.save_in_background(boundary)
                    signals.defer()  # the caller's code between two iterations is not interrupted
                    try:
                        yield metrics
                    except GeneratorExit:
                        break
                    signals.hear()
                with signals.shield():
                    self.saver.save(boundary, is_last=True)
            except (Interrupted, KeyboardInterrupt) as stop:  # an env can raise the latter; a real Ctrl-C is the former
                signals.defer()
                raise self._interrupted(getattr(stop, "signum", signal.SIGINT), boundary) from None
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
                self.close()
        if boundary is not None and self.saver.iteration != self.iteration:
            raise ProximaError(
                f"trained to the end, but the end could not be saved in {self.run_dir}; the last checkpoint is "
                f"{self.saver.last or 'none'}."
            )

    def iterate(self) -> dict[str, float]:
        """Apply the schedules, and do one iteration of the algorithm."""
        progress = min(1.0, self.source.global_step / self.config.run.total_timesteps)
        with float32_by_default():
            self.algorithm.set_progress(progress)
            metrics = self.algorithm.iterate()
        if not self.iteration:
            freeze_garbage()
        self.iteration += 1
        return {
            "iteration": self.iteration,
            "global_step": self.source.global_step,
            "wall_time": 0.0,
            "steps_per_second": 0.0,
            **self.algorithm.take_seconds(),
            **self.source.metrics(progress),
            **metrics,
        }

    def result(self) -> TrainResult:
        """The result so far."""
        return_, step = self.source.episodes.mean_return, self.source.global_step
        return TrainResult(self.run_dir, self.saver.last, return_, step, self.policy, self.config)

    def restore(self, source: Path) -> None:
        """Continue from a checkpoint: exactly, if it has the state of the envs."""
        try:
            with checkpoint.explained(source, "cannot be restored"), float32_by_default():
                saving.restore(self, source)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the envs; may be called twice."""
        self.source.close()
        self.examiner.close()

    def _interrupted(self, signum: int, boundary: saving.Boundary | None) -> ProximaError:
        saved, name = self.saver.save(boundary, is_last=True), signal.Signals(signum).name
        if saved is None:
            error = ProximaError(f"stopped by {name}; nothing was saved.")
        elif not self.config.checkpoint.save_optimizer:
            error = ProximaError(f"stopped by {name}; the policy is saved in {saved} (no optimizer: no resume).")
        else:
            error = ProximaError(
                f"stopped by {name}; iteration {self.saver.iteration} is saved in {saved}; "
                f"continue with: proxima resume {self.run_dir}"
            )
        error.exit_code = 128 + signum
        return error

    # Output ----------------------------------------------------------------------------------------------------------

    def _start(self) -> Tracker:
        """Make the run folder, print the first line, and open the writers."""
        try:
            self.run_dir = make_run_dir(self.config)
            checkpoint.sweep(self.run_dir.parent)
            self.saver = saving.Saver(self.config, self.run_dir)
            self._announce()
            if self.lineage:
                write_lineage(self.run_dir, self.lineage)
            return make_tracker(
                self.run_dir,
                self.config.track,
                config=self.config.to_yaml(),
                total_steps=max(self.config.run.total_timesteps, self.source.global_step),
                first_step=self.source.global_step,
                console=self.console,
            )
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise UsageError(f"the run folder {self.run_dir} cannot be written: {error.strerror}.") from None
            raise

    def _announce(self) -> None:
        if not self.lineage and (settings := self._settings()):
            self._say(settings)
        for notice in self.notices:
            log.warning(notice)
        if self.config.env.env_file is not None:
            self._say(f"Env file {self.config.env.env_file}.")
        if about := self.algorithm.text():
            self._say(about)
        parameters = sum(p.numel() for p in self.policy.parameters())
        self._say(
            f"{self.config.env.env} on {self.source.text()}{parameters:,} parameters, {self.parts.device}, "
            f"{self.machine_use()}, run {self.run_dir}"
        )

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # standard error on a full disk, or a closed pipe
            self.console.print(line, highlight=False)

    def _settings(self) -> str:
        """The preset in use, or the defaults that were chosen to suit the env."""
        preset, chosen = all_presets().get(self.config.run.preset), self.parts.defaults
        if preset is not None:
            return f"Preset {preset.name} ({preset.reaches}); --preset none for plain defaults."
        values = ", ".join(f"{option} {shown(value)}" for option, value in chosen.items())
        return f"Defaults for {self.parts.traits}: {values}." if values else ""

    def machine_use(self) -> str:
        """The threads of each phase, and what will be compiled."""
        parts = {"learner": self.algorithm.learner.epochs.compiled, "acting": self.source.compiled}
        compiled = " and ".join(name for name, is_compiled in parts.items() if is_compiled)
        physics, threads = self.source.num_threads, self.parts.threads
        used = "threads: " + (f"{physics} physics, " if physics else "")
        used += f"{threads.act} acting, {threads.learn} learning"
        return f"{used}, {compiled + ' to be compiled' if compiled else 'eager'}"


class Clock:
    """Wall time and speed since training started."""

    def __init__(self, trainer: Trainer):
        self._start, source = time.perf_counter(), trainer.source
        self._first = {"global_step": source.global_step, "decisions": source.policy_steps}

    def metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """Given the metrics of the iteration that just ended."""
        seconds = time.perf_counter() - self._start
        rates = {name: (metrics[name] - x) / seconds for name, x in self._first.items() if name in metrics}
        found = {"wall_time": seconds, "steps_per_second": rates.pop("global_step")}
        return found | {f"{name}_per_second": rate for name, rate in rates.items()}


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
        resume_from: a checkpoint or run folder to continue from; its options are changed by `config` and `overrides`.
        console: where progress is shown; standard error by default.
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
    source = None if resume_from is None else checkpoint.find(resume_from)
    if source is not None:
        options = resumed_config(source, path, overrides)
    elif options.checkpoint.auto_resume and (source := newest_of_name(options)) is not None:
        options = resumed_config(source, None, options.set_options())
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
    return trainer.run()
