"""The training loop. Everything else is called from here, and nothing here knows how it is done."""

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

from proxima.algorithms import ALGORITHMS, find_attribute
from proxima.compiling import float32_by_default, freeze_garbage, process_settings_kept
from proxima.config import Config, all_presets, load_config
from proxima.config.options import shown
from proxima.errors import ProximaError, UsageError
from proxima.evaluate.restored import restore_policy
from proxima.nets.policy import Policy
from proxima.runs import checkpoint
from proxima.runs.layout import make_run_dir
from proxima.track.progress import make_console
from proxima.track.tracker import Tracker, make_tracker
from proxima.training import saving, setup
from proxima.training.algorithm import Algorithm
from proxima.training.examiner import Examiner
from proxima.training.resume import check_incomplete, is_complete, newest_of_name, resumed_config
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
    policy: Policy
    config: Config


class Trainer:
    """A run: builds its parts from the options, then iterates.

    Example:
        >>> trainer = Trainer(load_config(None, {"env": "CartPole-v1"}))  # doctest: +SKIP
        >>> for metrics in trainer.iterations():  # doctest: +SKIP
        ...     if metrics["episode_return"] > 450:
        ...         break  # what has been learned is saved
    """

    def __init__(self, config: Config, *, console: Console | None = None):
        self.config = config = copy.deepcopy(config)  # defaults that suit the env are filled in
        self.console = make_console(quiet=True) if config.track.quiet else console or make_console()
        self.notices = config.validate()
        with float32_by_default():
            self.parts = setup.build_parts(config)
            try:
                self._build()
            except BaseException:
                self.parts.env.close()
                raise

    def _build(self) -> None:
        config, self.notices = self.config, self.notices + self.parts.notices
        algorithm: type[Algorithm] = find_attribute(ALGORITHMS[config.algorithm.algorithm].algorithm)
        self.algorithm = algorithm(self.parts)
        self.policy, self.source = self.algorithm.policy, self.algorithm.source
        self.examiner = Examiner(config, self.policy, step=0)
        self.iteration = 0
        self.lineage: list[str] = []
        can_resume = config.checkpoint.save_checkpoint and config.checkpoint.save_optimizer
        if can_resume and (obstacle := self.source.try_exactness()):
            self.notices.append(
                f"A resume of this run will start new episodes, and so not be exact: {config.env.env}: {obstacle}."
            )

    def run(self) -> TrainResult:
        """Train to the end, or to a signal; what has been learned up to the last iteration is on disk then."""
        for _ in self.iterations():
            pass
        return self.result()

    def iterations(self) -> Iterator[dict[str, float]]:
        """Train, and yield the metrics of every iteration once they are written; leave the loop to stop early.

        Signals, errors and an early stop leave a checkpoint of the last iteration.
        """
        boundary = saving.snapshot(self)
        with process_settings_kept(), StopSignals() as signals:
            tracker = self._start()
            try:
                signals.hear()
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
                            self.saver.save(boundary)
                    signals.defer()  # what the caller does between two iterations is not cut short
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
        """One iteration of the algorithm, with the learning rate and the hold of this moment of the run."""
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
        """What the run has come to."""
        return TrainResult(
            run_dir=self.run_dir,
            checkpoint=self.saver.last,
            episode_return=self.source.episodes.metrics()["episode_return"],
            global_step=self.source.global_step,
            policy=self.policy,
            config=self.config,
        )

    def restore(self, source: Path) -> None:
        """Go on from a checkpoint, exactly where the env's state is in it."""
        try:
            with checkpoint.explained(source, "cannot be restored"), float32_by_default():
                saving.restore(self, source)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the envs. Calling it twice is harmless."""
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
                f"go on with: proxima resume {self.run_dir}"
            )
        error.exit_code = 128 + signum
        return error

    # What people read ------------------------------------------------------------------------------------------------

    def _start(self) -> Tracker:
        """Make the run folder, say what is about to happen, and open the writers."""
        try:
            self.run_dir = make_run_dir(self.config)
            checkpoint.sweep(self.run_dir.parent)
            self.saver = saving.Saver(self.config, self.run_dir)
            self._announce()
            if self.lineage:
                checkpoint.write_lineage(self.run_dir, self.lineage)
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
        parameters = sum(p.numel() for p in self.policy.parameters())
        self._say(
            f"{self.config.env.env} on {self.source.text()}{parameters:,} parameters, {self.parts.device}, "
            f"{self.machine_use()}, run {self.run_dir}"
        )

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # standard error on a full disk, or a pipe that nobody reads any more
            self.console.print(line, highlight=False)

    def _settings(self) -> str:
        """Where the options come from that nobody gave: a preset, or defaults that suit the env."""
        name, chosen = self.config.run.preset, self.parts.defaults
        if name != "none":
            return f"Preset {name} ({all_presets()[name].reaches}); --preset none for plain defaults."
        values = ", ".join(f"{option} {shown(value)}" for option, value in chosen.items())
        return f"Defaults for {self.parts.traits}: {values}." if values else ""

    def machine_use(self) -> str:
        """Threads of each phase, and what is to be compiled, in a few words."""
        wanted = {"learner": self.algorithm.learner.compiled, "acting": self.source.compiles}
        compiled = " and ".join(what for what, is_wanted in wanted.items() if is_wanted)
        physics, threads = self.source.physics_threads, self.parts.threads
        used = "threads: " + (f"{physics} physics, " if physics else "")
        used += f"{threads.act} acting, {threads.learn} learning"
        return f"{used}, {compiled + ' to be compiled' if compiled else 'eager'}"


class Clock:
    """Wall time and speed since training started."""

    def __init__(self, trainer: Trainer):
        self._start = time.perf_counter()
        self._first_step, self._first_decision = trainer.source.global_step, trainer.source.decisions

    def metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """Beside those of the iteration that just ended."""
        seconds = time.perf_counter() - self._start
        found = {"wall_time": seconds, "steps_per_second": (metrics["global_step"] - self._first_step) / seconds}
        if "decisions" in metrics:
            found["decisions_per_second"] = (metrics["decisions"] - self._first_decision) / seconds
        return found


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
            options = resumed_config(source, None, options.set_options())
            if is_complete(source, options):
                return finished_result(source)
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
