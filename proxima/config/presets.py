"""Presets: the YAML files in `proxima/presets/`, settings that are known to learn, found by env id and algorithm.

A preset is a config file with one key more, `about`: the env ids it is for (without versions, `*` for any text), and
what it reaches. Reading options from files is in `config.py`.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from proxima.config.yaml_files import read_yaml

FOLDER = Path(__file__).parent.parent / "presets"
ABOUT = "about"
"""The key of a config file that is for its readers."""


@dataclass(frozen=True)
class Preset:
    """One packaged config file.

    Example:
        >>> preset_for("HalfCheetah-v4", "PPO").name
        'halfcheetah'
    """

    name: str
    path: Path
    algorithm: str
    envs: tuple[str, ...]
    """Patterns of env ids without their version; empty for one that is only used by name."""
    reaches: str
    """Return, steps and seeds, in words."""

    def fits(self, env_id: str, algorithm: str) -> bool:
        """Whether it is the one to use for an env id, in any version, also in Gymnasium's `module:EnvId` form."""
        name = re.sub(r"-v\d+$", "", env_id.rpartition(":")[2])
        return algorithm == self.algorithm and any(fnmatchcase(name, pattern) for pattern in self.envs)

    @property
    def text(self) -> str:
        """The file, as it is."""
        return self.path.read_text(encoding="utf-8")


@cache
def all_presets() -> dict[str, Preset]:
    """Every preset by its name."""
    found = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        content: dict[str, Any] = read_yaml(path, what="preset")
        about = content.get(ABOUT, {})
        algorithm = content.get("algorithm", "PPO")
        found[path.stem] = Preset(path.stem, path, algorithm, tuple(about.get("envs", ())), about.get("reaches", ""))
    return found


def preset_for(env_id: str, algorithm: str) -> Preset | None:
    """The preset of an env; where several fit, the one with the longest pattern."""
    fitting = [preset for preset in all_presets().values() if preset.fits(env_id, algorithm)]
    return max(fitting, key=lambda preset: max(map(len, preset.envs)), default=None)


def packaged_file(path: Path) -> Path | None:
    """The preset that `--config NAME`, `NAME.yaml` or `configs/NAME.yaml` stands for where there is no such file."""
    is_name = path.parent in (Path(), Path("configs")) and path.suffix in ("", ".yaml")
    preset = all_presets().get(path.stem) if is_name else None
    return preset.path if preset else None
