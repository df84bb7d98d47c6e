"""NES consoles on stable-retro's core, of which a process can only have one: all consoles of a process share it.

The core holds the state of the console in use. When another console is used, the core's 13 kB of state are saved and
those of the other are loaded, which takes a few microseconds, so a trajectory does not depend on which envs share a
process. A forked child has its own copy of the core. Not thread-safe.
"""

import gc
import tempfile
import weakref
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from proxima.errors import UsageError

BUTTONS = ("B", "", "select", "start", "up", "down", "left", "right", "A")
"""In the core's order."""
_BLOCK = 1024  # bytes per block of the core's memory


def mask(*pressed: str) -> np.ndarray:
    """The core's button mask of the pressed buttons."""
    return np.array([button in pressed for button in BUTTONS], np.uint8)


def _with_field(state: bytes, name: str, content: bytes) -> bytes:
    """A state of the core with one field replaced; a field is its name, its size and its content."""
    head, tag, rest = state.partition(name.encode() + len(content).to_bytes(4, "little"))
    return head + tag + content + rest[len(content) :] if tag else state


class _Core:
    """The emulator of this process, and the console that uses it."""

    def __init__(self, rom: bytes) -> None:
        try:
            import stable_retro
            from stable_retro.data import GameData
        except ImportError as error:
            raise UsageError(f"Mario needs stable-retro ({error}): pip install 'proxima-rl[mario]'") from error
        self.rom = rom
        gc.collect()  # an unused emulator may not have been collected yet
        with tempfile.TemporaryDirectory(prefix="proxima-mario-") as folder:
            file = Path(folder) / "game.nes"
            file.write_bytes(rom)
            try:
                self.emulator: Any = stable_retro.RetroEmulator(str(file))
            except RuntimeError as error:
                raise UsageError(
                    f"the emulator cannot be started in this process ({error}); close the other env of stable-retro, "
                    "or use async mode, which runs envs in other processes"
                ) from error
        data = GameData()
        self.emulator.configure_data(data)
        self.emulator.step()
        self.data = data  # owns the memory below
        self.memory: Any = data.memory
        # RAM that the game's board does not have is uninitialised memory of this process.
        self.power_on = _with_field(self.emulator.get_state(), "WRAM", bytes(0x2000))
        self.emulator.set_state(self.power_on)
        self.user: weakref.ref[Nes] | None = None
        self.drawn_for: weakref.ref[Nes] | None = None


class Nes:
    """One console, switched on, with the game in it."""

    _core: ClassVar[_Core | None] = None
    _users: ClassVar["weakref.WeakSet[Nes]"] = weakref.WeakSet()

    def __init__(self, rom: bytes) -> None:
        self._me = weakref.ref(self)
        self._rom = rom
        self._state = self._running().power_on
        Nes._users.add(self)
        self._picture: np.ndarray | None = None  # the frame of a restored state, which the core has not drawn

    def frame(self, buttons: np.ndarray) -> None:
        """Play one frame with these buttons pressed."""
        core = self._attach()
        core.emulator.set_button_mask(buttons, 0)
        core.emulator.step()
        core.drawn_for, self._picture = self._me, None

    def ram(self) -> bytes:
        """A copy of the console's 2 kB of RAM."""
        blocks = self._attach().memory.blocks
        return blocks[0] + blocks[_BLOCK]

    def write(self, address: int, value: int) -> None:
        """Change one byte of memory."""
        self._attach().memory.assign(address, "|u1", value)

    def screen(self) -> np.ndarray:
        """The last frame `[224, 240, 3]`; raises if another console has played since."""
        if self._picture is not None:
            return self._picture.copy()
        core = self._attach()
        if core.drawn_for is not self._me:
            raise RuntimeError("another console has played since this one's last frame")
        return core.emulator.get_screen()

    def get_state(self) -> bytes:
        """The console's state, except its last frame and the register of its noise generator.

        That register only affects sound, and the core does not restore its clock, so it differs between equal games.
        """
        return _with_field(self._attach().emulator.get_state(), "NREG", b"\1\0")

    def set_state(self, state: bytes, picture: np.ndarray | None = None) -> None:
        """Restore a state of `get_state`, and optionally its frame."""
        core = self._attach()
        if not core.emulator.set_state(state):
            raise ValueError("the emulator refuses this state: it is of another game or version")
        core.drawn_for, self._picture = None, picture

    def close(self) -> None:
        """Switch off; the core is freed with the last console."""
        Nes._users.discard(self)
        if not Nes._users:
            Nes._core = None

    def _attach(self) -> _Core:
        """The core, with this console's state loaded."""
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
            Nes._core = None  # free the old core first: there can only be one
            Nes._core = _Core(self._rom)
        if Nes._core.rom != self._rom:
            raise UsageError("two different game files cannot be played in one process: close the other env first")
        return Nes._core
