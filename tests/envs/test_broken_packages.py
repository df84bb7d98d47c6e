"""A missing or broken package affects only the envs that need it; their error is one line."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BODIES = {
    "ImportError": "raise ImportError('libfoo.so: cannot open shared object file\\nand more')",
    "SyntaxError": "def (",
    "SystemExit": "import sys; sys.exit(0)",
    "AttributeError": "",
}
SCRIPT = """
import sys
from proxima.envs.make import list_envs, make_env
from proxima.errors import UsageError
env_id, *others = sys.argv[1:]
for other in others:
    make_env(other, num_envs=2).reset(0)
for mode in ("auto", "sync", "async"):
    try:
        make_env(env_id, mode=mode, num_envs=2)
    except UsageError as error:
        print(str(error))
print("listed", next((row.status for row in list_envs() if row.id == env_id), "nowhere"))
"""


def lines_with(folder: Path, package: str, body: str, *env_ids: str) -> list[str]:
    """The output of a process with a broken package on its path."""
    (folder / f"{package}.py").write_text(body)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *env_ids],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("error", ["ImportError", "SyntaxError", "SystemExit", "AttributeError"])
def test_mujoco_is_for_its_own_envs(error: str, tmp_path: Path) -> None:
    *refusals, listed = lines_with(tmp_path, "mujoco", BODIES[error], "HalfCheetah-v5", "CartPole-v1", "Taxi-v4")
    assert len(refusals) == 3
    assert all("'HalfCheetah-v5'" in line and error in line for line in refusals)
    if error != "AttributeError":
        assert all("needs MuJoCo: mujoco cannot be imported" in line for line in refusals)
        assert listed.startswith(f"listed mujoco cannot be imported ({error}: ")


@pytest.mark.parametrize("error", ["ImportError", "SystemExit"])
def test_ale_py_is_for_atari(error: str, tmp_path: Path) -> None:
    *refusals, listed = lines_with(tmp_path, "ale_py", BODIES[error], "ALE/Pong-v5", "CartPole-v1")
    assert len(refusals) == 3
    assert all(f"'ALE/Pong-v5' needs ale-py: ale_py cannot be imported ({error}: " in line for line in refusals)
    assert listed.startswith("listed ale_py cannot be imported")


@pytest.mark.skipif(importlib.util.find_spec("Box2D") is None, reason="pygame is only asked for where Box2D is there")
@pytest.mark.parametrize(
    ("package", "env_id", "error"),
    [("Box2D", "LunarLander-v3", "ImportError"), ("pygame", "CarRacing-v3", "ImportError")],
)
def test_box2d_and_pygame(package: str, env_id: str, error: str, tmp_path: Path) -> None:
    *refusals, _ = lines_with(tmp_path, package, BODIES[error], env_id, "CartPole-v1")
    assert len(refusals) == 3
    assert all(repr(env_id) in line and "cannot open shared object file): pip install" in line for line in refusals)
