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
