"""Signals that end a run: immediately where that is safe, else as soon as it is."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from proxima.errors import StopRequest

# From people and schedulers; the second of these ends the process immediately.
_URGENT = ("SIGINT", "SIGTERM")
# A closed terminal; warnings of Slurm and others that the time limit is near.
_OTHERS = ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
_SIGNALS = [getattr(signal, name) for name in (*_URGENT, *_OTHERS) if hasattr(signal, name)]


class Interrupted(StopRequest):
    """A signal requested the end of the run."""

    def __init__(self, signum: int):
        super().__init__(signum)
        self.signum = signum


class StopSignals:
    """A context in which the first signal raises `Interrupted` in the main thread, as soon as that is allowed.

    It is allowed between `hear` and `defer`, except inside `shield`, which raises at its end. A second SIGINT or
    SIGTERM ends the process immediately. SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU are not handled if they are ignored
    (`nohup`) or the calling program has its own handler. Outside the main thread, which receives the signals, this does
    nothing.
    """

    def __init__(self, *, is_patient: bool = False) -> None:
        """With `is_patient`, a second signal is ignored: torchrun and a scheduler may both send the first."""
        self._is_patient = is_patient
        self._received: int | None = None
        self._deferred = True
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if number.name in _URGENT or signal.getsignal(number) is signal.SIG_DFL:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def hear(self) -> None:
        """Raise on signals from now on, and now if one was received before."""
        self._deferred = False
        if self._received is not None:
            raise Interrupted(self._received)

    def defer(self) -> None:
        """Only record a first signal from now on."""
        self._deferred = True

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Let the block finish before a signal raises."""
        self.defer()
        try:
            yield
        except BaseException:
            self._deferred = False
            raise
        self.hear()

    def _handle(self, signum: int, _: FrameType | None) -> None:
        is_urgent = signal.Signals(signum).name in _URGENT
        if self._received is not None:
            if is_urgent and signal.Signals(self._received).name in _URGENT and not self._is_patient:
                os._exit(128 + signum)
            if is_urgent:  # after a warning: the run is stopping already, and this is the first urgent one
                self._received = signum
            return
        self._received = signum
        if not self._deferred:
            raise Interrupted(signum)
