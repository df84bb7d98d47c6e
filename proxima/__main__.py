"""Entry point of `proxima` and `python -m proxima`; handles Ctrl-C from the first import on."""

# The C module behind `signal`, which imports enum: slow enough for a Ctrl-C to arrive during the import.
import _signal as signal  # type: ignore[import-not-found]
import os
import sys


def _exit_at_once(signum: int, _: object) -> None:
    os.write(2, b"proxima: interrupted.\n")
    os._exit(128 + signum)


def _limit_spinning() -> None:
    """Make waiting OpenMP threads sleep sooner, unless the user has configured it.

    GNU OpenMP spins 300,000 times first, which wastes cores on a machine with other work: PPO on images took nine times
    as long with two threads as with one, and with this setting three times. An idle machine loses nothing
    (docs/speed.md). PyTorch reads the variable when it is loaded.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def _import_from_here() -> None:
    """Make modules of the current folder importable, as `python -m` does, for `--env module:function`."""
    if not sys.flags.safe_path:
        sys.path.insert(0, "")


def main() -> int:
    """Run the command line. Until a command can clean up after itself, Ctrl-C exits at once."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_at_once)
    _limit_spinning()
    _import_from_here()
    from proxima.cli import main as run

    code = run()
    if "proxima.training.distributed" in sys.modules:
        from proxima.training.distributed import exit_rank

        exit_rank(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
