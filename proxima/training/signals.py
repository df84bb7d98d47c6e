"""Signals that end a run: stop at once where that is safe, a moment later where it is not."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from proxima.errors import StopRequest

# Of people and of schedulers; a second one of these ends the process at once.
_URGENT = ("SIGINT", "SIGTERM")
# A closed terminal; Slurm's and others' warnings that the time is nearly over.
_OTHERS = ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
_SIGNALS = [getattr(signal, name) for name in (*_URGENT, *_OTHERS) if hasattr(signal, name)]


class Interrupted(StopRequest):
    """A signal asked for the end."""

    def __init__(self, signum: int):
        super().__init__(signum)
        self.signum = signum

    @property
    def name(self) -> str:
        """The signal's name, such as SIGTERM."""
        return signal.Signals(self.signum).name


class StopSignals:
    """While entered, the first signal is noted, and raises `Interrupted` in the main thread once it is to be heard.

    It is heard from `hear` to `defer`, and not inside `shield`, which raises at its end. A second SIGINT or SIGTERM
    ends the process at once. SIGHUP, SIGUSR1 and SIGXCPU are left alone where they are ignored (`nohup`) or the calling
    program has a handler of its own. In other threads than the main one Python gets no signals, and this does nothing.
    """

    def __init__(self) -> None:
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
        """From now on a signal raises; so does one that came before."""
        self._deferred = False
        if self._received is not None:
            raise Interrupted(self._received)

    def defer(self) -> None:
        """From now on a first signal is only noted."""
        self._deferred = True

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Let what is inside finish before a signal is heard."""
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
            if is_urgent and signal.Signals(self._received).name in _URGENT:
                os._exit(128 + signum)
            if is_urgent:  # a warning came first: the run is stopping already, and this is not yet a second demand
                self._received = signum
            return
        self._received = signum
        if not self._deferred:
            raise Interrupted(signum)
