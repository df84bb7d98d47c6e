"""Finds the game file of Super Mario Bros., which is under copyright and so not part of this package."""

import hashlib
import importlib.util
import os
import stat
from pathlib import Path

from proxima.errors import UsageError

VARIABLE = "PROXIMA_MARIO_ROM"
"""Environment variable with the path of the game file."""
CARRIER = "gym_super_mario_bros"
"""A package whose wheel has the file. It is not imported, because it needs an old Gym and an old NumPy."""

_HEADER = b"NES\x1a\x02\x01\x01" + bytes(9)  # iNES: 2 x 16 kB of program, 8 kB of pictures, vertical mirroring
_MOST_BYTES = 2**20
# SHA-1 of the file without its header.
_KNOWN = {
    "0c4992fc08d2278697339d3b48066e7b5f943598",  # the carrier's; what the tests run with
    "facee9c577a5262dbe33ac4930bb0b58c8c037f7",  # the common dump, as stable-retro names it
}
_WAYS = (
    "Give the path of your own copy (a .nes file) with --rom (the env keyword `rom`), or in the "
    f"environment variable {VARIABLE}, or install a package that carries it: "
    "pip install --no-deps gym-super-mario-bros==7.4.0."
)


def find_rom(path: str | os.PathLike[str] | None = None) -> Path | None:
    """Where the game file should be: the path given, else the environment variable's, else the carrier's copy."""
    chosen = path or os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    package = importlib.util.find_spec(CARRIER)
    for folder in (package.submodule_search_locations or ()) if package else ():
        file = Path(folder) / "_roms" / "super-mario-bros.nes"
        if file.is_file():
            return file
    return None


def load_rom(path: str | os.PathLike[str] | None = None) -> bytes:
    """The game with its header; raises UsageError if there is no such file or it is not this game."""
    file = find_rom(path)
    if file is None:
        raise UsageError(f"the game file of Super Mario Bros. was not found. {_WAYS}")
    try:
        content = _read(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"the game file of Super Mario Bros., {str(file)!r}, cannot be read ({reason}). {_WAYS}"
        ) from None
    body = content[16:] if content.startswith(b"NES\x1a") else content
    found = hashlib.sha1(body).hexdigest()
    if found not in _KNOWN:
        raise UsageError(
            f"{str(file)!r} is not the game Super Mario Bros. that this env knows: its SHA-1 without the header is "
            f"{found}, not {' or '.join(sorted(_KNOWN))}. {_WAYS}"
        )
    return _HEADER + body


def _read(file: Path) -> bytes:
    """The content of a small regular file: reading a FIFO or a device might never end."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > _MOST_BYTES:
        raise ValueError(f"it has {status.st_size:,} bytes, and the game has 40,976")
    return file.read_bytes()
