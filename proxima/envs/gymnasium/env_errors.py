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
