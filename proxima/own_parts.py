"""Parts that a user brings along, such as an env, a network or a loss: objects in Python, `module:attribute` in text.

Options and checkpoints hold the name of such a part, never its code. An object that was given in Python is kept here
under its name for as long as the process lives; any other name is imported.

A checkpoint may come from a stranger, and a name in it could be that of any function. What only a checkpoint names is
therefore not returned, unless it is a class of envs, wrappers or networks, or defined in the current folder.
"""

import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from proxima.errors import UsageError

_given: dict[str, Any] = {}
_named_by_user: set[str] = set()
_named_by_checkpoint: set[str] = set()
_BASES = (
    "gymnasium.core:Env",
    "gymnasium.core:Wrapper",
    "gymnasium.vector.vector_env:VectorEnv",
    "proxima.envs.contract:VecEnv",
    "proxima.training.algorithm:Algorithm",
    "torch.nn.modules.module:Module",
)


def name_part(part: Any) -> str:
    """The name under which `find_part` returns this object; text is a name already."""
    if isinstance(part, str):
        return part
    for name, known in _given.items():
        if known is part:
            return name
    # The parentheses: an object is not found again by the name of its class.
    named, suffix = (part, "") if hasattr(part, "__qualname__") else (_maker(part), "()")
    base = name = f"{named.__module__}:{named.__qualname__}{suffix}"
    count = 1
    while name in _given:  # two lambdas, or two objects of one class
        count += 1
        name = f"{base}#{count}"
    _given[name] = part
    return name


def _maker(part: Any) -> Any:
    """What an object is named after: its class, or the function of a partial."""
    return part.func if isinstance(part, partial) else type(part)


def is_given(name: str) -> bool:
    """Whether an object was given in Python under this name, in this process."""
    return name in _given


def given_parts(options: Any) -> dict[str, Any]:
    """The objects that were given in Python, by name, of those named in these options: for other processes."""
    return {name: _given[name] for name in _names(options) if name in _given}


def give_parts(parts: Mapping[str, Any]) -> None:
    """Keep objects under these names: those of `given_parts` of another process."""
    _given.update(parts)


def only_in_python(name: str) -> bool:
    """Whether a name is that of an object that no import finds again: a lambda, an instance, a part of a script."""
    return name.startswith("__main__:") or any(mark in name for mark in "<(#")


def with_keywords(named: str | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Name and keywords of a part in a list of parts: a name, or `{name: keywords}`."""
    ((name, keywords),) = [(named, {})] if isinstance(named, str) else named.items()
    return name, keywords


def trust(options: Any) -> None:
    """The user named the parts in these options, in a file, a flag or Python."""
    _named_by_user.update(_names(options))


def distrust(options: Any) -> None:
    """A checkpoint named the parts in these options."""
    _named_by_checkpoint.update(_names(options))


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, str) and ":" in value:
        yield value
    elif isinstance(value, Mapping):
        for item in (*value.keys(), *value.values()):
            yield from _names(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _names(item)


def check_origin(name: str, part: Any) -> None:
    """Raise a UsageError for a part that only a checkpoint names, and that could be anything."""
    if name in _given or name in _named_by_user or name not in _named_by_checkpoint:
        return
    if not _is_class_of_ours(part) and not _is_in_current_folder(part):
        raise UsageError(
            f"the checkpoint names {name!r}, which is neither defined in the current folder nor a class of envs, "
            f"wrappers or networks: if you trust it, name it too (for an env: --env {name}), or run this in its folder."
        )


def _is_class_of_ours(part: Any) -> bool:
    """Whether it is derived from one of `_BASES`, which are known by name, because their modules are slow to import."""
    bases = part.__mro__ if isinstance(part, type) else ()
    return any(f"{base.__module__}:{base.__qualname__}" in _BASES for base in bases)


def _is_in_current_folder(part: Any) -> bool:
    """Whether it is defined in a file below the current folder that does not belong to Python or installed packages."""
    file = getattr(sys.modules.get(str(getattr(part, "__module__", ""))), "__file__", None)
    if file is None:
        return False
    path, installed = Path(file).resolve(), {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
    if any(path.is_relative_to(Path(folder).resolve()) for folder in installed):
        return False
    own = Path(__file__).resolve().parent
    return path.is_relative_to(Path.cwd()) and not path.is_relative_to(own) and "site-packages" not in path.parts


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
        raise UsageError(f"{use}cannot import {module}: {error}. Is it in the current folder, or installed?") from error
    try:
        for attribute in path.partition("#")[0].split("."):
            found = getattr(found, attribute)
    except AttributeError:
        again = " (it was given as an object in Python: give it again)" if only_in_python(name) else ""
        raise UsageError(f"{use}{module} has no {path}{again}.") from None
    check_origin(name, found)
    return found
