"""Masks of Gymnasium envs: found in three places, one observation key in every back end."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from proxima.envs.action_hold import Hold
from proxima.envs.contract import VecEnv
from proxima.envs.gymnasium.snapshot import NotPlain
from proxima.envs.make import make_env
from proxima.errors import EnvFailure, UsageError
from tests.masked_envs import LENGTH, Maze

WAYS = ("observation", "method", "info")


def make(mode: str = "sync", num_envs: int = 3, **kwargs: Any) -> VecEnv:
    return make_env("masked/Maze-v0", num_envs=num_envs, mode=mode, env_kwargs=kwargs)


def valid_action(mask: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """The first valid choice per column."""
    action = torch.stack([column.argmax(-1) for column in mask.split(sizes, -1)], -1)
    return action[:, 0] if len(sizes) == 1 else action


def rollout(env: VecEnv, sizes: list[int], steps: int = 2 * LENGTH) -> list[torch.Tensor]:
    """What the env shows while the first valid choices are taken; asserts that no episode ends early."""
    obs, found = env.reset(seed=5), []
    for _ in range(steps):
        seen = next(x for key, x in obs.items() if key != "action_mask")
        found += [obs["action_mask"].clone(), seen.clone()]
        step = env.step(valid_action(obs["action_mask"], sizes))
        found += [step.reward.clone(), step.ended.clone()]
        obs = step.obs
    env.close()
    return found


@pytest.mark.parametrize(("kind", "sizes"), [("discrete", [5]), ("shifted", [5]), ("multi_discrete", [3, 4])])
def test_the_three_ways_in_give_the_same_trajectories(kind: str, sizes: list[int]) -> None:
    Maze.invalid_actions = 0
    first, *others = [rollout(make(kind=kind, way=way), sizes) for way in WAYS]
    assert Maze.invalid_actions == 0
    assert first[0].dtype == torch.uint8 and first[0].shape == (3, sum(sizes))
    assert int(torch.stack(first[3::4]).sum()) == 2 * 3  # each env ends twice, at the time limit
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.slow
def test_async_shows_the_same_masks() -> None:
    sync, parallel = rollout(make(way="info"), [5]), rollout(make("async", way="info"), [5])
    assert all(torch.equal(a, b) for a, b in zip(sync, parallel, strict=True))


def test_an_env_without_masks_has_no_such_key() -> None:
    assert list(make(way="none").observation_space.spaces) == ["obs"]
    assert list(make_env("CartPole-v1").observation_space.spaces) == ["obs"]


class MaskOfWrapper(gym.Wrapper):
    """Has the method of sb3-contrib."""

    def action_masks(self) -> np.ndarray:
        return self.unwrapped.mask  # type: ignore[attr-defined]


def outer(env: gym.Env) -> gym.Env:
    return gym.wrappers.TransformReward(env, float)


def test_the_method_of_a_wrapper_is_found() -> None:
    env = make_env("masked/Maze-v0", env_kwargs={"way": "none"}, wrappers=[MaskOfWrapper, outer])
    assert set(env.observation_space.spaces) == {"obs", "action_mask"}


def test_looking_for_a_mask_does_not_disturb_the_envs() -> None:
    """The info is seen at a reset, which another env does: the first episode is the env's first."""
    env = make_env("CartPole-v1", num_envs=2)
    one = gym.make("CartPole-v1")
    expected = torch.as_tensor(one.reset(seed=3)[0])
    assert torch.equal(env.reset(seed=3)["obs"][0], expected)


@pytest.mark.parametrize("way", WAYS)
def test_a_mask_that_allows_nothing_is_a_failure_of_the_env(way: str, caplog: pytest.LogCaptureFixture) -> None:
    env = make_env("masked/Maze-v0", env_kwargs={"way": way, "stuck_at": 0}, max_failures=2)
    with pytest.raises(EnvFailure, match=r"env 0 of 'masked/Maze-v0' failed 2 times .* action_mask allows no action"):
        env.reset(seed=0)


def test_a_last_mask_may_allow_nothing() -> None:
    for truncates in (True, False):
        env = make(stuck_at=LENGTH, truncates=truncates)
        obs = env.reset(seed=0)
        for _ in range(LENGTH):
            step = env.step(valid_action(obs["action_mask"], [5]))
            obs = step.obs
        assert bool(step.ended.all()) and env.counters()["worker_restarts"] == 0
        assert step.final_obs is not None
        # Where the task is over, the env is not asked.
        assert step.final_obs["action_mask"].any().item() == (not truncates)


def test_a_mask_of_another_size_names_both_sizes() -> None:
    class Wrong(Maze):
        def _action_masks(self) -> np.ndarray:
            return np.ones(4, bool)

    class WrongSpace(Maze):
        def __init__(self) -> None:
            super().__init__(way="observation")
            parts = {"seen": spaces.Box(0, 1, (3,)), "action_mask": spaces.MultiBinary(7)}
            self.observation_space = spaces.Dict(parts)

    gym.register("masked/Wrong-v0", Wrong, kwargs={"way": "method"}, disable_env_checker=True)
    gym.register("masked/WrongSpace-v0", WrongSpace, disable_env_checker=True)
    try:
        with pytest.raises(EnvFailure, match=r"action_mask has 4 numbers, but Discrete\(5\) has 5 choices"):
            make_env("masked/Wrong-v0").reset(seed=0)
        with pytest.raises(UsageError, match=r"has 7 numbers, but the action space .* has 5 choices"):
            make_env("masked/WrongSpace-v0")
    finally:
        del gym.registry["masked/Wrong-v0"], gym.registry["masked/WrongSpace-v0"]


@pytest.mark.parametrize("kind", ["discrete", "shifted", "multi_discrete"])
def test_a_hold_ends_when_the_held_action_becomes_invalid(kind: str) -> None:
    sizes = [3, 4] if kind == "multi_discrete" else [5]
    Maze.invalid_actions = 0
    env = make(kind=kind)
    env.hold = Hold(3, 3, gamma=1.0)
    obs, durations = env.reset(seed=0), []
    for _ in range(50):
        step = env.step(valid_action(obs["action_mask"], sizes))
        assert step.duration is not None
        durations += step.duration.tolist()
        obs = step.obs
    assert Maze.invalid_actions == 0 and set(durations) == {1, 2, 3}


def test_the_state_of_a_masked_env_is_exact() -> None:
    for way in WAYS:
        Maze.invalid_actions = 0
        assert make(way=way).why_inexact() is None  # type: ignore[attr-defined]
        assert Maze.invalid_actions == 0  # the trial took valid actions, too


def test_a_state_from_before_masks_is_refused_and_the_env_stays_usable() -> None:
    saved = make(way="none", num_envs=1)
    saved.reset(seed=0)
    state = saved.get_state()  # type: ignore[attr-defined]
    env = make(way="info", num_envs=1)
    env.reset(seed=0)
    with pytest.raises(NotPlain, match="the state is of"):
        env.set_state(state)  # type: ignore[attr-defined]
    assert bool(env.reset(seed=1)["action_mask"].any()) and env.counters()["worker_restarts"] == 0


class MaskAfterSteps(gym.Wrapper):
    """Forgets the mask in the info of a reset."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(**options)[0], {}


def test_a_mask_that_a_reset_does_not_report_is_not_ignored() -> None:
    env = make_env("masked/Maze-v0", env_kwargs={"way": "info"}, wrappers=[MaskAfterSteps], max_failures=2)
    env.reset(seed=0)
    with pytest.raises(EnvFailure, match="report it in every reset and step"):
        for _ in range(3):
            env.step(torch.zeros(1, dtype=torch.int64))
