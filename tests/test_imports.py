"""Imports point one way, and heavy packages are imported only where they are used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "proxima"
# What each room, or each file beside the rooms, may import of ours, besides itself: CONTRIBUTING.md says it in a line.
FOUNDATION = {"errors", "algorithms", "text", "machine", "compiling", "cuda_graphs", "own_parts", "masks", "config"}
ALLOWED = {
    "errors": set(),
    "text": set(),
    "algorithms": {"errors", "own_parts"},
    "machine": set(),
    "compiling": set(),
    "cuda_graphs": set(),
    "own_parts": {"errors"},
    "masks": set(),
    "config": {"errors", "algorithms", "own_parts"},
    "data": FOUNDATION,
    "algo": FOUNDATION | {"data"},
    "nets": FOUNDATION | {"data", "algo"},
    "envs": FOUNDATION,
    "runs": FOUNDATION | {"__init__"},
    "track": FOUNDATION | {"runs"},
    "evaluation": FOUNDATION | {"data", "algo", "nets", "envs", "runs", "track"},
    "training": FOUNDATION | {"data", "algo", "nets", "envs", "runs", "track", "evaluation"},
    "report": FOUNDATION | {"runs", "evaluation"},
    "cli": {"*"},
    "__init__": {"*"},
    "__main__": {"cli", "training"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    tree = ast.parse(path.read_text())
    typed = {inner for node in ast.walk(tree) if is_for_types_only(node) for inner in ast.walk(node)}
    for node in set(ast.walk(tree)) - typed:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "proxima":
                names = [f"proxima.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "proxima":
                rooms.add(parts[1] if len(parts) > 1 else "__init__")
    return rooms


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    allowed = ALLOWED[room(path)]
    extra = imported_rooms(path) - allowed - {room(path)}
    assert "*" in allowed or not extra, f"{path.name} may not import {sorted(extra)}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 420


def loaded(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_workers_and_help_do_not_pay_for_torch() -> None:
    assert "torch" not in loaded("import proxima.envs.gymnasium.worker")
    assert "torch" not in loaded("import proxima.cli")


@pytest.mark.slow
def test_the_public_names_survive_the_import_of_the_rooms() -> None:
    code = (
        "import proxima.training.trainer, proxima.evaluation.policy\n"
        "from proxima import train, load_policy, make_env, Config\n"
        "assert all(callable(x) for x in (train, load_policy, make_env, Config))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
