"""How an option is declared, parsed and documented. The options themselves are in `sections.py`."""

import ast
import dataclasses
import difflib
import inspect
import math
import operator
import struct
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union

from proxima.config.yaml_files import is_yaml, parse_yaml
from proxima.errors import UsageError
from proxima.own_parts import name_part

_SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9}
_LARGEST_INT = 2**63 - 1
_PLAIN = (str, dict, list, tuple, set, bool, int, float, type(None))
"""Types of values that are no parts of a user's."""
_TRUE, _FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}
_COMPARISONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}

Resume = Literal["free", "reported", "fixed"]
"""What a resume does with a value that differs from the checkpoint's: use it, use and report it, or refuse it."""


def option(
    default: Any,
    *,
    aliases: Iterable[str] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    words: Mapping[str, int] | None = None,
    resume: Resume = "reported",
    compared: bool = True,
    part: bool = False,
) -> Any:
    """A dataclass field with its aliases and range.

    `words` are accepted for numbers: {"all": 0}. `compared` is False where it does not affect what is learned:
    `proxima compare` groups runs that differ only there. With `part`, objects of the user's own are accepted too, alone
    or in a mapping or list (there also with keywords), and stored by name (`own_parts.py`).
    """
    limits = {">=": at_least, ">": above, "<=": at_most, "<": below}
    bounds = {symbol: limit for symbol, limit in limits.items() if limit is not None}
    metadata: dict[str, Any] = {"aliases": tuple(aliases), "bounds": bounds, "words": dict(words or {})}
    metadata |= {"resume": resume, "compared": compared, "part": part}
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
    bounds: dict[str, float]
    words: dict[str, int]
    resume: Resume
    compared: bool
    part: bool
    help: str

    @property
    def flag(self) -> str:
        """The flag of its canonical name."""
        return "--" + self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed words; empty if it has no fixed set of them."""
        inner = _without_none(self.type)
        return typing.get_args(inner) if typing.get_origin(inner) is Literal else ()

    @property
    def is_list(self) -> bool:
        """Whether it takes several values."""
        return typing.get_origin(_without_none(self.type)) is list

    def parse(self, value: Any, *, source: str = "") -> Any:
        """Convert text or a YAML value to the option's type, and check its range.

        `source` names the origin of the value in error messages: a file, or the flag itself.
        """
        label = source if source.startswith("--") else f"{source}: {self.name}" if source else self.name
        if self.part and self.is_list:
            return _named_parts(value, label)
        value = _with_names(value) if self.part else value
        if self.part and self.choices and ":" in str(value):  # a part of the user's own, besides the fixed choices
            return value
        parsed = self._from_words(value, label) if self.words else _convert(value, self.type, label)
        for number in parsed if isinstance(parsed, list) else [] if parsed is None else [parsed]:
            for symbol, limit in self.bounds.items():
                if not _COMPARISONS[symbol](number, limit):
                    raise UsageError(f"{label} is {number:g}, but it must be {symbol} {limit:g}.")
        return parsed

    def _from_words(self, value: Any, label: str) -> Any:
        word = str(value).strip().lower()
        try:
            return self.words[word] if word in self.words else _convert(value, self.type, label)
        except UsageError as error:
            raise UsageError(f"{str(error).removesuffix('.')}, or {' or '.join(self.words)}.") from None


def _named_parts(value: Any, where: str) -> list[str | dict[str, Any]]:
    """A list of parts as names, or as mappings `{name: keywords}`, which may also be given as `(part, keywords)`."""
    if isinstance(value, str):
        value = (
            parse_yaml(value, source=where) if value.lstrip()[:1] in ("[", "{") else value.replace(" ", "").split(",")
        )
    if value is None:
        return []
    is_many = isinstance(value, list) or (isinstance(value, tuple) and not _is_pair(value))
    return [_named_part(item, where) for item in (value if is_many else [value])]


def _named_part(item: Any, where: str) -> str | dict[str, Any]:
    given = item
    if isinstance(item, str) and item.lstrip().startswith("{"):
        item = parse_yaml(item, source=where)
    if isinstance(item, dict) and len(item) == 1:
        item = next(iter(item.items()))
    if _is_pair(item):
        name, keywords = name_part(item[0]), _without_numpy(dict(item[1] or {}))
        if not is_yaml(keywords):
            raise UsageError(
                f"{where}: the keywords of {name} are {shown(keywords)}, which a file cannot hold: give a function "
                "that makes it with them."
            )
        return {name: keywords}
    if not isinstance(item, str) and isinstance(item, _PLAIN):
        raise UsageError(
            f"{where} is {shown(given)}, but it must be module:Class, or with keywords {{module:Class: {{skip: 4}}}}."
        )
    return name_part(item)


def _is_pair(item: Any) -> bool:
    """Whether this is a part with its keywords."""
    return isinstance(item, tuple) and len(item) == 2 and (item[1] is None or isinstance(item[1], Mapping))


def options_of(section: str, cls: type) -> list[Option]:
    """The options of one section, in order of declaration; every field was made by `option`."""
    hints, docs, defaults = typing.get_type_hints(cls), _field_docs(cls), vars(cls())
    return [
        Option(section, name=f.name, type=hints[f.name], default=defaults[f.name], help=docs[f.name], **f.metadata)
        for f in dataclasses.fields(cls)
    ]


def nearest(name: str, known: Iterable[str]) -> str:
    """A `Did you mean` sentence with the most similar name, or an empty string."""
    by_bare = {word.lstrip("-").replace("-", "_"): word for word in known}
    bare = name.lstrip("-").replace("-", "_")
    match = difflib.get_close_matches(bare, by_bare, n=1, cutoff=0.75)
    if not match and len(bare) > 2:  # an option by its first words: entropy for entropy_coef
        match = [word for word in by_bare if word.startswith(bare + "_")][:1]
    return f" Did you mean {by_bare[match[0]]}?" if match else ""


def shown(value: Any) -> str:
    """A value for an error message, shortened if it is long."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"a number of {len(hex(value)) - 2} hexadecimal digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@cache
def _field_docs(cls: type) -> dict[str, str]:
    """The docstring under every field, from the source, since Python does not keep it."""
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
    """`value` as `kind`; a UsageError that begins with `where` if it is not one."""
    inner = _without_none(kind)
    if inner is not kind:
        # A flag that takes several values comes as a list: `--critic-hidden-sizes none`.
        single = value[0] if isinstance(value, list) and len(value) == 1 else value
        if single is None or str(single).lower() in ("none", "null", ""):
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
    """Text that is valid in the name of a file."""
    if value is None or isinstance(value, dict | list | tuple | set):
        raise UsageError(f"{where} is {shown(value)}, but it must be text.")
    text = str(value)
    if "\0" in text or text != text.encode(errors="ignore").decode():
        raise UsageError(f"{where} is {shown(text)}, but it must be text without NUL characters, in UTF-8.")
    return text


def _with_names(value: Any) -> Any:
    """Objects that are not plain data as their names, also inside mappings and lists."""
    if isinstance(value, Mapping):
        return {key: _with_names(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_names(item) for item in value]
    return value if isinstance(value, _PLAIN) or hasattr(value, "tolist") else name_part(value)


def _without_numpy(value: Any) -> Any:
    """NumPy scalars and arrays as Python numbers and lists, which YAML can write."""
    if isinstance(value, dict):
        return {key: _without_numpy(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def _number(value: Any, kind: type, where: str) -> Any:
    """A number written as 2000000, 2_000_000, 2e6 or 2M."""
    text = str(value).strip().replace("_", "").lower() if not isinstance(value, int) or abs(value) < 10**30 else "inf"
    scale = _SUFFIXES.get(text[-1:], 1.0)
    expected = "a whole number" if kind is int else "a number"
    try:
        is_whole = kind is int and text.lstrip("+-").isdigit() and len(text) < 30
        parsed = int(text) if is_whole else float(text[:-1] if scale != 1.0 else text) * scale
    except ValueError:
        parsed = math.nan
    if kind is int and abs(parsed) > _LARGEST_INT:
        raise UsageError(f"{where} is {shown(value)}, but it must be a whole number below 2**63.")
    if math.isnan(parsed) or (kind is int and parsed != int(parsed)):
        raise UsageError(f"{where} is {shown(value)}, but it must be {expected}.")
    return int(parsed) if kind is int else _fits_float32(float(parsed), where)


def _fits_float32(number: float, where: str) -> float:
    """Refuse numbers that overflow to infinity or underflow to 0 in float32, the type of the networks."""
    try:
        rounded = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        rounded = math.inf
    if math.isinf(rounded):
        raise UsageError(f"{where} is {number:g}, but it must be a finite number of at most 3.4e38 (float32).")
    if rounded == 0.0 and number != 0.0:
        raise UsageError(f"{where} is {number:g}, but as float32 that is 0: use at least 1.4e-45.")
    return number
