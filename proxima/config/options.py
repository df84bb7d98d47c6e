"""How an option is declared, read from text and documented: the machinery under `config.py`.

Not here: any option of Proxima itself.
"""

import ast
import dataclasses
import difflib
import inspect
import math
import struct
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union

from proxima.config.yaml_files import parse_yaml
from proxima.errors import UsageError

_SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9}
_LARGEST_INT = 2**63 - 1
_TRUE, _FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}

Resume = Literal["free", "reported", "fixed"]
"""What becomes of a value that differs from the checkpoint's: used silently, used and reported, or refused."""


def option(
    default: Any,
    *,
    aliases: Iterable[str] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    resume: Resume = "reported",
    compared: bool = True,
) -> Any:
    """A dataclass field with its accepted other names and its range.

    Args:
        default: its value where nothing is given.
        aliases: other names that are accepted for it.
        at_least: the range, as `above`, `at_most` and `below`.
        above: see `at_least`.
        at_most: see `at_least`.
        below: see `at_least`.
        resume: whether a resume may change it.
        compared: whether it matters for what is learned; runs that differ only in other options are seeds of one group.
    """
    metadata = {
        "aliases": tuple(aliases),
        "bounds": {">=": at_least, ">": above, "<=": at_most, "<": below},
        "resume": resume,
        "compared": compared,
    }
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Option:
    """One option as the command line and the YAML reader see it."""

    section: str
    name: str
    type: Any
    default: Any
    aliases: tuple[str, ...]
    bounds: dict[str, float | None]
    resume: Resume
    compared: bool
    help: str

    @property
    def flag(self) -> str:
        """The canonical command-line spelling."""
        return "--" + self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed words, empty when the option takes anything of its type."""
        inner = _without_none(self.type)
        return typing.get_args(inner) if typing.get_origin(inner) is Literal else ()

    @property
    def is_list(self) -> bool:
        """Whether it takes several values."""
        return typing.get_origin(_without_none(self.type)) is list

    def parse(self, value: Any, *, source: str = "") -> Any:
        """Turn text or a YAML value into the option's type, and hold it against its range.

        `source` is where the value comes from, for the message of an error: a file, or the flag itself.
        """
        label = source if source.startswith("--") else f"{source}: {self.name}" if source else self.name
        parsed = _convert(value, self.type, label)
        for number in parsed if isinstance(parsed, list) else [] if parsed is None else [parsed]:
            self._check_bounds(number, label)
        return parsed

    def _check_bounds(self, value: Any, label: str) -> None:
        for symbol, limit in self.bounds.items():
            if limit is None:
                continue
            holds = {">=": value >= limit, ">": value > limit, "<=": value <= limit, "<": value < limit}[symbol]
            if not holds:
                raise UsageError(f"{label} is {value:g}, but it must be {symbol} {limit:g}.")


def options_of(section: str, cls: type) -> list[Option]:
    """The options of one section, in order of declaration."""
    hints, docs = typing.get_type_hints(cls), _field_docs(cls)
    found = []
    for field in dataclasses.fields(cls):
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        found.append(
            Option(
                section=section,
                name=field.name,
                type=hints[field.name],
                default=default,
                aliases=field.metadata.get("aliases", ()),
                bounds=field.metadata.get("bounds", {}),
                resume=field.metadata.get("resume", "reported"),
                compared=field.metadata.get("compared", True),
                help=docs[field.name],
            )
        )
    return found


def nearest(name: str, known: Iterable[str]) -> str:
    """A `Did you mean` sentence, or an empty string when nothing is near."""
    by_bare = {word.lstrip("-").replace("-", "_"): word for word in known}
    bare = name.lstrip("-").replace("-", "_")
    match = difflib.get_close_matches(bare, by_bare, n=1, cutoff=0.75)
    if not match and len(bare) > 2:  # an option by its first words: entropy for entropy_coef
        match = [word for word in by_bare if word.startswith(bare + "_")][:1]
    return f" Did you mean {by_bare[match[0]]}?" if match else ""


def shown(value: Any) -> str:
    """A value for a message, in quotes, cut where it is long."""
    text = (
        repr(value)
        if not isinstance(value, int) or abs(value) < 10**30
        else f"a number of {len(hex(value)) - 2} hexadecimal digits"
    )
    return text if len(text) <= 60 else f"{text[:57]}..."


@cache
def _field_docs(cls: type) -> dict[str, str]:
    """The docstring under every field, which Python itself does not keep."""
    body = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            assert isinstance(after.value, ast.Constant)
            docs[field.target.id] = " ".join(str(after.value.value).split())
    return docs


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (Union, types.UnionType):
        return next(arg for arg in typing.get_args(kind) if arg is not type(None))
    return kind


def _convert(value: Any, kind: Any, where: str) -> Any:
    """Convert `value` to `kind`, or say what was expected."""
    inner = _without_none(kind)
    if inner is not kind and (value is None or str(value).lower() in ("none", "null", "")):
        return None
    origin = typing.get_origin(inner)
    if origin is Literal:
        words = {str(word).lower(): word for word in typing.get_args(inner)}
        text = ("on" if value else "off") if isinstance(value, bool) else str(value).lower()
        if text not in words:
            choices = ", ".join(words.values())
            raise UsageError(f"{where} is {shown(value)}, but it must be one of {choices}.{nearest(text, words)}")
        return words[text]
    if origin is list:
        given = value if isinstance(value, list | tuple) else [value]
        items = [part for item in given for part in str(item).strip("[]() ").replace(",", " ").split()]
        return [_convert(item, typing.get_args(inner)[0], where) for item in items]
    if origin is dict:
        mapping = parse_yaml(value, source=where) if isinstance(value, str) else _without_numpy(value)
        if not isinstance(mapping, dict):
            raise UsageError(f"{where} is {shown(value)}, but it must be a mapping such as '{{key: value}}'.")
        return mapping
    if inner is bool:
        text = str(value).lower()
        if text in _TRUE | _FALSE:
            return text in _TRUE
        raise UsageError(f"{where} is {shown(value)}, but it must be True or False.")
    if inner in (int, float):
        return _number(value, inner, where)
    return _text(value, where)


def _text(value: Any, where: str) -> str:
    """Text that files and folders can be named with."""
    if value is None or isinstance(value, dict | list | tuple | set):
        raise UsageError(f"{where} is {shown(value)}, but it must be text.")
    text = str(value)
    if "\0" in text or text != text.encode(errors="ignore").decode():
        raise UsageError(f"{where} is {shown(text)}, but it must be text without NUL characters, in UTF-8.")
    return text


def _without_numpy(value: Any) -> Any:
    """NumPy's scalars and arrays as Python's own, which YAML can write."""
    if isinstance(value, dict):
        return {key: _without_numpy(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def _number(value: Any, kind: type, where: str) -> Any:
    """A number as people write it: 2000000, 2_000_000, 2e6, 2M."""
    text = str(value).strip().replace("_", "").lower() if not isinstance(value, int) or abs(value) < 10**30 else "inf"
    scale = _SUFFIXES.get(text[-1:], 1.0)
    expected = "a whole number" if kind is int else "a number"
    try:
        if isinstance(value, bool):
            raise ValueError
        is_whole = kind is int and text.lstrip("+-").isdigit() and len(text) < 30
        parsed = int(text) if is_whole else float(text[:-1] if scale != 1.0 else text) * scale
    except ValueError:
        raise UsageError(f"{where} is {shown(value)}, but it must be {expected}.") from None
    if math.isnan(parsed):
        raise UsageError(f"{where} is {shown(value)}, but it must be {expected}.")
    if kind is int:
        if abs(parsed) > _LARGEST_INT:
            raise UsageError(f"{where} is {shown(value)}, but it must be a whole number below 2**63.")
        if parsed != int(parsed):
            raise UsageError(f"{where} is {shown(value)}, but it must be a whole number.")
        return int(parsed)
    return _as_float32_allows(float(parsed), where)


def _as_float32_allows(number: float, where: str) -> float:
    """Options become float32 in the networks, where a number may be infinite, or 0, that is not so here."""
    try:
        rounded = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        rounded = math.inf
    if math.isinf(rounded):
        raise UsageError(f"{where} is {number:g}, but it must be a finite number of at most 3.4e38 (float32).")
    if rounded == 0.0 and number != 0.0:
        raise UsageError(f"{where} is {number:g}, but as float32 that is 0: the smallest number is 1.4e-45.")
    return number
