"""The wheel and the sdist, as an index and a packager see them."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
BUILD = "from setuptools.build_meta import *; build_sdist('built'); build_wheel('built')"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("package") / "copy"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    outputs = {str(ROOT): {"runs"}}  # those at the top alone: proxima/runs and tests/runs are ours
    shutil.copytree(ROOT, copy, ignore=lambda folder, names: ignored(folder, names) | outputs.get(folder, set()))
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return copy / "built"


def test_the_wheel_has_presets_authors_addresses_classifiers_and_pictures(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith("/METADATA")]
        metadata = Parser().parsestr(files.read(name).decode())
        assert "proxima/presets/halfcheetah.yaml" in files.namelist()
    assert metadata["Author"] and len(metadata.get_all("Project-URL", [])) >= 2
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    targets = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    pictures = [target for target in targets if target.endswith(".png")]
    assert pictures and all(target.startswith("https://") for target in targets)
    assert all((ROOT / target.partition("/raw/main/")[2]).is_file() for target in pictures)


def test_the_sdist_has_every_file_and_every_test(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        packed = {name.partition("/")[2] for name in files.getnames()}
    ours = {str(path.relative_to(ROOT)) for room in ("proxima", "tests") for path in (ROOT / room).rglob("*.py")}
    assert ours <= packed and {"proxima/presets/halfcheetah.yaml", "Makefile"} <= packed
