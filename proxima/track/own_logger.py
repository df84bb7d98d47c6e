"""Loggers of the user's own: objects, or `module:Class`, with `write(step, metrics)` and `close()`."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from proxima.errors import UsageError, one_line
from proxima.own_parts import find_part, with_keywords


def make_logger(named: str | Mapping[str, Any], run_dir: Path) -> Any:
    """The logger of this name, or of `{name: keywords}`.

    A class or function is called, with the keywords, and with `run_dir` if it has such a parameter.
    """
    name, keywords = with_keywords(named)
    part = find_part(name, what="logger")
    logger = part if _is_logger(part) else _called(part, name, run_dir, keywords) if callable(part) else None
    if logger is None or not _is_logger(logger):
        raise UsageError(
            f"logger is {name!r}, but a logger needs the methods write(step, metrics) and close(): see "
            "docs/own-loop.md."
        )
    return logger


def _is_logger(part: Any) -> bool:
    return not inspect.isclass(part) and all(callable(getattr(part, method, None)) for method in ("write", "close"))


def _called(maker: Callable[..., Any], name: str, run_dir: Path, keywords: Mapping[str, Any]) -> Any:
    try:
        takes_folder = "run_dir" in inspect.signature(maker).parameters
        return maker(**({"run_dir": run_dir} if takes_folder else {}), **keywords)
    except Exception as error:
        raise UsageError(
            f"logger is {name!r}, but it cannot be made ({one_line(error)}): give its keywords, "
            f"{{{name}: {{...}}}}, or give it as an object, train(loggers=[...])."
        ) from error
