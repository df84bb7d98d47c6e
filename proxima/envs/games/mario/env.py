"""Super Mario Bros. as a Gymnasium env: one stage, or the complete game."""

import os
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from proxima.envs.games.mario import game
from proxima.envs.games.mario.emulator import Nes, mask
from proxima.envs.games.mario.rom import load_rom
from proxima.envs.games.pixels import PixelEnv
from proxima.envs.gymnasium.plain import Plain
from proxima.errors import UsageError

_RIGHT_ONLY = ((), ("right",), ("right", "A"), ("right", "B"), ("right", "A", "B"))
_SIMPLE = (*_RIGHT_ONLY, ("A",), ("left",))
_COMPLEX = (*_SIMPLE, ("left", "A"), ("left", "B"), ("left", "A", "B"), ("down",), ("up",))
ACTIONS: dict[str, tuple[tuple[str, ...], ...]] = {"right_only": _RIGHT_ONLY, "simple": _SIMPLE, "complex": _COMPLEX}
"""The buttons behind each action. A jumps, B runs and throws."""

_NOTHING, _START = mask(), mask("start")
_LONGEST_WAIT = 3000  # frames: the longest scene takes a third of that
_SHAPED_END, _SHAPED_SCORE, _SHAPED_SCALE = 50.0, 40.0, 10.0

_starts: dict[tuple[int, int, int], tuple[bytes, np.ndarray]] = {}
"""State and frame at the start of each stage that was played in this process."""


class MarioEnv(PixelEnv):
    """Super Mario Bros.

    The reward of a frame is the pixels moved to the right, minus the ticks of the clock, minus 25 for a lost life,
    clipped to [-15, 15]; a step's reward is the sum over its frames. Scenes without player input are skipped.

    Args:
        world: 1 to 8, with `stage` 1 to 4: only that stage, which ends at its flag. None: the complete game from 1-1 to
            8-4.
        stage: See `world`.
        actions: "right_only" (5), "simple" (7) or "complex" (12) combinations of buttons.
        rom: Path of the game file; None uses the environment variable PROXIMA_MARIO_ROM or an installed
            gym-super-mario-bros.
        end_on_life_loss: A lost life ends the episode, and the next one starts from the beginning. Else an episode is
            the game's three lives.
        shaping: Another common reward: a frame's reward plus score / 40, 50 at the flag, -50 for a lost life, all
            divided by 10.
        repeat_action_probability: Probability in each frame that the previous frame's buttons stay pressed.
        **pixels: Options of `PixelEnv`.
    """

    frames_per_second = 60.0988
    episode_info = ("flag_get", "x_pos", "score")

    def __init__(
        self,
        world: int | None = None,
        stage: int | None = None,
        *,
        actions: str = "simple",
        rom: str | os.PathLike[str] | None = None,
        end_on_life_loss: bool = True,
        shaping: bool = False,
        repeat_action_probability: float = 0.0,
        **pixels: Any,
    ) -> None:
        super().__init__(**pixels)
        if actions not in ACTIONS:
            raise UsageError(f"actions is {actions!r}; it must be one of {', '.join(ACTIONS)}")
        if (world is None) != (stage is None):
            raise UsageError(
                f"world is {world} and stage is {stage}: give both for one stage, or neither for the complete game"
            )
        if world is not None and stage is not None and not (world in range(1, 9) and stage in range(1, 5)):
            raise UsageError(f"there is no stage {world}-{stage}: worlds are 1 to 8, and each has stages 1 to 4")
        if not 0.0 <= repeat_action_probability < 1.0:
            raise UsageError(f"repeat_action_probability is {repeat_action_probability}; it must be in [0, 1)")
        self.world, self.stage = world, stage
        self.end_on_life_loss, self.shaping = end_on_life_loss, shaping
        self.repeat_action_probability = repeat_action_probability
        self.action_space = spaces.Discrete(len(ACTIONS[actions]))
        self._masks = [mask(*buttons) for buttons in ACTIONS[actions]]
        self._rom = load_rom(rom)
        self._nes = Nes(self._rom)
        self._last_action = 0
        self._ram = bytes(2048)  # after the agent's last frame, before scenes are skipped
        self._x = self._clock = self._score = 0

    def _start(self, fresh: bool) -> bool:
        key = (zlib.crc32(self._rom), self.world or 1, self.stage or 1)
        if key not in _starts:
            _starts[key] = _start_of_stage(Nes(self._rom), self.world or 1, self.stage or 1)
        self._nes.set_state(*_starts[key])
        self._last_action = 0
        self._ram = self._nes.ram()
        self._x, self._clock, self._score = (read(self._ram) for read in (game.x_position, game.clock, game.score))
        return True

    def _advance(self, action: int) -> tuple[float, bool]:
        if self.repeat_action_probability and self.np_random.random() < self.repeat_action_probability:
            action = self._last_action
        self._last_action = action
        self._nes.frame(self._masks[action])
        ram = self._ram = self._nes.ram()
        reward = game.frame_reward(self._x, self._clock, ram)
        lost, flag = game.has_lost_life(ram), game.has_flag(ram)
        if self.shaping:
            points = game.score(ram)
            reward += (points - self._score) / _SHAPED_SCORE + _SHAPED_END * (flag - lost)
            reward /= _SHAPED_SCALE
            self._score = points
        self._x, self._clock = game.x_position(ram), game.clock(ram)
        ended = game.is_game_over(ram) or game.is_end_of_game(ram)
        ended = ended or (lost and self.end_on_life_loss) or (flag and self.world is not None)
        if not ended:
            _skip_scenes(self._nes, ram)
        return reward, ended

    def _screen(self) -> np.ndarray:
        return self._nes.screen()

    def _info(self) -> dict[str, Any]:
        return game.read_info(self._ram)

    def _get_game(self) -> Plain:
        counters = [self._last_action, self._x, self._clock, self._score]
        return {"console": self._nes.get_state(), "ram": self._ram, "counters": counters}

    def _set_game(self, state: Plain) -> None:
        self._nes.set_state(state["console"])
        self._ram = state["ram"]
        self._last_action, self._x, self._clock, self._score = state["counters"]

    def close(self) -> None:
        """Free the console."""
        self._nes.close()


def _start_of_stage(nes: Nes, world: int, stage: int) -> tuple[bytes, np.ndarray]:
    """Press start until a stage has begun; the stage is chosen by writing to the game's memory."""
    target = ((game.WORLD, world), (game.STAGE, stage), (game.AREA, game.first_area(world, stage)))
    nes.frame(_START)
    nes.frame(_NOTHING)
    for _ in range(_LONGEST_WAIT):
        if game.clock(nes.ram()):
            break
        nes.frame(_START)
        for address, value in target:
            nes.write(address, value - 1)
        nes.frame(_NOTHING)
        nes.write(game.PRELEVEL_TIMER, 0)
    else:
        raise RuntimeError(f"stage {world}-{stage} did not begin")
    # The player can move from the clock's first tick on. It is read between the two frames, because the emulator of
    # gym-super-mario-bros is one frame behind this one: so both start in the same frame and stay bit-identical.
    before = game.clock(nes.ram())
    for _ in range(_LONGEST_WAIT):
        nes.frame(_START)
        now = game.clock(nes.ram())
        nes.frame(_NOTHING)
        if now < before:
            return nes.get_state(), nes.screen()
        before = now
    raise RuntimeError(f"the clock of stage {world}-{stage} does not run")


def _skip_scenes(nes: Nes, ram: bytes) -> None:
    """Skip scenes without player input: deaths, ends of castles, pipes, waits."""
    if game.is_dying(ram):
        nes.write(game.PLAYER_STATE, game.DEAD)
        nes.frame(_NOTHING)
        ram = nes.ram()
    if game.is_world_over(ram):
        time = game.clock(ram)  # does not change until the next world begins
        ram = _wait_while(nes, lambda now: game.clock(now) == time)
    if 1 < ram[game.AREA_TIMER] < 255:
        nes.write(game.AREA_TIMER, 1)
    if game.is_busy(ram) or game.is_world_over(ram):
        _wait_while(nes, lambda now: game.is_busy(now) or game.is_world_over(now), hurry=True)


def _wait_while(nes: Nes, waiting: Callable[[bytes], bool], *, hurry: bool = False) -> bytes:
    """Play without input; `hurry` shortens the black screens before a stage."""
    for _ in range(_LONGEST_WAIT):
        if hurry:
            nes.write(game.PRELEVEL_TIMER, 0)
        nes.frame(_NOTHING)
        ram = nes.ram()
        if not waiting(ram):
            return ram
    raise RuntimeError(f"the game has taken no input for {_LONGEST_WAIT} frames")
