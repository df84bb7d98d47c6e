"""Settings in nested dataclasses: parsed from mappings, as files and `env_kwargs` have them, and back.

A field is a number (with a range, see `number`), text, true or false, one of some words, a tuple, another dataclass, or
a dict of them. `| None` allows none.
"""

import dataclasses
import itertools
import math
import typing
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from proxima.config.options import nearest
from proxima.errors import UsageError


def number(default: float, *, least: float = 0.0, above: float | None = None, most: float | None = None) -> Any:
    """A field for a number of at least `least`, or above `above`, and at most `most`."""
    return field(default=default, metadata={"least": least, "above": above, "most": most})


def settings_table(kind: Any, where: str = "") -> list[str]:
    """Markdown rows of every setting of a dataclass, with its default and the text below its field in the source."""
    import ast
    import inspect
    import textwrap

    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    texts = {
        field.target.id: inspect.cleandoc(str(text.value.value)).replace("\n", " ")
        for field, text in itertools.pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
    rows, hints = [], typing.get_type_hints(kind)
    for f in dataclasses.fields(kind):
        default = getattr(kind(), f.name)
        if dataclasses.is_dataclass(default):
            rows += settings_table(hints[f.name], f"{where}{f.name}.")
        else:
            rows.append(f"| `{where}{f.name}` | {_short(default)} | {texts.get(f.name, '')} |")
    return rows


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(item)}" for name, item in value.items())
    if isinstance(value, tuple):
        return " ".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def plain(value: Any) -> Any:
    """Dataclasses and tuples as mappings and lists; `build` reads them back."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the entries of `over`, mappings within mappings too."""
    both = {
        key: merged(base[key], over[key])
        for key in base.keys() & over.keys()
        if isinstance(base[key], Mapping) and isinstance(over[key], Mapping)
    }
    return {**base, **over, **both}


def build(kind: Any, content: Any, where: str = "") -> Any:
    """A dataclass of type `kind` from nested mappings; a UsageError names a wrong key or value by its path."""
    if not isinstance(content, Mapping):
        raise UsageError(f"{where or 'the file'} is {content!r}, but it must hold 'name: value' lines.")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    values = {}
    for key, value in content.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in fields:
            raise UsageError(f"there is no setting {path}.{nearest(str(key), fields)}")
        values[key] = _value(hints[key], value, path, fields[key].metadata)
    return kind(**values)


def _value(kind: Any, value: Any, path: str, limits: Mapping[str, Any]) -> Any:
    if dataclasses.is_dataclass(kind):
        return build(kind, value if value is not None else {}, path)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise UsageError(f"{path} is {value!r}, but it must hold 'name: value' lines.")
        return {str(name): _value(args[1], item, f"{path}.{name}", {"least": 0.0}) for name, item in value.items()}
    if origin is tuple:
        items = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not items:
            raise UsageError(f"{path} is {value!r}, but it must be a list of numbers.")
        return tuple(_value(args[0], item, path, {"least": 1} if args[0] is int else {}) for item in items)
    if origin is Literal:
        if str(value) not in args:
            raise UsageError(f"{path} is {value!r}, but it must be one of {', '.join(args)}.")
        return str(value)
    if type(None) in args:
        if value is None or str(value).lower() == "none":
            return None
        return _value(args[0], value, path, limits or {"least": 0.0})
    if kind is bool:
        if str(value).lower() not in ("true", "false"):
            raise UsageError(f"{path} is {value!r}, but it must be true or false.")
        return str(value).lower() == "true"
    if kind is str:
        return str(value)
    return _checked_number(kind, value, path, limits)


def _checked_number(kind: type, value: Any, path: str, limits: Mapping[str, Any]) -> Any:
    is_cut = kind is int and isinstance(value, float) and not value.is_integer()
    try:
        number = math.nan if isinstance(value, bool) or is_cut else kind(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{path} is {value!r}, but it must be a {'whole ' if kind is int else ''}number.")
    if (above := limits.get("above")) is not None:
        if number <= above:
            raise UsageError(f"{path} is {number:g}, but it must be above {above:g}.")
    elif (least := limits.get("least")) is not None and number < least:
        raise UsageError(f"{path} is {number:g}, but it must be at least {least:g}.")
    if (most := limits.get("most")) is not None and number > most:
        raise UsageError(f"{path} is {number:g}, but it must be at most {most:g}.")
    return number
