"""Only a small regular file is read as the game file."""

import os
from pathlib import Path

import pytest

from proxima.envs.games.mario import rom
from proxima.errors import UsageError


def test_what_is_not_a_regular_file_is_refused_without_reading(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.nes")
    for path in (tmp_path / "fifo.nes", Path("/dev/zero"), tmp_path):
        with pytest.raises(UsageError, match="it is not a regular file") as error:
            rom.load_rom(path)
        assert "\n" not in str(error.value)


def test_a_file_of_absurd_size_is_refused_without_reading(tmp_path: Path) -> None:
    path = tmp_path / "large.nes"
    with path.open("wb") as file:
        file.truncate(2**40)  # sparse
    with pytest.raises(UsageError, match="it has 1,099,511,627,776 bytes, and the game has 40,976"):
        rom.load_rom(path)


def test_a_path_that_cannot_be_one_is_one_line() -> None:
    for path in ("a\0b", "x" * 5000, "/proc/self/mem/x"):
        with pytest.raises(UsageError, match="cannot be read"):
            rom.load_rom(path)
