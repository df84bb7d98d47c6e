"""Errors that a user can act on: the command prints them as one line, without a traceback."""


class ProximaError(Exception):
    """Something the user can mend. `exit_code` is what the command returns."""

    exit_code = 1


class UsageError(ProximaError):
    """Bad input: a flag, a file, a value, a missing package. Nothing has been started."""

    exit_code = 2


class EnvFailure(ProximaError):
    """The environments cannot go on: workers keep dying, or the physics is broken. The run saves and stops."""


class NonFiniteError(ProximaError):
    """A NaN or an infinity in a reward, an observation or a loss. The run stops; the last good checkpoint stays."""


class StopRequest(BaseException):
    """Somebody asked the program to stop, by a signal for example. Not an Exception: nothing on the way up swallows it.

    It may be raised in the middle of an env's step; whoever catches what env code raises lets this one pass.
    """
