"""The command `proxima`, and `python -m proxima`: Ctrl-C works from the first import on."""

import os
import signal
import sys
from typing import Any


def _end_at_once(signum: int, _: Any) -> None:
    os.write(2, b"proxima: interrupted.\n")
    os._exit(128 + signum)


def main() -> int:
    """Run the command line. Until a command is ready to clean up after itself, Ctrl-C ends the process at once."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    from proxima.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
