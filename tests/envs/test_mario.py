"""Super Mario Bros.: reading the console's memory, and exact states of consoles."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from pixel_tools import assert_exact_state, built, digest, trace

from proxima.envs.catalog import missing_package
from proxima.envs.games.mario import game, rom
from proxima.envs.games.mario.emulator import mask
from proxima.envs.games.mario.env import ACTIONS, MarioEnv
from proxima.envs.gymnasium.async_vec import AsyncVecEnv
from proxima.envs.gymnasium.spaces import step_seconds
from proxima.envs.make import make_env
from proxima.errors import UsageError

STAGE = "proxima/SuperMarioBros-1-1-v0"
MISSING = missing_package(gym.spec(STAGE))
needs_game = pytest.mark.skipif(MISSING is not None, reason=f"no console or no game file: {MISSING}")
RIGHT, RIGHT_A = 1, 2


def memory(**places: int) -> bytes:
    """A console's memory in the middle of a game, with some addresses changed."""
    ram = bytearray(2048)
    names = {"state": 0x0E, "down": 0xB5, "page": 0x6D, "x": 0x86, "y": 0x3B8, "lives": 0x75A, "float": 0x1D}
    names |= {"world": 0x75F, "stage": 0x75C, "area": 0x760, "status": 0x756, "mode": 0x770, "enemy": 0x18}
    for name, value in {"state": 8, "down": 1, "lives": 2, "mode": 1, **places}.items():
        ram[names[name]] = value
    ram[0x7DE:0x7E4] = bytes([0, 1, 2, 3, 5, 0])
    ram[0x7ED:0x7EF] = bytes([4, 2])
    ram[0x7F8:0x7FB] = bytes([3, 9, 7])
    return bytes(ram)


def test_memory_becomes_info() -> None:
    assert game.read_info(memory(page=2, x=10, y=176, world=3, stage=1, area=2, status=1)) == {
        "x_pos": 522,
        "y_pos": 79,
        "score": 12350,
        "coins": 42,
        "time": 397,
        "life": 2,
        "world": 4,
        "stage": 2,
        "area": 3,
        "status": "tall",
        "flag_get": False,
        "is_success": False,
    }
    assert game.read_info(memory(down=0, y=200))["y_pos"] == 255 + 55
    assert [game.read_info(memory(status=n))["status"] for n in (0, 1, 2, 3)] == ["small", "tall"] + ["fireball"] * 2


def test_memory_says_how_it_ends() -> None:
    assert game.has_flag(memory(mode=2)) and game.has_flag(memory(enemy=0x31, float=3))
    assert game.has_flag(memory(enemy=0x2D, float=3))
    assert not game.has_flag(memory(enemy=0x31)) and not game.has_flag(memory(float=3))  # a vine
    assert game.is_dying(memory(state=0x0B)) and game.is_dying(memory(down=2)) and not game.is_dying(memory(state=6))
    assert game.has_lost_life(memory(state=6)) and not game.has_lost_life(memory())
    assert game.is_game_over(memory(lives=255))
    assert [n for n in range(16) if game.is_busy(memory(state=n))] == [0, 1, 2, 3, 4, 5, 7]
    assert game.is_end_of_game(memory(world=7, stage=3, mode=2)) and not game.is_end_of_game(memory(mode=2))


def test_reward_of_a_frame() -> None:
    ram = memory(page=1, x=44)  # at 300, clock 397
    assert game.frame_reward(297, 397, ram) == 3
    assert game.frame_reward(303, 398, ram) == -3 - 1
    assert game.frame_reward(290, 397, ram) == 0  # was moved, did not move
    assert game.frame_reward(300, 100, ram) == 0  # a new clock
    assert game.frame_reward(297, 397, memory(page=1, x=44, state=0x0B)) == -15  # 3 - 25, limited
    assert game.frame_reward(300, 450, ram) == -15


def test_buttons_of_the_actions() -> None:
    assert [len(ACTIONS[name]) for name in ("right_only", "simple", "complex")] == [5, 7, 12]
    right_only = [(), ("right",), ("right", "A"), ("right", "B"), ("right", "A", "B")]
    simple = [*right_only, ("A",), ("left",)]
    assert list(ACTIONS["right_only"]) == right_only and list(ACTIONS["simple"]) == simple
    left = [("left", "A"), ("left", "B"), ("left", "A", "B"), ("down",), ("up",)]
    assert list(ACTIONS["complex"]) == simple + left
    assert mask("right", "A").tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1] and mask("B").tolist() == [1] + [0] * 8
    assert mask("start", "down", "left", "up").tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0]


def test_a_missing_game_file_is_explained(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.delenv(rom.VARIABLE, raising=False)
    monkeypatch.setattr(rom, "CARRIER", "no_such_package")
    with pytest.raises(UsageError, match=r"was not found.*`rom`.*PROXIMA_MARIO_ROM.*gym-super-mario-bros"):
        rom.load_rom()
    with pytest.raises(UsageError, match=r"absent\.nes', cannot be read.*PROXIMA_MARIO_ROM"):
        rom.load_rom(tmp_path / "absent.nes")
    (tmp_path / "other.nes").write_bytes(b"NES\x1a" + bytes(40972))
    monkeypatch.setenv(rom.VARIABLE, str(tmp_path / "other.nes"))
    with pytest.raises(UsageError, match=r"other\.nes' is not the game.*SHA-1.*PROXIMA_MARIO_ROM"):
        rom.load_rom()


@needs_game
def test_the_game_file_may_come_without_its_header(tmp_path: Path) -> None:
    whole = rom.load_rom()
    (tmp_path / "bare").write_bytes(whole[16:])
    assert rom.load_rom(tmp_path / "bare") == whole


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"world": 9, "stage": 1}, "no stage 9-1"),
        ({"world": 1}, "give both"),
        ({"actions": "all"}, "right_only, simple, complex"),
        ({"repeat_action_probability": 1.0}, "repeat_action_probability"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        MarioEnv(**options)


@pytest.mark.slow
@needs_game
def test_every_stage_starts_with_its_own_number() -> None:
    pictures = set()
    for world in range(1, 9):
        for stage in range(1, 5):
            env = built(f"proxima/SuperMarioBros-{world}-{stage}-v0", render_mode="rgb_array")
            _, info = env.reset(seed=0)
            assert (info["world"], info["stage"], info["x_pos"], info["life"]) == (world, stage, 40, 2)
            assert info["area"] == game.first_area(world, stage) and info["time"] in (300, 400)
            pictures.add(env.render().tobytes())  # type: ignore[union-attr]
            before = info["x_pos"]
            for _ in range(12):
                *_, info = env.step(RIGHT)
            assert info["x_pos"] > before + 10, (world, stage)
            env.close()
    assert len(pictures) == 32  # each shows at least another number


@needs_game
def test_a_goomba_ends_the_episode_and_the_stage_starts_again() -> None:
    env, frames = built(STAGE), built(STAGE, frame_skip=1)
    start, before = env.reset(seed=0)
    frames.reset(seed=0)
    terminated = False
    while not terminated:
        _, reward, terminated, truncated, info = env.step(RIGHT)
        played = [frames.step(RIGHT)]
        while len(played) < 4 and not played[-1][2]:
            played.append(frames.step(RIGHT))
        assert reward == sum(float(frame[1]) for frame in played) and info == played[-1][4]
        if not terminated:
            assert reward == info["x_pos"] - before["x_pos"] + info["time"] - before["time"]
        before = info
    assert played[-1][1] == -15 and not truncated and 200 < info["x_pos"] < 400
    assert info["life"] == 2 and not info["is_success"]
    again, _ = env.reset()
    assert np.array_equal(start, again) and step_seconds(env) == pytest.approx(4 / 60.0988)


@needs_game
def test_the_flag_ends_a_stage_but_not_the_game() -> None:
    stage, whole = built(STAGE), built("proxima/SuperMarioBros-v0")
    for env in (stage, whole):
        env.reset(seed=0)
        env.unwrapped._nes.write(0x770, 2)  # type: ignore[attr-defined]
    _, _, terminated, _, info = stage.step(0)
    assert terminated and info["flag_get"] and info["is_success"]
    assert not stage.reset()[1]["flag_get"]
    _, _, terminated, _, info = whole.step(0)
    assert not terminated
    *_, info = whole.step(0)
    assert (info["world"], info["stage"], info["flag_get"]) == (2, 1, False)


@needs_game
def test_three_lives_may_be_one_episode() -> None:
    env = built("proxima/SuperMarioBros-v0", end_on_life_loss=False, frame_skip=1)
    env.reset(seed=0)
    lives, terminated, penalties = [2], False, 0
    while not terminated:
        _, reward, terminated, _, info = env.step(RIGHT)
        penalties += float(reward) == -15
        if info["life"] != lives[-1]:
            lives.append(info["life"])
    assert lives == [2, 1, 0, 255]
    assert penalties == 4  # as in the original: the frame in which the game is over counts the last death again


@needs_game
def test_shaping_adds_points_and_ends() -> None:
    plain, shaped = built(STAGE, frame_skip=1), built(STAGE, frame_skip=1, shaping=True)
    plain.reset(seed=0)
    shaped.reset(seed=0)
    points, terminated = 0, False
    while not terminated:
        one, other = plain.step(RIGHT), shaped.step(RIGHT)
        terminated = one[2]
        won = other[4]["score"] - points
        points = other[4]["score"]
        assert other[1] == pytest.approx((float(one[1]) + won / 40 - 50 * terminated) / 10)


@needs_game
def test_sticky_buttons_come_from_the_seed() -> None:
    def run(seed: int, probability: float) -> str:
        env = built(STAGE, repeat_action_probability=probability)
        env.reset(seed=seed)
        return digest(env, 60, seed=0)

    assert run(1, 0.25) == run(1, 0.25) != run(2, 0.25)
    assert run(1, 0.0) == run(2, 0.0)


@pytest.mark.slow
@needs_game
def test_a_console_goes_on_exactly_in_another_process(tmp_path: Path) -> None:
    options: dict[str, Any] = {"repeat_action_probability": 0.1, "noop_max": 8, "shaping": True}
    assert_exact_state(tmp_path, STAGE, options, before=60, after=120)


@pytest.mark.slow
@needs_game
def test_the_trajectory_does_not_depend_on_who_shares_a_process() -> None:
    alone = trace(STAGE, 70, num_envs=3, mode="sync")
    assert trace(STAGE, 70, num_envs=3, mode="async", num_workers=2) == alone
    assert trace(STAGE, 70, num_envs=3, mode="async", num_workers=1) == alone


@pytest.mark.slow
@needs_game
def test_several_consoles_get_processes_and_one_does_not() -> None:
    many, one = make_env(STAGE, num_envs=2), make_env(STAGE, num_envs=1)
    assert isinstance(many, AsyncVecEnv) and not isinstance(one, AsyncVecEnv)
    many.close()
    one.close()


_ALONE = """
import os, sys
sys.path.insert(0, {here!r})
import stable_retro
from pixel_tools import built, digest
from proxima.envs.games.mario.emulator import Nes
from proxima.envs.games.mario.rom import find_rom
from proxima.errors import UsageError

def fresh(steps):
    env = built({stage!r}); env.reset(seed=0); return env, digest(env, steps, seed=0)

other = stable_retro.RetroEmulator(str(find_rom()))
try:
    built({stage!r})
except UsageError as error:
    assert "cannot be started in this process" in str(error), error
else:
    raise AssertionError
del other
one, first = fresh(30)
two, second = fresh(30)
assert first == second
one.close(); two.close()
assert Nes._core is None
three, third = fresh(30)
assert third == first
four, _ = fresh(10)
child = os.fork()
text = (digest(three, 40, seed=1) + digest(four, 40, seed=2)).encode()
if not child:
    os.write(1, text); os._exit(0)
os.waitpid(child, 0)
os.write(1, text)
"""


@pytest.mark.slow
@needs_game
def test_the_core_is_shared_closed_made_again_and_forked() -> None:
    code = _ALONE.format(here=str(Path(__file__).parent), stage=STAGE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) == 256 and done.stdout[:128] == done.stdout[128:]
