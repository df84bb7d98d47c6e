"""Ctrl-C and SIGTERM: stop at once where that is safe, a moment later where it is not."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal asked for the end. Not an Exception: nothing on the way up should swallow it."""

    def __init__(self, signum: int):
        super().__init__(signum)
        self.signum = signum

    @property
    def name(self) -> str:
        """SIGINT or SIGTERM."""
        return signal.Signals(self.signum).name


class StopSignals:
    """While entered, the first signal is noted, and raises `Interrupted` in the main thread once it is to be heard.

    It is heard from `hear` to `defer`, and not inside `shield`, which raises at its end. A second signal ends the
    process at once. In other threads than the main one Python gets no signals, and this does nothing.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._deferred = True
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
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
        if self._received is not None:
            os._exit(128 + signum)
        self._received = signum
        if not self._deferred:
            raise Interrupted(signum)
