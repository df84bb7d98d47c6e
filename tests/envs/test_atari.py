"""Atari: lives, scores and exact states on ale-py."""

import importlib.util
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from pixel_tools import assert_exact_state, built, digest, trace

from proxima.envs.catalog import find_spec, live_ids
from proxima.envs.gymnasium.async_vec import AsyncVecEnv
from proxima.envs.gymnasium.spaces import step_seconds
from proxima.envs.make import list_envs, make_env
from proxima.errors import UsageError

PONG, BREAKOUT = "ALE/Pong-v5", "ALE/Breakout-v5"
needs_atari = pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="ale-py is not installed")


def test_absence_is_one_sentence(monkeypatch: Any) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ale_py" else real(name))
    for env_id in [env_id for env_id in gym.registry if env_id.startswith("ALE/")]:  # of an earlier import
        monkeypatch.delitem(gym.registry, env_id)
    with pytest.raises(UsageError, match=r"'ALE/Pong-v5' needs ale-py: pip install \"proxima-rl\[atari\]\""):
        make_env(PONG)
    listed = [row for row in list_envs() if row.id == PONG]
    assert [row.status for row in listed] == ['pip install "proxima-rl[atari]"']


@needs_atari
def test_ids_are_found_and_listed() -> None:
    spec = find_spec(PONG)
    assert spec.entry_point == "proxima.envs.games.atari:AtariEnv" and spec.kwargs["repeat_action_probability"] == 0.25
    assert find_spec("ALE/Pong").id == PONG
    with pytest.raises(UsageError, match=r"did you mean 'ALE/Breakout-v5'"):
        find_spec("ALE/Brekout-v5")
    listed = {row.id: row for row in list_envs()}
    assert listed[PONG].backends == ("async", "sync") and listed[PONG].status == "installed"
    assert "Pong-v4" in gym.registry and "Pong-v4" not in live_ids()
    with pytest.raises(UsageError, match="no game 'pogn'"):
        built(PONG, game="pogn")


@needs_atari
def test_spaces_and_options() -> None:
    env = built(PONG, render_mode="rgb_array")
    obs, info = env.reset(seed=0)
    assert obs.shape == (4, 84, 84) and obs.dtype == np.uint8 and env.action_space.n == 6  # type: ignore[attr-defined]
    assert env.render().shape == (210, 160, 3) and step_seconds(env) == pytest.approx(1 / 15)  # type: ignore[union-attr]
    assert info["score"] == 0 and env.unwrapped.episode_info == ("game_score",)  # type: ignore[attr-defined]
    assert built(PONG, full_action_space=True).action_space.n == 18  # type: ignore[attr-defined]
    assert built(PONG, grayscale=False).reset(seed=0)[0].shape == (12, 84, 84)


@needs_atari
def test_a_life_is_an_episode_and_the_game_goes_on() -> None:
    env = built(BREAKOUT)
    env.reset(seed=0)
    env.action_space.seed(0)
    lives, scores, games = [], [], []
    for _ in range(5):
        terminated = False
        while not terminated:
            _, reward, terminated, _, info = env.step(env.action_space.sample())
            assert reward in (-1.0, 0.0, 1.0)
        lives.append(info["life"])
        scores.append(info["score"])
        games.append(info.get("game_score"))
        start = env.reset()[1]
    assert lives == [4, 3, 2, 1, 0] and scores == sorted(scores)
    assert games == [None, None, None, None, scores[-1]]
    assert start["life"] == 5 and start["score"] == 0 and "game_score" not in start


@needs_atari
@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_a_policy_that_never_presses_fire_loses_all_its_lives(sticky: float) -> None:
    options = {"end_on_life_loss": False, "repeat_action_probability": sticky}

    def steps(env: Any) -> int:
        env.reset(seed=0)
        return next((step for step in range(1000) if env.step(0)[2]), 1000)

    assert 5 * 20 < steps(built(BREAKOUT, **options)) < 5 * 60
    assert steps(built(BREAKOUT, auto_fire=False, **options)) == 1000
    env = built(BREAKOUT)  # a life per episode: each starts with the ball in play
    env.reset(seed=0)
    for _ in range(4):
        assert next(step for step in range(60) if env.step(0)[2])
        env.reset()


@needs_atari
def test_a_whole_game_returns_its_score() -> None:
    env = built("ALE/SpaceInvaders-v5", end_on_life_loss=False, reward_clip=False)
    env.reset(seed=0)
    env.action_space.seed(0)
    total, terminated = 0.0, False
    while not terminated:
        _, reward, terminated, _, info = env.step(env.action_space.sample())
        total += float(reward)
    assert info["life"] == 0 and total == info["score"] > 20


@needs_atari
def test_a_reset_in_the_middle_of_a_game_starts_a_new_one() -> None:
    env = built(BREAKOUT)
    env.reset(seed=0)
    for _ in range(40):
        env.step(1)
    assert env.reset(seed=0)[1]["life"] == 5
    first = digest(env, 50, seed=0)
    env.reset(seed=0)
    assert digest(env, 50, seed=0) == first


@pytest.mark.slow
@needs_atari
@pytest.mark.parametrize("env_id", [PONG, BREAKOUT])
def test_sticky_actions_go_on_exactly_in_another_process(env_id: str, tmp_path: Path) -> None:
    assert_exact_state(tmp_path, env_id, {}, before=100, after=200)


@pytest.mark.slow
@needs_atari
def test_the_trajectory_does_not_depend_on_workers() -> None:
    assert trace(BREAKOUT, 120, num_envs=3, mode="sync") == trace(BREAKOUT, 120, num_envs=3, num_workers=2, mode="auto")
    env = make_env(BREAKOUT, num_envs=2)
    assert isinstance(env, AsyncVecEnv)
    env.close()
