"""Games with pixel observations: how images are made, and our own toy game."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pixel_tools import built, digest, digest_elsewhere, trace

from proxima.envs.games.pixels import AreaResize, PixelEnv, grey
from proxima.envs.gymnasium import async_vec
from proxima.envs.gymnasium.exactness_trial import why_inexact
from proxima.envs.gymnasium.snapshot import TrackedEnv
from proxima.envs.gymnasium.spaces import StackedBox, step_seconds
from proxima.envs.make import make_env
from proxima.envs.toys.pixel_catch import PixelCatch
from proxima.errors import UsageError

CATCH = "proxima/PixelCatch-v0"


@pytest.mark.parametrize("shape", [(224, 240), (210, 160), (84, 84), (42, 21), (100, 97)])
def test_a_new_pixel_is_the_mean_of_the_area_it_covers(shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    tall = image.repeat(84, 0).reshape(84, shape[0], shape[1]).mean(1)
    mean = tall.repeat(84, 1).reshape(84, 84, shape[1]).mean(2)
    small = AreaResize(shape, 84)(image)
    assert small.shape == (84, 84) and small.dtype == np.uint8
    assert np.abs(small - mean).max() <= 0.5 + 1e-9
    assert (AreaResize(shape, 84)(np.full(shape, 255, np.uint8)) == 255).all()


def test_grey_weighs_the_colours() -> None:
    colours = np.array([[[255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 0, 0]]], np.uint8)
    assert grey(colours).tolist() == [[255, 76, 149, 28, 0]]


class Counter(PixelEnv):
    """Frame n has brightness n, brighter on the left in even ones; reward n; ends at `end`."""

    def __init__(self, end: int = 1000, **pixels: Any) -> None:
        super().__init__(**pixels)
        self.action_space, self.end, self.n = spaces.Discrete(2), end, 0

    def _start(self, fresh: bool) -> bool:
        self.n = 0
        return True

    def _advance(self, action: int) -> tuple[float, bool]:
        self.n += 1
        return float(self.n), self.n == self.end

    def _screen(self) -> np.ndarray:
        frame = np.full((8, 8, 3), self.n, np.uint8)
        frame[:, :4] += 100 * (self.n % 2 == 0)
        return frame

    def _info(self) -> dict[str, Any]:
        return {}

    def _get_game(self) -> Any:
        return self.n

    def _set_game(self, state: Any) -> None:
        self.n = state


def test_steps_skip_sum_and_keep_the_brighter_of_two_frames() -> None:
    env = Counter(image_size=2, render_mode="rgb_array")
    assert isinstance(env.observation_space, StackedBox) and env.observation_space.frames == 4
    first, _ = env.reset(seed=0)
    assert first[:, 0].tolist() == [[100, 0]] * 4  # the stack is filled with the first image
    obs, reward, terminated, truncated, _ = env.step(0)
    assert (reward, terminated, truncated) == (1 + 2 + 3 + 4, False, False)
    assert obs[:, 0].tolist() == [[100, 0]] * 3 + [[104, 4]]
    env.step(0)
    obs, *_ = Counter.step(env, 0)
    assert obs[:, 1].tolist() == [[100, 0], [104, 4], [108, 8], [112, 12]]
    assert first[:, 0].tolist() == [[100, 0]] * 4  # a returned observation is not changed later
    frame = env.render()
    assert frame is not None and frame.shape == (8, 8, 3) and frame[0, 7, 0] == 12
    assert step_seconds(env) == pytest.approx(4 / 60)


def test_both_of_the_last_two_frames_count() -> None:
    env = Counter(image_size=2, frame_skip=3, frame_stack=1)
    env.reset(seed=0)
    assert env.step(0)[0][0, 0].tolist() == [102, 3]  # frames 2 and 3


def test_an_episode_may_end_within_a_skip() -> None:
    env = Counter(end=6, image_size=2)
    env.reset(seed=0)
    env.step(0)
    obs, reward, terminated, _, _ = env.step(0)
    assert (reward, terminated, obs[-1, 0].tolist()) == (5 + 6, True, [106, 6])


def test_options_of_pixels() -> None:
    colour = Counter(image_size=2, grayscale=False, frame_stack=2)
    assert colour.reset(seed=0)[0].shape == colour.observation_space.shape == (6, 2, 2)
    clipped = Counter(reward_clip=True)
    clipped.reset(seed=0)
    assert clipped.step(0)[1] == 1.0
    waiting = Counter(noop_max=30)
    starts = []
    for seed in range(20):
        waiting.reset(seed=seed)
        starts.append(waiting.n)
    assert min(starts) >= 1 and max(starts) <= 30 and len(set(starts)) > 5
    assert Counter().render() is None
    for wrong in ({"frame_skip": 0}, {"image_size": 2.5}, {"noop_max": -1}, {"render_mode": "human"}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            Counter(**wrong)


def test_catch_shows_the_ball_and_pays_for_it() -> None:
    env = PixelCatch(drops=2)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (4, 84, 84) and (obs == 255).sum() == 4 * 36
    rewards = []
    terminated = False
    while not terminated:
        centre = env._paddle + 8
        target = env._x + 3 + env._drift * ((78 - env._y) // 6)
        obs, reward, terminated, _, info = env.step(1 + (target > centre) - (target < centre))
        rewards.append(reward)
    assert sum(abs(reward) for reward in rewards) == 2 and len(rewards) == 26
    assert info == {"caught": rewards.count(1.0), "is_success": rewards.count(1.0) == 2}


@pytest.mark.slow
def test_catch_goes_on_exactly_anywhere(tmp_path: Path) -> None:
    env = built(CATCH)
    env.reset(seed=5)
    digest(env, 130, seed=0)
    state = env.unwrapped.get_state()  # type: ignore[attr-defined]
    expected = digest(env, 250, seed=1)
    assert digest_elsewhere(tmp_path, CATCH, {}, state, 250) == expected
    assert why_inexact(lambda: built(CATCH)) is None


def test_its_own_state_is_kept_with_that_of_the_wrappers() -> None:
    import gymnasium as gym

    env, other = (gym.wrappers.TimeLimit(built(CATCH), 50) for _ in range(2))
    tracked = TrackedEnv(env)
    env.reset(seed=0)
    for _ in range(30):
        env.step(0)
    TrackedEnv(other).restore(tracked.capture())
    assert not tracked.replays and other._elapsed_steps == 30
    assert [other.step(0)[3] for _ in range(20)] == [False] * 19 + [True]


@pytest.mark.slow
def test_catch_is_the_same_in_workers() -> None:
    assert trace(CATCH, 150, num_envs=3, mode="sync") == trace(CATCH, 150, num_envs=3, mode="async", num_workers=2)


@pytest.mark.slow
def test_more_workers_than_cores_are_warned_of_once(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(async_vec, "available_cores", lambda: 1)
    async_vec._warn_of_crowding.cache_clear()
    monkeypatch.setattr(async_vec.logger, "propagate", True)
    for _ in range(2):
        make_env(CATCH, num_envs=2, mode="async", num_workers=2).close()
    assert [record.getMessage()[:38] for record in caplog.records] == ["num_workers is 2, but there are 1 core"]
    make_env(CATCH, num_envs=2, mode="async").close()
    assert len(caplog.records) == 1
