"""The command `proxima`, and `python -m proxima`: Ctrl-C works from the first import on."""

# The C module under `signal`: the import of enum by the latter is long enough for a Ctrl-C to fall into.
import _signal as signal  # type: ignore[import-not-found]
import os
import sys


def _end_at_once(signum: int, _: object) -> None:
    os.write(2, b"proxima: interrupted.\n")
    os._exit(128 + signum)


def _bound_spinning() -> None:
    """Let threads that wait for the others of their team sleep sooner, unless the user has chosen.

    GNU OpenMP spins 300,000 times first. On a machine with other work that burns whole cores: PPO on images took nine
    times as long with two threads as with one; with this it takes three times, and nothing is lost on an idle machine
    (docs/speed.md). It is read when PyTorch is loaded.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def main() -> int:
    """Run the command line. Until a command is ready to clean up after itself, Ctrl-C ends the process at once."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    _bound_spinning()
    from proxima.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
