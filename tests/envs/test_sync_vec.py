"""Sync mode, and what both modes share: spaces, actions, autoreset, statistics, envs that fail."""

import importlib.util
import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import toy_envs
from gymnasium import spaces

from proxima.envs.gymnasium.spaces import ActionLayout, ObservationLayout, layout_of
from proxima.envs.gymnasium.step_values import reported_number
from proxima.envs.gymnasium.sync_vec import SyncVecEnv
from proxima.errors import EnvFailure, UsageError


def noop(env: SyncVecEnv) -> torch.Tensor:
    return torch.zeros(env.num_envs, dtype=torch.int64)


def test_a_plain_box_is_the_one_key_obs_in_its_own_dtype() -> None:
    env = SyncVecEnv("toy/Counter-v0", num_envs=2)
    obs = env.reset(0)
    assert list(obs) == ["obs"]
    assert obs["obs"].shape == (2, 3)
    assert obs["obs"].dtype == torch.float64
    assert env.observation_space == spaces.Dict({"obs": toy_envs.Counter.observation_space})


def test_nested_observations_become_flat_keys() -> None:
    env = SyncVecEnv("toy/Fixed-v0", num_envs=2)
    obs = env.reset(5)
    shapes = {key: (tuple(value.shape), value.dtype) for key, value in obs.items()}
    assert shapes == {
        "body/gear": ((2, 3), torch.float32),
        "body/pos": ((2, 2), torch.float32),
        "camera": ((2, 4, 4, 3), torch.uint8),
        "height": ((2, 1), torch.float64),
        "pair/0": ((2, 2), torch.float32),
        "pair/1": ((2, 5), torch.float32),
    }
    assert {key: space.shape for key, space in env.observation_space.items()} == {
        key: shape[1:] for key, (shape, _) in shapes.items()
    }
    for index in range(2):
        toy_envs.NESTED.seed(5 + index)
        sample = toy_envs.NESTED.sample()
        assert np.array_equal(obs["camera"][index], sample["camera"])
        assert np.array_equal(obs["body/pos"][index], sample["body"]["pos"])
        assert obs["body/gear"][index].argmax() == sample["body"]["gear"] - 1
        assert np.array_equal(obs["pair/0"][index], sample["pair"][0])
        assert obs["pair/1"][index].nonzero().flatten().tolist() == [sample["pair"][1][0], 2 + sample["pair"][1][1]]
        assert obs["height"][index, 0] == float(sample["height"])


def test_a_discrete_observation_is_one_hot() -> None:
    env = SyncVecEnv("FrozenLake-v1", num_envs=2)
    assert env.reset(0)["obs"].tolist() == [[1.0] + [0.0] * 15] * 2


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), spaces.Dict({})], ids=str
)
def test_an_observation_without_array_form_is_refused(space: spaces.Space) -> None:
    with pytest.raises(UsageError, match=r"Text|'a' is a Sequence|empty"):
        ObservationLayout(space)


def test_clashing_keys_are_refused() -> None:
    box = spaces.Box(0, 1, (1,))
    with pytest.raises(UsageError, match="a/b"):
        ObservationLayout(spaces.Dict({"a": spaces.Dict({"b": box}), "a/b": box}))


def test_an_unsupported_action_space_is_named() -> None:
    with pytest.raises(UsageError, match="Tuple"):
        ActionLayout(spaces.Tuple((spaces.Discrete(2),)))


ACTIONS: list[tuple[spaces.Space, Any, list[list[float]]]] = [
    (spaces.Box(-1, 1, (3,), np.float32), [[0.5, -1, 0.25]] * 2, [[0.5, -1, 0.25]] * 2),
    (spaces.Box(-9, 9, (2, 2), np.float64), [[1.5, 2, 3, 4], [5, 6, 7, 8]], [[1.5, 2, 3, 4], [5, 6, 7, 8]]),
    (spaces.Discrete(3), [0, 2], [[0], [2]]),
    (spaces.Discrete(3, start=5), [0, 2], [[5], [7]]),
    (spaces.MultiDiscrete([2, 4]), [[0, 3], [1, 0]], [[0, 3], [1, 0]]),
    (spaces.MultiDiscrete([2, 4], start=[10, 20], dtype=np.int32), [[0, 3], [1, 0]], [[10, 23], [11, 20]]),
    (spaces.MultiDiscrete([[2, 3], [4, 5]]), [[1, 2, 3, 4], [0, 0, 0, 1]], [[1, 2, 3, 4], [0, 0, 0, 1]]),
    (spaces.MultiBinary(3), [[1, 0, 1], [0, 0, 1]], [[1, 0, 1], [0, 0, 1]]),
    (spaces.MultiBinary([2, 2]), [[1, 0, 1, 1], [0, 0, 1, 0]], [[1, 0, 1, 1], [0, 0, 1, 0]]),
]


@pytest.mark.parametrize(("space", "action", "seen"), ACTIONS, ids=lambda value: str(value)[:40])
def test_actions_reach_the_env_in_its_own_form(space: spaces.Space, action: Any, seen: list[list[float]]) -> None:
    env = SyncVecEnv("toy/Echo-v0", num_envs=2, env_kwargs={"action_space": space})
    env.reset(0)
    dtype = torch.float32 if isinstance(space, spaces.Box) else torch.int64
    first = env.step(torch.tensor(action, dtype=dtype))
    assert first.obs["obs"].tolist() == seen
    reward = first.reward.tolist()
    assert reward == [sum(row) for row in seen]
    again = env.step(torch.zeros_like(torch.tensor(action, dtype=dtype)))
    assert again.reward.tolist() == reward  # the env's own copy of the first action has not changed
    assert env.counters() == {"worker_restarts": 0}


def test_an_action_of_the_wrong_shape_is_refused() -> None:
    env = SyncVecEnv("toy/Counter-v0", num_envs=2)
    env.reset(0)
    with pytest.raises(ValueError, match=r"\(2, 1\).*\(2,\)"):
        env.step(torch.zeros(2, 1, dtype=torch.int64))


@pytest.mark.parametrize("truncate", [False, True])
def test_autoreset_in_the_same_step_with_the_final_observation(truncate: bool) -> None:
    env = SyncVecEnv("toy/Counter-v0", num_envs=2, env_kwargs={"length": 3, "truncate": truncate})
    assert env.reset(0)["obs"][:, :2].tolist() == [[0, 0]] * 2
    for episode in range(3):
        for count in (1, 2):
            step = env.step(noop(env))
            assert step.final_obs is None
            assert step.obs["obs"][:, :2].tolist() == [[episode, count]] * 2
            assert step.reward.tolist() == [count] * 2
            assert not step.ended.any()
        step = env.step(noop(env))
        assert step.final_obs is not None
        assert step.final_obs["obs"][:, :2].tolist() == [[episode, 3]] * 2
        assert step.obs["obs"][:, :2].tolist() == [[episode + 1, 0]] * 2
        assert step.terminated.tolist() == [not truncate] * 2
        assert step.truncated.tolist() == [truncate] * 2
        assert step.episodes.return_.tolist() == [6.0] * 2
        assert step.episodes.length.tolist() == [3] * 2
        assert step.reward.dtype == step.episodes.return_.dtype == torch.float64


def test_the_observation_before_a_step_outlives_it() -> None:
    env = SyncVecEnv("toy/Counter-v0", num_envs=1)
    before = env.reset(0)["obs"]
    env.step(noop(env))
    assert before[0, :2].tolist() == [0, 0]


def test_same_trajectory_as_gymnasium_by_hand() -> None:
    env = SyncVecEnv("CartPole-v1", num_envs=3)
    references = [gym.make("CartPole-v1") for _ in range(3)]
    expected = np.stack([reference.reset(seed=7 + i)[0] for i, reference in enumerate(references)])
    assert np.array_equal(env.reset(7)["obs"], expected)
    rng, ended = np.random.default_rng(0), 0
    for _ in range(120):
        action = rng.integers(2, size=3)
        step = env.step(torch.from_numpy(action))
        for i, reference in enumerate(references):
            obs, reward, terminated, truncated, _ = reference.step(action[i])
            assert step.reward[i] == reward
            assert (bool(step.terminated[i]), bool(step.truncated[i])) == (terminated, truncated)
            if terminated or truncated:
                ended += 1
                assert step.final_obs is not None
                assert np.array_equal(step.final_obs["obs"][i], obs)
                obs, _ = reference.reset()
            assert np.array_equal(step.obs["obs"][i], obs)
    assert ended > 5


def test_reset_without_a_seed_goes_on() -> None:
    env = SyncVecEnv("toy/Counter-v0", num_envs=2)
    first = env.reset(0)["obs"].clone()
    second = env.reset()["obs"].clone()
    assert not torch.equal(first[:, 2], second[:, 2])
    assert torch.equal(env.reset(0)["obs"][:, 2], first[:, 2])
    assert torch.equal(env.reset()["obs"][:, 2], second[:, 2])
    unseeded = [SyncVecEnv("toy/Counter-v0").reset()["obs"][0, 2] for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(UsageError, match="-1"):
        SyncVecEnv("toy/Counter-v0").reset(-1)


def test_max_episode_steps_replaces_the_registered_limit() -> None:
    for limit, expected in ((None, 8), (3, 3)):
        env = SyncVecEnv("toy/CounterTimed-v0", max_episode_steps=limit)
        env.reset(0)
        lengths = [env.step(noop(env)).truncated.item() for _ in range(8)]
        assert lengths.index(True) + 1 == expected


def test_spread_episodes_puts_time_limits_out_of_phase() -> None:
    env = SyncVecEnv("toy/CounterTimed-v0", num_envs=4, spread_episodes=True)
    env.reset(0)
    ends: list[list[int]] = [[], [], [], []]
    for count in range(1, 17):
        for index in env.step(noop(env)).truncated.nonzero().flatten().tolist():
            ends[index].append(count)
    assert ends == [[8, 16], [6, 14], [4, 12], [2, 10]]


def test_spread_episodes_leaves_an_env_without_limit_alone() -> None:
    env = SyncVecEnv("toy/Counter-v0", num_envs=2, spread_episodes=True)
    env.reset(0)
    assert not env.step(noop(env)).ended.any()


def test_step_seconds() -> None:
    expected = {"Pendulum-v1": 0.05, "CartPole-v1": 0.02, "toy/Counter-v0": 0.1, "toy/Process-v0": None}
    assert {env_id: SyncVecEnv(env_id).step_seconds for env_id in expected} == expected


def test_wrappers_are_applied_in_order() -> None:
    env = SyncVecEnv("toy/Counter-v0", wrappers=[toy_envs.AddTen, toy_envs.AddTen])
    assert env.reset(0)["obs"][0, :2].tolist() == [20, 20]


@pytest.mark.parametrize("fail", ["raise", "sys.exit"])
def test_an_env_that_raises_is_replaced_and_its_step_is_a_truncation(fail: str, caplog: Any) -> None:
    env = SyncVecEnv("toy/Counter-v0", num_envs=3, env_kwargs={"length": 9, "fail": fail, "fail_seed": 11})
    env.reset(10)
    env.step(noop(env))
    before = env.step(noop(env)).obs["obs"].clone()
    with caplog.at_level(logging.WARNING, logger="proxima"):
        step = env.step(noop(env))
    assert step.truncated.tolist() == [False, True, False]
    assert not step.terminated.any()
    assert step.reward.tolist() == [3, 0, 3]
    assert step.final_obs is not None
    assert torch.equal(step.final_obs["obs"][1], before[1])
    assert step.obs["obs"][:, :2].tolist() == [[0, 3], [0, 0], [0, 3]]
    assert step.episodes.return_[1] == 3.0
    assert env.counters() == {"worker_restarts": 1}
    assert len(caplog.records) == 1
    text = caplog.text
    assert "env 1 raised in step" in text
    assert "break_down" in text
    assert ("joint 3 exploded" if fail == "raise" else "out of quarters") in text
    for _ in range(5):
        assert not env.step(noop(env)).truncated.any()
    assert env.counters() == {"worker_restarts": 1}


def test_a_restart_is_repeatable_and_not_the_same_episode_again() -> None:
    draws = []
    for _ in range(2):
        env = SyncVecEnv("toy/Counter-v0", env_kwargs={"length": 99, "fail": "raise", "fail_at": 2})
        env.reset(3)
        draws.append([float(env.step(noop(env)).obs["obs"][0, 2]) for _ in range(9)])
    assert draws[0] == draws[1]
    assert len(set(draws[0])) == 9


def test_an_env_that_raises_in_reset_keeps_the_end_of_its_episode() -> None:
    env = SyncVecEnv("toy/Counter-v0", num_envs=2, env_kwargs={"length": 2, "fail": "reset", "fail_seed": 1})
    env.reset(0)
    env.step(noop(env))
    step = env.step(noop(env))
    assert step.terminated.tolist() == [True, True]
    assert step.reward.tolist() == [2, 2]
    assert step.final_obs is not None
    assert step.final_obs["obs"][:, :2].tolist() == [[0, 2]] * 2
    assert step.obs["obs"][:, :2].tolist() == [[1, 0], [0, 0]]
    assert env.counters() == {"worker_restarts": 1}


def test_an_env_that_always_raises_ends_the_run() -> None:
    env = SyncVecEnv("toy/Counter-v0", env_kwargs={"fail": "raise", "fail_at": 1}, max_failures=3)
    env.reset(0)
    for _ in range(2):
        assert env.step(noop(env)).truncated.all()
    with pytest.raises(EnvFailure, match=r"env 0 of 'toy/Counter-v0' failed 3 times.*RuntimeError: joint 3 exploded"):
        env.step(noop(env))
    assert env.counters() == {"worker_restarts": 2}
    with pytest.raises(RuntimeError, match="closed"):
        env.step(noop(env))


def test_an_observation_of_the_wrong_shape_is_not_broadcast() -> None:
    kwargs = {"observation_space": spaces.Box(0, 1, (3,)), "returned": np.zeros(1)}
    env = SyncVecEnv("toy/Fixed-v0", env_kwargs=kwargs)
    with pytest.raises(EnvFailure, match=r"'obs' has shape \(1,\), its space says \(3,\)"):
        env.reset(0)


def test_close_twice_and_use_after_close() -> None:
    env = SyncVecEnv("toy/Counter-v0")
    env.close()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.reset(0)


def test_step_before_reset_is_refused() -> None:
    env = SyncVecEnv("toy/Counter-v0")
    with pytest.raises(RuntimeError, match="before the first reset"):
        env.step(noop(env))


@pytest.mark.skipif(
    importlib.util.find_spec("Box2D") is None, reason='Box2D is missing: pip install "gymnasium[box2d]"'
)
def test_lunar_lander() -> None:
    env = SyncVecEnv("LunarLander-v3", num_envs=2)
    assert env.reset(0)["obs"].shape == (2, 8)
    assert env.step_seconds == pytest.approx(0.02)
    ended = sum(int(env.step(noop(env)).ended.sum()) for _ in range(150))
    assert ended >= 2


def test_an_env_that_names_no_numbers_has_none() -> None:
    env = SyncVecEnv("toy/Counter-v0", num_envs=2)
    env.reset(0)
    assert env.episode_info == () and env.step(noop(env)).episodes.info == {}


@pytest.mark.parametrize(("declared", "names"), [({"x": 1}, ()), (("a", 1), ()), (("a", "b", "a"), ("a", "b"))])
def test_names_of_numbers_are_a_tuple_of_texts(declared: Any, names: tuple[str, ...]) -> None:
    env = toy_envs.Counter()
    env.episode_info = declared  # type: ignore[attr-defined]
    assert layout_of(env).episode_info == names


@pytest.mark.parametrize("name", ["return", "length_max", "success"])
def test_a_number_that_is_kept_anyway_cannot_be_named(name: str) -> None:
    env = toy_envs.Counter()
    env.episode_info = (name,)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=f"names '{name}', which is reported for every env: leave it out"):
        layout_of(env)


@pytest.mark.parametrize(
    ("value", "number"),
    [(True, 1.0), (np.bool_(False), 0.0), (np.uint8(3), 3.0), (np.float32(0.5), 0.5), (-2, -2.0)],
)
def test_a_number_is_a_float(value: Any, number: float) -> None:
    assert reported_number(value) == number


@pytest.mark.parametrize("value", [None, "7", np.str_("7"), [1.0], np.ones(2), 1j])
def test_what_is_not_a_number_is_nan(value: Any) -> None:
    assert np.isnan(reported_number(value))
