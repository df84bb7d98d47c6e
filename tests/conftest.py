"""Shared by all tests: one torch thread, run folders in the test's own directory, and Ctrl-C as in a terminal."""

import gc
import signal
from pathlib import Path

import pytest
import torch

# A shell script that starts the tests with & has them ignore Ctrl-C, and what they start too.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def frozen_imports() -> None:
    """Garbage is not looked for among the objects of imports: every run would search them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests give the options they depend on; a preset would change the others. Those of presets name one."""
    monkeypatch.setattr("proxima.config.config.preset_for", lambda env_id, algorithm: None)


@pytest.fixture(autouse=True)
def quiet_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
