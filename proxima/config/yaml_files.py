"""Reads untrusted YAML, with limits on size, depth and expansion so that no file can hang a command.

PyYAML's safe loader executes nothing, but it recurses as deep as the document nests, and expands aliases, which can
grow exponentially ("billion laughs").
"""

from pathlib import Path
from typing import Any

import yaml

from proxima.errors import UsageError

MAX_BYTES = 4 * 2**20
MAX_DEPTH = 50
MAX_NODES = 200_000
"""Values in a document; those behind an alias count at each use."""
MAX_DIGITS = 1000
"""Digits of a number: PyYAML parses base-60 numbers (`1:30:00`) in quadratic time."""
_OF_NUMBERS = "0123456789abcdefABCDEFx_:+-."
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _OnceLoader(_LOADER):  # type: ignore[misc, valid-type]
    """Refuses a mapping with a key twice; PyYAML would silently use the last."""

    def flatten_mapping(self, node: Any) -> None:
        """Called for every mapping, and before keys are merged into it (`<<`), which may be there twice."""
        if getattr(node, "is_checked", False):
            return super().flatten_mapping(node)
        node.is_checked, known = True, set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in known:
                    raise yaml.MarkedYAMLError(problem=f"{key.value[:40]} is given twice", problem_mark=key.start_mark)
                known.add((key.tag, key.value))
        return super().flatten_mapping(node)


def read_yaml(path: Path, *, what: str) -> Any:
    """The content of a YAML file; errors are UsageErrors that begin with `what` and the path."""
    try:
        if path.exists() and not path.is_file():  # reading a FIFO would block forever
            raise UsageError(f"{what} {path} is not a regular file.")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise UsageError(f"{what} {path} has {size:,} bytes, but at most {MAX_BYTES:,} are read.")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {path} is not UTF-8 text: {error.reason} at byte {error.start}.") from None
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:  # a NUL in the path
        raise UsageError(f"{what} {str(path)!r} cannot be read: {error}.") from None
    return parse_yaml(text, source=f"{what} {path}")


def parse_yaml(text: str, *, source: str) -> Any:
    """The content of a YAML text; errors are UsageErrors that begin with `source`."""
    if len(text) > MAX_BYTES:
        raise UsageError(f"{source} has {len(text):,} characters, but at most {MAX_BYTES:,} are read.")
    try:
        _check_limits(text, source)
        return yaml.load(text, Loader=_OnceLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise UsageError(f"{source} is not valid YAML{where}: {problem}.") from None
    except UsageError:
        raise
    except Exception as error:  # a date that does not exist; for `!!bool maybe` PyYAML raises a KeyError
        raise UsageError(f"{source} has a value that cannot be read: {type(error).__name__}: {error}.") from None


def _check_limits(text: str, source: str) -> None:
    """Check the limits on the stream of parser events, in which nothing is nested or expanded yet."""
    nodes = 0
    sizes: dict[str | None, int] = {}  # of the collections with an anchor
    open_nodes: list[tuple[str | None, int]] = []  # anchor of each open collection, and the count at its start
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_nodes):
                raise UsageError(f"{source} has a value that contains itself (*{event.anchor}).")
            nodes += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, nodes))
            nodes += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            sizes[anchor] = nodes - before
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            if len(event.value) > MAX_DIGITS and not event.value.strip(_OF_NUMBERS):
                raise UsageError(f"{source} has a number of more than {MAX_DIGITS:,} digits: it cannot be read.")
        if len(open_nodes) > MAX_DEPTH:
            raise UsageError(f"{source} nests deeper than {MAX_DEPTH} levels.")
        if nodes > MAX_NODES:
            raise UsageError(f"{source} has more than {MAX_NODES:,} values, which is the limit.")


def is_yaml(value: Any) -> bool:
    """Whether a file can hold this value."""
    try:
        yaml.safe_dump(value)
    except yaml.representer.RepresenterError:
        return False
    return True
