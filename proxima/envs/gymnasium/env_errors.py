"""Which exceptions from env code are failures of the env, and which are requests to stop the program.

No torch here: worker processes import this file.
"""

import signal
from typing import Any

from proxima.errors import StopRequest


def asks_to_stop(error: BaseException) -> bool:
    """Whether an exception from env code is a request to stop, and no failure of the env: it must be raised again.

    An env may raise anything, including `SystemExit` and subclasses of `BaseException`. A `KeyboardInterrupt` is the
    user's Ctrl-C, unless SIGINT is ignored, as in worker processes: there only the env can have raised it.
    """
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    return isinstance(error, (StopRequest, GeneratorExit))


def close_env(env: Any) -> None:
    """Close an env that is no longer needed; what it raises is ignored, except a request to stop."""
    try:
        env.close()
    except BaseException as error:
        if asks_to_stop(error):
            raise


def first_line(error: BaseException) -> str:
    """First line of an exception's message; of its `repr` if it has none."""
    try:
        return (str(error).strip() or repr(error)).splitlines()[0]
    except Exception:  # a __str__ that raises
        return f"a {type(error).__name__} without a readable message"


def one_line(error: BaseException) -> str:
    """Type and message of an exception in one line."""
    return f"{type(error).__name__}: {first_line(error)}"
