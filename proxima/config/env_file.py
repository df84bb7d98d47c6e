"""Reads env files: the same settings as YAML or as XML.

In XML an element's attributes and child elements are its entries, and an element with text alone is a value:
`<control rate="30"><kp>300</kp></control>` is `control: {rate: 30, kp: 300}`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from proxima.config.muscle_settings import MYO_MODELS, OWN_MODEL, MuscleSettings, parse_settings, to_dict
from proxima.config.nested import merged
from proxima.config.presets import FOLDER
from proxima.config.yaml_files import MAX_BYTES, MAX_DEPTH, read_yaml
from proxima.errors import UsageError

SUFFIXES = (".yaml", ".yml", ".xml")
MUSCLE_ENV = "proxima/Muscle-v0"
"""The env that an env file describes."""
FIXED_SETTINGS = ("model", "control.mode", "hidden_sizes")
"""Settings that a resume cannot change: the weights depend on them."""


def env_files() -> dict[str, Path]:
    """The env files of the package by name."""
    return {path.stem: path for path in sorted((FOLDER / "env").iterdir()) if path.suffix in SUFFIXES}


def find_env_file(name: str | Path) -> Path:
    """An existing file, or the packaged one that `NAME`, or `data/env/NAME.xml` where there is none, stands for."""
    path = Path(name)
    if path.is_file():
        return path
    known = env_files()
    packaged = known.get(path.stem)
    if packaged and path.parent in (Path(), Path("data/env")) and path.suffix in ("", packaged.suffix):
        return packaged
    raise UsageError(f"there is no env file {str(name)!r}: give a path, or one of {', '.join(known)}.")


def read_env_file(name: str | Path) -> MuscleSettings:
    """The settings of an env file; every mistake in it is a UsageError of one line."""
    path = find_env_file(name)
    content = _read_xml(path) if path.suffix == ".xml" else read_yaml(path, what="env file")
    try:
        settings = parse_settings({} if content is None else content)
    except UsageError as error:
        raise UsageError(f"env file {path}: {error}") from None
    model = settings.model
    if model != OWN_MODEL and model not in MYO_MODELS and not Path(model).is_absolute():
        beside = path.parent / model  # a model is looked for beside its env file
        if not beside.is_file():
            known = ", ".join((OWN_MODEL, *MYO_MODELS))
            raise UsageError(
                f"env file {path}: there is no model {model!r}: give {known}, or the path of an MJCF file."
            )
        settings = parse_settings({**content, "model": str(beside.resolve())})
    return settings


def env_file_options(name: str | Path, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Options that follow from an env file: env, keywords, name and algorithm. `env_kwargs` change single settings."""
    content = merged(to_dict(read_env_file(name)), env_kwargs)
    if Path(content["model"]).is_file():
        content["model"] = str(Path(content["model"]).resolve())  # a run can be used from any folder
    settings = parse_settings(content)
    return {
        "env": MUSCLE_ENV,
        "env_file": str(Path(name).resolve()) if Path(name).is_file() else str(name),
        "env_kwargs": to_dict(settings),
        "name": Path(name).stem,
        "algorithm": "PPO+muscle" if settings.control.mode == "hierarchical" else "PPO",
    }


def changed_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name (`reward.pose`), old and new value of every setting that differs."""
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from ((f"{name}.{inner}", *values) for inner, *values in changed_settings(old, new))
        elif old != new:
            yield name, old, new


class _Doctype(Exception):
    """A file declares its document type, and so perhaps entities, which can expand without end."""


class _Builder(ElementTree.TreeBuilder):
    def doctype(self, *_: Any) -> None:
        raise _Doctype


def _read_xml(path: Path) -> Any:
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise UsageError(f"env file {path} has {size:,} bytes, but at most {MAX_BYTES:,} are read.")
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"env file {path} cannot be read: {error.strerror or error}.") from None
    try:
        root = ElementTree.fromstring(text, ElementTree.XMLParser(target=_Builder()))
    except _Doctype:
        raise UsageError(f"env file {path} has a DOCTYPE: leave it out.") from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise UsageError(f"env file {path} is not valid XML: {error}.") from None
    return _element(root, path, depth=0)


def _element(element: ElementTree.Element, path: Path, *, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise UsageError(f"env file {path} nests deeper than {MAX_DEPTH} levels.")
    text = (element.text or "").strip()
    entries: dict[str, Any] = dict(element.attrib)
    for child in element:
        if child.tag in entries:
            raise UsageError(f"env file {path}: <{element.tag}> has {child.tag} twice.")
        entries[child.tag] = _element(child, path, depth=depth + 1)
        text += (child.tail or "").strip()
    if entries and text:
        raise UsageError(f"env file {path}: <{element.tag}> has text {text[:40]!r} beside its entries.")
    return entries if entries or not text else text
