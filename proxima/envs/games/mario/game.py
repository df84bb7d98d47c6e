"""Reads the state of Super Mario Bros. from the console's 2 kB of RAM, and computes the reward. Pure functions."""

from typing import Any

# Addresses.
PLAYER_STATE = 0x0E
WORLD, STAGE, AREA = 0x75F, 0x75C, 0x760  # each from 0
PRELEVEL_TIMER, AREA_TIMER = 0x7A0, 0x6DE
_PAGE, _X, _Y, _SCREENS_DOWN, _FLOAT = 0x6D, 0x86, 0x3B8, 0xB5, 0x1D
_LIVES, _STATUS, _MODE = 0x75A, 0x756, 0x770
_SCORE, _COINS, _CLOCK = (0x7DE, 6), (0x7ED, 2), (0x7F8, 3)  # decimal digits
_ENEMIES = slice(0x16, 0x1B)

DYING, DEAD = 0x0B, 0x06
_BUSY = frozenset({0, 1, 2, 3, 4, 5, 7})  # pipes, vines, walking by itself, waiting for an area
_ENDINGS = (0x2D, 0x31)  # Bowser and the flag among the enemies: only then is sliding the end of a stage
_SLIDING = 3
_END_OF_WORLD = 2
_GAME_OVER = 255

DEATH_PENALTY = -25
REWARD_LIMIT = 15
_LONGEST_STEP = 5  # pixels per frame: a larger change is a jump to another place, such as a pipe's end


def _number(ram: bytes, digits: tuple[int, int]) -> int:
    start, count = digits
    value = 0
    for digit in ram[start : start + count]:
        value = 10 * value + digit
    return value


def x_position(ram: bytes) -> int:
    """Pixels from the start of the area."""
    return ram[_PAGE] * 256 + ram[_X]


def clock(ram: bytes) -> int:
    """Time left for the stage."""
    return _number(ram, _CLOCK)


def score(ram: bytes) -> int:
    """The game's score."""
    return _number(ram, _SCORE)


def is_dying(ram: bytes) -> bool:
    """Whether the player was hit or is falling below the screen."""
    return ram[PLAYER_STATE] == DYING or ram[_SCREENS_DOWN] > 1


def has_lost_life(ram: bytes) -> bool:
    """Whether the player is dying or dead."""
    return is_dying(ram) or ram[PLAYER_STATE] == DEAD


def is_game_over(ram: bytes) -> bool:
    """Whether the last life is gone."""
    return ram[_LIVES] == _GAME_OVER


def is_world_over(ram: bytes) -> bool:
    """Whether the scene after a castle is playing."""
    return ram[_MODE] == _END_OF_WORLD


def is_busy(ram: bytes) -> bool:
    """Whether the game ignores input."""
    return ram[PLAYER_STATE] in _BUSY


def has_flag(ram: bytes) -> bool:
    """Whether the stage is completed: at the flagpole, or past Bowser."""
    return is_world_over(ram) or (ram[_FLOAT] == _SLIDING and any(kind in _ENDINGS for kind in ram[_ENEMIES]))


def is_end_of_game(ram: bytes) -> bool:
    """Whether the last stage, 8-4, is completed."""
    return ram[WORLD] == 7 and ram[STAGE] == 3 and has_flag(ram)


def read_info(ram: bytes) -> dict[str, Any]:
    """The `info` of a step."""
    height = 255 - ram[_Y]
    done = has_flag(ram)
    return {
        "x_pos": x_position(ram),
        "y_pos": height + (255 if ram[_SCREENS_DOWN] < 1 else 0),  # above the screen
        "score": score(ram),
        "coins": _number(ram, _COINS),
        "time": clock(ram),
        "life": ram[_LIVES],
        "world": ram[WORLD] + 1,
        "stage": ram[STAGE] + 1,
        "area": ram[AREA] + 1,
        "status": ("small", "tall", "fireball")[min(ram[_STATUS], 2)],
        "flag_get": done,
        "is_success": done,
    }


def frame_reward(x_before: int, clock_before: int, ram: bytes) -> float:
    """Pixels moved to the right, minus ticks of the clock, minus 25 for a lost life, clipped to [-15, 15]."""
    moved = x_position(ram) - x_before
    if abs(moved) > _LONGEST_STEP:
        moved = 0
    ticked = min(clock(ram) - clock_before, 0)
    lost = DEATH_PENALTY if has_lost_life(ram) else 0
    return float(max(-REWARD_LIMIT, min(REWARD_LIMIT, moved + ticked + lost)))


def first_area(world: int, stage: int) -> int:
    """The area number (from 1) in which a stage starts: in some worlds the walk into the pipe is an area."""
    return stage + 1 if stage > 1 and world in (1, 2, 4, 7) else stage
