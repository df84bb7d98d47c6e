"""Parts that a user brings along, such as an env, a network or a loss: objects in Python, `module:attribute` in text.

Options and checkpoints hold the name of such a part, never its code. An object that was given in Python is kept here
under its name for as long as the process lives; any other name is imported.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from proxima.errors import UsageError

_given: dict[str, Any] = {}


def name_part(part: Any) -> str:
    """The name under which `find_part` returns this object; text is a name already."""
    if isinstance(part, str):
        return part
    for name, known in _given.items():
        if known is part:
            return name
    # The parentheses: an object is not found again by the name of its class.
    named, suffix = (part, "") if hasattr(part, "__qualname__") else (type(part), "()")
    base = name = f"{named.__module__}:{named.__qualname__}{suffix}"
    count = 1
    while name in _given:  # two lambdas, or two objects of one class
        count += 1
        name = f"{base}#{count}"
    _given[name] = part
    return name


def is_given(name: str) -> bool:
    """Whether an object was given in Python under this name, in this process."""
    return name in _given


def only_in_python(name: str) -> bool:
    """Whether a name is that of an object that no import finds again: a lambda, an instance, a part of a script."""
    return name.startswith("__main__:") or any(mark in name for mark in "<(#")


def with_keywords(named: str | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Name and keywords of a part in a list of parts: a name, or `{name: keywords}`."""
    ((name, keywords),) = [(named, {})] if isinstance(named, str) else named.items()
    return name, keywords


def find_part(name: str, *, what: str = "") -> Any:
    """The object that was given under this name, or the import of `module:attribute`; a UsageError without one.

    `what` says in the error what it is for, for example "loss".
    """
    if name in _given:
        return _given[name]
    module, separator, path = name.partition(":")
    use = f"{what} is {name!r}: " if what else f"{name!r}: "
    if not (module and separator and path):
        raise UsageError(f"{use}it must be written module:attribute, for example mynets:LidarNet.")
    try:
        found = import_module(module)
    except ImportError as error:
        raise UsageError(f"{use}cannot import {module}: {error}.") from error
    try:
        for attribute in path.partition("#")[0].split("."):
            found = getattr(found, attribute)
    except AttributeError:
        again = " (it was given as an object in Python: give it again)" if only_in_python(name) else ""
        raise UsageError(f"{use}{module} has no {path}{again}.") from None
    return found
