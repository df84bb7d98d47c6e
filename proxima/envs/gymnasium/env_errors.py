"""Which exceptions from env code mean that the env has failed, and which mean that the program is to stop.

No torch here: worker processes import this file.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from proxima.errors import StopRequest


def asks_to_stop(error: BaseException) -> bool:
    """Whether an exception that came out of env code is not the env's own failure and must be raised again.

    An env may raise anything, `SystemExit` and subclasses of `BaseException` included. A `KeyboardInterrupt` is the
    user's Ctrl-C, except where SIGINT is ignored, as in worker processes: there only the env can have raised it.
    """
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    return isinstance(error, (StopRequest, GeneratorExit))


@contextmanager
def env_errors_ignored() -> Iterator[None]:
    """For `close()` of an env that is not needed any more: whatever it raises, short of a request to stop."""
    try:
        yield
    except BaseException as error:
        if asks_to_stop(error):
            raise


def first_line(error: BaseException) -> str:
    """The message of an exception in one line; its `repr` where it has none."""
    try:
        return (str(error).strip() or repr(error)).splitlines()[0]
    except Exception:  # a __str__ that raises
        return f"a {type(error).__name__} without a readable message"
