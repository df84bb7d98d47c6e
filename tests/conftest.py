"""Shared by all tests: one torch thread, and run folders in the test's own directory."""

from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def quiet_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
