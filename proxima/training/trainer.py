"""The training loop: builds the parts of a run, iterates, and calls writers, evaluation and saving."""

import contextlib
import copy
import inspect
import logging
import signal
import weakref
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from proxima.algorithms import find_algorithm
from proxima.compiling import float32_by_default, freeze_garbage, process_settings_kept
from proxima.config import Config, all_options, all_presets
from proxima.config.options import shown
from proxima.errors import ProximaError, UsageError
from proxima.own_parts import find_part
from proxima.runs import checkpoint
from proxima.runs.layout import make_run_dir, write_lineage
from proxima.runs.metrics import find_metric
from proxima.track.progress import make_console
from proxima.track.tracker import Tracker, check_writers, make_tracker
from proxima.track.wandb import new_run_id
from proxima.training import saving, setup
from proxima.training.algorithm import Algorithm
from proxima.training.clock import Clock
from proxima.training.distributed import LostRank, this_rank
from proxima.training.examiner import Examiner
from proxima.training.fine_tuning import start_from
from proxima.training.result import TrainResult
from proxima.training.signals import Interrupted, StopSignals

log = logging.getLogger("proxima")

OnIteration = Callable[["Trainer", dict[str, float]], object]


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
        self.ranks = this_rank()
        config.track.quiet |= not self.ranks.is_first
        self.console = make_console(quiet=True) if config.track.quiet else console or make_console()
        config.validate()
        check_writers(config.track)
        with float32_by_default():
            self.parts = setup.build_parts(config, self.ranks)
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
        threads = self.parts.threads.evaluate
        self.examiner = Examiner(config, self.policy, self.algorithm.networks, step=0, threads=threads)
        self.iteration = 0
        self.lineage: list[str] = []
        self.init_from: str | None = None
        """The checkpoint whose weights a fine-tuned run started with."""
        self.wandb_run = new_run_id() if config.track.wandb is not None else None
        """Id of the run in Weights & Biases; a resume continues it."""
        self.saver: saving.Saver | None = None
        self.gathers_states: bool | None = None
        """Whether rank 0 has the states of all ranks after every iteration; None before the first."""
        self._loop: weakref.ref[Generator[dict[str, float], None, None]] | None = None
        self._has_iterated = False
        self._logged: dict[str, float] = {}
        self._own_metrics: set[str] = set()
        if config.checkpoint.save_checkpoint and config.checkpoint.save_optimizer:
            obstacle = self.source.try_exactness()
            notice = f"A resume of this run will start new episodes, and so not be exact: {config.env.env}: {obstacle}."
            self.notices += [notice] if obstacle else []

    def run(self, on_iteration: OnIteration | None = None) -> TrainResult:
        """Train to the end, or until a signal; saves a checkpoint of the last iteration in any case.

        `on_iteration(trainer, metrics)` is called after every iteration, and stops the run by returning False.
        """
        with contextlib.closing(self.iterations()) as iterations:
            for metrics in iterations:
                wish = None if on_iteration is None else on_iteration(self, metrics)
                if isinstance(wish, bool | np.bool_) and not wish:
                    break
        return self.result()

    def iterations(self) -> Generator[dict[str, float], None, None]:
        """Train, and yield the metrics of every iteration; leave the loop to stop early. For one loop only.

        Signals, errors and an early stop save a checkpoint of the last iteration. It is saved, and its metrics are
        written, after the body of the loop, so that both include what the body changed and logged. If the iterator is
        kept in a variable, an early stop is complete when that is closed, or `close` is called.
        """
        if self._loop is not None:
            raise UsageError("iterations() was called before: a run has one loop. To train on, resume its checkpoint.")
        loop = self._iterations()
        self._loop = weakref.ref(loop)  # leaving the loop ends it at once, since nobody else holds it
        return loop

    def _iterations(self) -> Generator[dict[str, float], None, None]:
        self._fine_tune()
        boundary = saving.snapshot(self)
        with process_settings_kept(), StopSignals(is_patient=self.ranks.exchanges) as signals:
            tracker = self._start()
            assert self.saver is not None
            try:
                signals.hear()
                if not self.iteration:
                    self.algorithm.begin()
                clock, due = Clock(self), saving.Due(self.config, self.source.global_step)
                while self.source.global_step < self.config.run.total_timesteps:
                    metrics, is_best = self.iterate(), False
                    if self.ranks.is_first:
                        is_best = self.examiner.examine(self.source.global_step, self.run_dir, self.source.hold)
                    metrics |= self.examiner.metrics
                    metrics |= clock.metrics(metrics)
                    saves = is_best | self.source.wants_checkpoint() | due(self.source.global_step)
                    # The body of the loop decides the same on all ranks.
                    metrics, saves = self.ranks.from_first((metrics, saves))
                    self._own_metrics, is_left = set(metrics), False
                    signals.defer()  # the caller's code between two iterations is not interrupted
                    try:
                        yield dict(metrics)
                    except GeneratorExit:
                        is_left = True
                    with signals.shield():
                        boundary = saving.snapshot(self)
                        tracker.write(self._take_logged() | metrics)
                        if is_left:
                            break
                        if saves:
                            self.saver.save_in_background(boundary)
                with signals.shield():
                    self.saver.save(boundary, is_last=True)
            except LostRank as lost:
                signals.defer()
                self.saver.writes = self.ranks.takes_over()
                raise ProximaError(f"{lost}; {self._saved_text(boundary)}") from None
            except (Interrupted, KeyboardInterrupt) as stop:  # an env can raise the latter; a real Ctrl-C is the former
                signals.defer()
                raise self._interrupted(getattr(stop, "signum", signal.SIGINT), boundary) from None
            except BaseException as error:
                signals.defer()
                self.ranks.abandon()
                saved = self.saver.save(boundary, is_last=True, is_broken=True)
                if isinstance(error, Exception):
                    raise
                what = f"stopped by {type(error).__name__}: {error}" if str(error) else type(error).__name__
                raise ProximaError(f"{what}; the last checkpoint is {saved or 'none'}.") from error
            finally:
                signals.defer()
                tracker.close()
                self.close()
        if boundary is not None and self.ranks.is_first and self.saver.iteration != self.iteration:
            raise ProximaError(
                f"trained to the end, but the end could not be saved in {self.run_dir}; the last checkpoint is "
                f"{self.saver.last or 'none'}."
            )

    # For the body of the loop ----------------------------------------------------------------------------------------

    @property
    def learning_rate(self) -> float:
        """The policy's learning rate. Setting it ends a linear or cosine schedule; an adaptive one goes on from it.

        A resume continues with what was set, unless it is given another learning_rate or lr_schedule.
        """
        return float(self.algorithm.learner.learning_rate)

    @learning_rate.setter
    def learning_rate(self, learning_rate: float) -> None:
        all_options()["learning_rate"].parse(learning_rate)
        self.algorithm.learner.set_learning_rate(learning_rate)
        self._state_changed()

    def call_envs(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of every Gymnasium env and return a list of results, or call that of a vector env.

        What the method changes survives a resume where it is part of the envs' saved state. An env that crashes is
        replaced by one that does not know of the call.
        """
        results = self.source.call_envs(method, *args, **kwargs)
        self._state_changed()
        return results

    def log(self, numbers: Mapping[str, float]) -> None:
        """Add numbers to the metrics of this iteration, in files and loggers; names such as `my/number` make groups."""
        for name, value in numbers.items():
            if name in self._own_metrics:
                raise UsageError(f"log: {name!r} is a metric of the run already: choose another name.")
            try:
                self._logged[name] = float(value)
            except (TypeError, ValueError):
                raise UsageError(f"log: {name} is {shown(value)}, but it must be a number.") from None

    def save(self) -> Path:
        """Save a checkpoint now, from the body of the loop, and return its folder."""
        if self.saver is None or not self.config.checkpoint.save_checkpoint:
            raise UsageError("save is for the body of the loop, in a run whose save_checkpoint is not False.")
        saved = self.saver.save(saving.snapshot(self))
        saved, iteration = self.ranks.from_first((saved, self.saver.iteration))
        if saved is None or iteration != self.iteration:
            raise ProximaError(f"iteration {self.iteration} could not be saved in {self.run_dir}.")
        return saved

    def _state_changed(self) -> None:
        if self.saver is not None:
            self.saver.forget()

    def _take_logged(self) -> dict[str, float]:
        logged, self._logged = self._logged, {}
        return logged

    # The parts of a run ----------------------------------------------------------------------------------------------

    def _fine_tune(self) -> None:
        """Start with the weights of another run, unless this one is resumed."""
        if self.config.run.init_from is not None and not self.lineage:
            try:
                found, notice = start_from(self.algorithm, self.config.run.init_from)
            except BaseException:
                self.close()
                raise
            self.init_from = str(found)
            self.notices.append(notice)

    def iterate(self) -> dict[str, float]:
        """Apply the schedules, and do one iteration of the algorithm."""
        progress = min(1.0, self.source.global_step / self.config.run.total_timesteps)
        with float32_by_default():
            self.algorithm.set_progress(progress)
            metrics = self.algorithm.iterate()
            self.algorithm.make_equal()
        if not self._has_iterated:  # since the start or the resume; most is compiled by now
            freeze_garbage()
            self._has_iterated = True
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
        assert self.saver is not None
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
        """Complete an early stop and close the envs; may be called twice."""
        loop = None if self._loop is None else self._loop()
        if loop is not None and inspect.getgeneratorstate(loop) != inspect.GEN_RUNNING:
            loop.close()
        self.source.close()
        self.examiner.close()

    def _interrupted(self, signum: int, boundary: saving.Boundary | None) -> ProximaError:
        error = ProximaError(f"stopped by {signal.Signals(signum).name}; {self._saved_text(boundary)}")
        error.exit_code = 128 + signum
        return error

    def _saved_text(self, boundary: saving.Boundary | None) -> str:
        """Save the last iteration of a broken run; returns where it is and how to continue, in words."""
        assert self.saver is not None
        self.ranks.abandon()
        saved = self.saver.save(boundary, is_last=True, is_broken=True)
        if not self.saver.writes:
            return "rank 0 saves."
        if saved is None:
            return "nothing was saved."
        if not self.config.checkpoint.save_optimizer:
            return f"the policy is saved in {saved} (no optimizer: no resume)."
        start = self.ranks.launcher
        return (
            f"iteration {self.saver.iteration} is saved in {saved}; continue with: {start}proxima resume {self.run_dir}"
        )

    # Output ----------------------------------------------------------------------------------------------------------

    def _start(self) -> Tracker:
        """Make the run folder, print the first line, and open the writers."""
        try:
            self.run_dir = self.ranks.from_first(make_run_dir(self.config) if self.ranks.is_first else None)
            self.saver = saving.Saver(self.config, self.run_dir, self.ranks)
            if not self.ranks.is_first:
                return Tracker([])
            checkpoint.sweep(self.run_dir.parent)
            self._announce()
            if self.lineage:
                write_lineage(self.run_dir, self.lineage)
            return make_tracker(
                self.run_dir,
                self.config.track,
                config=self.config.to_yaml(),
                wandb_run=self.wandb_run,
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
        used += f" on each of {self.ranks.size} ranks" if self.ranks.exchanges else ""
        return f"{used}, {compiled + ' to be compiled' if compiled else 'eager'}"
