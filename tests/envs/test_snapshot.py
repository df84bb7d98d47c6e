"""States of Gymnasium envs continue exactly in other objects and other processes."""

import io
import random
from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from proxima.envs.contract import VecEnv
from proxima.envs.gymnasium.exactness_trial import why_inexact
from proxima.envs.gymnasium.plain import pack, unpack
from proxima.envs.gymnasium.snapshot import TrackedEnv
from proxima.envs.make import list_envs, make_env

INSTALLED = [
    e.id
    for e in list_envs()
    if e.newest and e.missing is None and str(gym.spec(e.id).entry_point).startswith("gymnasium.")
]
# Their Box2D world is kept from one episode to the next, so episodes of a fresh world differ in the last bits.
INEXACT = {"BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CarRacing-v3"}


class Walk(gym.Env):
    """A random walk whose state is in an opaque object, so that it must be replayed; `leak` makes replays inexact."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(2)

    class Place:
        x = 0.0

    def __init__(self, leak: bool = False):
        self.places, self.leak, self.total = [self.Place()], leak, 0

    @property
    def place(self) -> "Walk.Place":
        return self.places[0]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.place.x = float(self.np_random.normal())
        return np.array([self.place.x], np.float32), {}

    def step(self, action: Any) -> tuple:
        self.total += 1
        self.place.x += float(self.np_random.normal()) + action + (self.total if self.leak else 0)
        return np.array([self.place.x], np.float32), 0.0, abs(self.place.x) > 50, False, {}


def random_action(env: VecEnv, rng: np.random.Generator) -> torch.Tensor:
    space, n = env.action_space, env.num_envs
    if isinstance(space, spaces.Box):
        low, high = (np.clip(bound, -1, 1).ravel() for bound in (space.low, space.high))
        return torch.from_numpy(rng.uniform(low, high, (n, low.size)).astype(np.float32))
    return torch.from_numpy(rng.integers(0, space.n, n))


def trace(env: VecEnv, steps: int, seed: int) -> list[Any]:
    rng, rows = np.random.default_rng(seed), []
    for _ in range(steps):
        step = env.step(random_action(env, rng))
        final = None if step.final_obs is None else [x[step.ended].tolist() for x in step.final_obs.values()]
        ended = (step.episodes.return_[step.ended].tolist(), step.episodes.length[step.ended].tolist())
        rows.append(([x.tolist() for x in step.obs.values()], step.reward.tolist(), step.ended.tolist(), final, ended))
    return rows


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("env_id", [i for i in INSTALLED if i not in INEXACT])
def test_every_env_goes_on_exactly(env_id: str) -> None:
    options: dict[str, Any] = {"num_envs": 2, "mode": "sync", "max_episode_steps": 30, "spread_episodes": True}
    one, two = make_env(env_id, **options), make_env(env_id, **options)
    one.reset(3)
    trace(one, 40, seed=0)
    state = through_a_file(one.get_state())
    expected = trace(one, 40, seed=1)
    obs = two.set_state(state)
    assert {key: x.tolist() for key, x in obs.items()} == {key: x.tolist() for key, x in state["obs"].items()}
    assert trace(two, 40, seed=1) == expected
    assert one.why_inexact() is None


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "LunarLander-v3", "CartPole-v1"])
def test_a_state_crosses_processes_and_back_ends(env_id: str) -> None:
    options: dict[str, Any] = {"num_envs": 3, "max_episode_steps": 30}
    sync, parallel = make_env(env_id, mode="sync", **options), make_env(env_id, mode="async", num_workers=2, **options)
    try:
        sync.reset(3)
        trace(sync, 20, seed=0)
        parallel.set_state(through_a_file(sync.get_state()))
        assert trace(parallel, 40, seed=1) == trace(sync, 40, seed=1)
        sync.set_state(through_a_file(parallel.get_state()))
        assert trace(parallel, 40, seed=2) == trace(sync, 40, seed=2)
        assert parallel.why_inexact() is None
    finally:
        parallel.close()


@pytest.mark.slow
@pytest.mark.parametrize("env_id", sorted(INEXACT))
def test_inexact_envs_say_so(env_id: str) -> None:
    assert "kept from one episode to the next" in str(make_env(env_id).why_inexact())


def test_an_env_with_objects_is_replayed() -> None:
    assert TrackedEnv(Walk()).replays and not TrackedEnv(gym.make("CartPole-v1")).replays
    assert why_inexact(Walk) is None


def test_an_env_that_cannot_be_brought_back_is_found_out() -> None:
    assert why_inexact(lambda: Walk(leak=True)) == "replayed episodes continue differently"


def test_an_env_that_draws_from_a_generator_out_of_sight_is_found_out() -> None:
    class Hidden(Walk):
        def step(self, action: Any) -> tuple:
            self.place.x += np.random.random()  # noqa: NPY002
            return super().step(action)

    assert "differently" in str(why_inexact(Hidden))


def test_objects_that_keep_more_than_they_show_are_replayed() -> None:
    class Hoard(Walk):
        def __init__(self) -> None:
            super().__init__()
            self.places = self.Place()  # type: ignore[assignment]
            self.seen: Counter[int] = Counter()

        @property
        def place(self) -> Any:
            return self.places

    assert TrackedEnv(Hoard()).replays
    hoard = Hoard()
    del hoard.seen
    assert not TrackedEnv(hoard).replays


def test_a_generator_of_the_standard_library_is_data() -> None:
    class Dice(Walk):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.dice = None, random.Random(3)  # type: ignore[assignment]
            self.x = 0.0

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
            gym.Env.reset(self, seed=seed)
            self.x = self.dice.random()
            return np.array([self.x], np.float32), {}

        def step(self, action: Any) -> tuple:
            self.x += self.dice.random()
            return np.array([self.x], np.float32), 0.0, False, False, {}

    assert not TrackedEnv(Dice()).replays and why_inexact(Dice) is None


def test_wrappers_are_part_of_the_state() -> None:
    def build() -> gym.Env:
        env = gym.wrappers.FrameStackObservation(gym.make("CartPole-v1"), 3)
        return gym.wrappers.NormalizeReward(gym.wrappers.TimeAwareObservation(env, flatten=True))

    assert why_inexact(build) is None


def test_plain_data_survives_packing() -> None:
    value = {
        "a": [1, None, True, "text", 2**200, 0.1, float("inf")],
        "b": np.array([[1.5, np.nan]]),
        "c": np.array([b"S", b"F"]),
        "d": b"\0\1",
        "e": {"f": np.zeros((0, 3), np.uint8)},
    }
    again = unpack(*pack(value))
    assert again["a"] == value["a"] and again["d"] == value["d"]
    np.testing.assert_array_equal(again["b"], value["b"])
    assert again["c"].tolist() == [b"S", b"F"] and again["e"]["f"].shape == (0, 3)
