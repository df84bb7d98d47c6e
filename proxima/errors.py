"""Errors that a user can fix: the command prints them on one line, without a traceback."""


class ProximaError(Exception):
    """Base class; the command exits with `exit_code`."""

    exit_code = 1


class UsageError(ProximaError):
    """Bad input: a flag, a file, a value, a missing package."""

    exit_code = 2


class EnvFailure(ProximaError):
    """The envs cannot continue: workers keep crashing, or the physics is broken. The run saves and stops."""


class NonFiniteError(ProximaError):
    """A NaN or infinity in a reward, observation or loss. The run stops; the last good checkpoint is kept."""


class StopRequest(BaseException):
    """A request to stop, for example by a signal. A BaseException, so that `except Exception` does not swallow it.

    It can be raised in the middle of an env step; code that catches errors of envs must let it pass.
    """


def first_line(error: BaseException) -> str:
    """First line of an exception's message; of its `repr` if it has none."""
    try:
        return (str(error).strip() or repr(error)).splitlines()[0]
    except Exception:  # a __str__ that raises
        return f"a {type(error).__name__} without a readable message"


def one_line(error: BaseException) -> str:
    """Type and message of an exception in one line."""
    return f"{type(error).__name__}: {first_line(error)}"
