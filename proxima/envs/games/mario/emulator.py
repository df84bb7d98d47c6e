"""The console: stable-retro's NES core, which exists once a process, shared by any number of envs.

A `Nes` is one console as an env sees it. Only the one in use is in the core; when another one's turn comes, the core's
13 kB of state are put aside and its own are loaded, some microseconds of work. So a trajectory does not depend on which
envs share a process. A forked child has its own copy of the core with everything in it. Not for several threads.
"""

import gc
import tempfile
import weakref
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from proxima.errors import UsageError

BUTTONS = ("B", "", "select", "start", "up", "down", "left", "right", "A")
"""The core's order."""
RAM_BYTES = 2048
_BLOCK = 1024  # the core shows its memory in blocks


def mask(*pressed: str) -> np.ndarray:
    """The named buttons held down, as the core takes them."""
    return np.array([button in pressed for button in BUTTONS], np.uint8)


def _with_field(state: bytes, name: str, content: bytes) -> bytes:
    """A state of the core with another content of one field, which is behind its name and its size."""
    head, tag, rest = state.partition(name.encode() + len(content).to_bytes(4, "little"))
    return head + tag + content + rest[len(content) :] if tag else state


class _Core:
    """The process's one emulator, and whose turn it is."""

    def __init__(self, rom: bytes) -> None:
        try:
            import stable_retro
            from stable_retro.data import GameData
        except ImportError as error:
            raise UsageError(f"Mario needs stable-retro ({error}): pip install 'proxima-rl[mario]'") from error
        self.rom = rom
        gc.collect()  # an emulator that nobody holds any more may still be there
        with tempfile.TemporaryDirectory(prefix="proxima-mario-") as folder:
            file = Path(folder) / "game.nes"
            file.write_bytes(rom)
            try:
                self.emulator: Any = stable_retro.RetroEmulator(str(file))
            except RuntimeError as error:
                raise UsageError(
                    f"the emulator cannot be started in this process ({error}); close the other env of stable-retro, "
                    "or use async mode, which has processes of its own"
                ) from error
        data = GameData()
        self.emulator.configure_data(data)
        self.emulator.step()
        self.data = data  # the memory below belongs to it
        self.memory: Any = data.memory
        # What the game's board has no use for is whatever was in this process's memory.
        self.power_on = _with_field(self.emulator.get_state(), "WRAM", bytes(0x2000))
        self.emulator.set_state(self.power_on)
        self.user: weakref.ref[Nes] | None = None
        self.drawn_for: weakref.ref[Nes] | None = None


class Nes:
    """One console with the game in it, switched on."""

    _core: ClassVar[_Core | None] = None
    _users: ClassVar["weakref.WeakSet[Nes]"] = weakref.WeakSet()

    def __init__(self, rom: bytes) -> None:
        self._me = weakref.ref(self)
        self._rom = rom
        self._state = self._running().power_on
        Nes._users.add(self)
        self._picture: np.ndarray | None = None  # what the core has not drawn itself: the picture of a loaded state

    def frame(self, buttons: np.ndarray) -> None:
        """Play one frame with these buttons down."""
        core = self._attach()
        core.emulator.set_button_mask(buttons, 0)
        core.emulator.step()
        core.drawn_for, self._picture = self._me, None

    def ram(self) -> bytes:
        """The console's 2 kB of memory, as they are now."""
        blocks = self._attach().memory.blocks
        memory: bytes = blocks[0] + blocks[_BLOCK]
        return memory

    def write(self, address: int, value: int) -> None:
        """Change one byte of memory."""
        self._attach().memory.assign(address, "|u1", value)

    def screen(self) -> np.ndarray:
        """The picture of the last frame `[224, 240, 3]`; to be asked for before another console plays."""
        if self._picture is not None:
            return self._picture.copy()
        core = self._attach()
        if core.drawn_for is not self._me:
            raise RuntimeError("this console has drawn nothing since another one played")
        picture: np.ndarray = core.emulator.get_screen()
        return picture

    def get_state(self) -> bytes:
        """Everything in the console, except the picture of the last frame and the state of its noise.

        The register of the noise generator is heard and never read by a game, and the core keeps no clock for it: two
        equal games would differ in it.
        """
        state: bytes = self._attach().emulator.get_state()
        return _with_field(state, "NREG", b"\1\0")

    def set_state(self, state: bytes, picture: np.ndarray | None = None) -> None:
        """Go on from a state of `get_state`, whose picture is this one."""
        core = self._attach()
        if not core.emulator.set_state(state):
            raise ValueError("the emulator does not take this state: it is of another game or version")
        core.drawn_for, self._picture = None, picture

    def close(self) -> None:
        """Switch off; the last one to leave takes the core with it."""
        Nes._users.discard(self)
        if not Nes._users:
            Nes._core = None

    def _attach(self) -> _Core:
        """The core, with this console's state in it."""
        core = self._running()
        if core.user is not self._me:
            last = core.user() if core.user is not None else None
            if last is not None:
                last._state = core.emulator.get_state()
            core.emulator.set_state(self._state)
            core.user = self._me
        return core

    def _running(self) -> _Core:
        if Nes._core is None or (Nes._core.rom != self._rom and not Nes._users):
            Nes._core = None  # there is room for one
            Nes._core = _Core(self._rom)
        if Nes._core.rom != self._rom:
            raise UsageError("two different game files cannot be played in one process: close the other env first")
        return Nes._core
