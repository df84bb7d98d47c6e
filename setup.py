"""Makes the README of a package from the repository's: an index shows only what has an absolute address."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

root = Path(__file__).parent
repository = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
readme = (root / "README.md").read_text()
readme = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{repository}/raw/main/", readme)
readme = re.sub(r"(?<!!)(\[[^]]*\]\()(?!https?:|#)", rf"\1{repository}/blob/main/", readme)
setup(long_description=readme, long_description_content_type="text/markdown")
