"""The choice of a back end, and the errors for ids that do not work."""

import importlib.util
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import toy_envs  # noqa: F401 (registers the envs)

from proxima.envs.catalog import missing_package
from proxima.envs.gymnasium.async_vec import AsyncVecEnv
from proxima.envs.gymnasium.sync_vec import SyncVecEnv
from proxima.envs.make import list_envs, make_env, nearest_id
from proxima.errors import UsageError


def test_auto_is_batch_where_that_can_serve_and_sync_elsewhere() -> None:
    from proxima.envs.mujoco.env import MujocoBatchEnv

    assert isinstance(make_env("HalfCheetah-v5", num_envs=2), MujocoBatchEnv)
    assert isinstance(make_env("CartPole-v1"), SyncVecEnv)
    assert isinstance(make_env("HalfCheetah-v5", wrappers=[lambda env: env]), SyncVecEnv)
    env = make_env("CartPole-v1", mode="async")
    assert isinstance(env, AsyncVecEnv)
    env.close()


def test_batch_where_it_cannot_serve_says_why_and_what_to_use() -> None:
    with pytest.raises(UsageError, match=r"CartPole-v1.*batch.*use sync or async"):
        make_env("CartPole-v1", mode="batch")
    with pytest.raises(UsageError, match="wrappers only run in sync and async"):
        make_env("HalfCheetah-v5", mode="batch", wrappers=[lambda env: env])


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("Cartpole-v1", "'Cartpole-v1' is not registered; did you mean 'CartPole-v1'"),
        ("HalfCheeta-v5", "did you mean 'HalfCheetah-v5'"),
        ("HalfCheetah-v3", "'HalfCheetah-v3' is no longer supported: use 'HalfCheetah-v5'"),
        ("LunarLander-v2", "no longer supported: use 'LunarLander-v3'"),
        ("CartPole-v9", "'CartPole-v9' does not exist: use 'CartPole-v1'"),
        ("other/Pong-v5", r"'package:other/Pong-v5'"),
        ("no_such_module:Env-v0", "the module no_such_module cannot be imported"),
        ("a:b:CartPole-v1", "cannot be imported"),
        ("", "not registered"),
    ],
)
def test_an_unknown_id_offers_the_nearest(env_id: str, words: str) -> None:
    for mode in ("auto", "sync", "async"):
        with pytest.raises(UsageError, match=words) as caught:
            make_env(env_id, mode=mode)
        assert "\n" not in str(caught.value)


def test_ids_with_a_module_and_without_a_version() -> None:
    for env_id in ("toy_envs:toy/Counter-v0", "toy/Counter", "CartPole"):
        make_env(env_id, mode="sync").reset(0)
    env = make_env("toy_envs:toy/Counter-v0", mode="async")
    env.reset(0)
    env.close()


@pytest.mark.parametrize("env_id", ["Qqqqqqqqqq-v0", "Nope-v0", "Foo-v1", "MyEnv-v0", "Test-v0"])
def test_nearest_id_is_none_where_nothing_is_near(env_id: str) -> None:
    assert nearest_id(env_id) is None


@pytest.mark.parametrize(
    ("env_id", "meant"),
    [
        ("pendulum", "Pendulum-v1"),
        ("HalfCheeta", "HalfCheetah-v5"),
        ("halfcheetah-v5", "HalfCheetah-v5"),
        ("Walker-v5", "Walker2d-v5"),
        ("CartPol-v1", "CartPole-v1"),
        ("LunarLandr", "LunarLander-v3"),
        ("Taxy-v3", "Taxi-v4"),
        ("SuperMario", "proxima/SuperMarioBros-v0"),
        ("Recall-v1", "proxima/Recall-v0"),
    ],
)
def test_nearest_id_of_a_mistyped_one(env_id: str, meant: str) -> None:
    assert nearest_id(env_id) == meant


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="ale-py is not installed")
@pytest.mark.parametrize("env_id", ["Pong", "Pong-v4", "ALE/Pnog-v5"])
def test_nearest_id_of_a_game(env_id: str) -> None:
    assert nearest_id(env_id) == "ALE/Pong-v5"


@pytest.mark.parametrize("env_id", ["CartPole-v1", "HalfCheetah-v5", "proxima/Recall-v0"])
@pytest.mark.parametrize("mode", ["auto", "sync", "async"])
@pytest.mark.parametrize("render_mode", ["human", "rgb_array_list"])
def test_training_does_not_render(render_mode: str, mode: str, env_id: str) -> None:
    with pytest.raises(UsageError, match=f"render_mode '{render_mode}'.*evaluate RUN --render.* shows") as caught:
        make_env(env_id, mode=mode, env_kwargs={"render_mode": render_mode})
    assert "\n" not in str(caught.value)


def test_pictures_as_observations_may_be_drawn() -> None:
    wrappers = [gym.wrappers.AddRenderObservation]
    env = make_env("toy/Screen-v0", mode="sync", env_kwargs={"render_mode": "rgb_array"}, wrappers=wrappers)
    assert env.reset(0)["obs"].shape == (1, 240, 256, 3)
    env.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "HalfCheetah-v5"])
@pytest.mark.parametrize(
    ("seed", "words"),
    [(-1, "seed is -1; it must be at least 0"), (2**63, r"below 2\*\*63"), (1.5, "seed is 1.5; it must be a whole")],
)
def test_a_bad_seed_is_named(seed: Any, words: str, env_id: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_env(env_id).reset(seed)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "HalfCheetah-v5"])
def test_the_largest_seed_and_one_of_numpy(env_id: str) -> None:
    env = make_env(env_id, num_envs=2)
    env.reset(2**63 - 1)
    assert torch.equal(env.reset(np.int64(3))["obs"].clone(), env.reset(3)["obs"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env_kwargs": {"sutton_barto_rewards": True}}, "sutton_barto_rewards'; did you mean 'sutton_barto_reward'"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0; it must be at least 1"),
        ({"max_episode_steps": 2**63}, r"max_episode_steps is 9223372036854775808; it must be below 2\*\*31"),
        ({"max_episode_steps": 2**31, "mode": "async"}, "max_episode_steps is 2147483648"),
        ({"max_episode_steps": 10.0}, "max_episode_steps is 10.0; it must be a whole number"),
        ({"num_envs": 0}, "num_envs is 0"),
        ({"num_envs": 2**63}, r"num_envs is 9223372036854775808; it must be below 2\*\*31"),
        ({"num_envs": True}, "num_envs is True; it must be a whole number"),
        ({"num_envs": "4"}, "num_envs is '4'; it must be a whole number"),
        ({"env_kwargs": ["gravity"]}, r"env_kwargs is \['gravity'\]; it must be a mapping"),
        ({"mode": "asyncronous"}, "'asyncronous'.*did you mean 'async'"),
        ({"mode": "async", "num_workers": 0}, "num_workers is 0"),
        ({"max_failures": 0}, "max_failures is 0"),
    ],
    ids=str,
)
def test_bad_options_are_named_in_one_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        make_env("CartPole-v1", **options)
    assert "\n" not in str(caught.value)


def test_a_missing_package_comes_with_the_command_that_installs_it(monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise gym.error.DependencyNotInstalled("Box2D is not installed, run `pip install swig`")

    monkeypatch.setattr(gym, "make", refuse)
    with pytest.raises(UsageError, match=r'needs Box2D: pip install "gymnasium\[box2d\]"'):
        make_env("LunarLander-v3")
    with pytest.raises(UsageError, match="Box2D is not installed, run"):
        make_env("CartPole-v1")


def test_a_missing_module_is_named() -> None:
    gym.register("toy/Absent-v0", "no_such_package.envs:Env")
    try:
        with pytest.raises(UsageError, match="'toy/Absent-v0' needs the package 'no_such_package'"):
            make_env("toy/Absent-v0")
        assert missing_package(gym.registry["toy/Absent-v0"]) == "pip install no_such_package"
    finally:
        del gym.registry["toy/Absent-v0"]


def test_the_list_has_what_can_be_trained_and_nothing_else() -> None:
    listings = {listing.id: listing for listing in list_envs()}
    cheetah = listings["HalfCheetah-v5"]
    assert (cheetah.backends, cheetah.status, cheetah.newest) == (("batch", "sync", "async"), "installed", True)
    assert listings["CartPole-v1"].backends == ("sync", "async")
    assert not listings["HalfCheetah-v4"].newest
    ids = list(listings)
    assert ids.index("HalfCheetah-v5") + 1 == ids.index("HalfCheetah-v4")
    assert not {"HalfCheetah-v2", "HalfCheetah-v3", "GymV21Environment-v0", "phys2d/CartPole-v1"} & set(ids)


def test_the_list_shows_a_missing_package(monkeypatch: Any) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "Box2D" else real(name, *rest))
    listings = {listing.id: listing for listing in list_envs()}
    assert listings["LunarLander-v3"].status == 'pip install "gymnasium[box2d]"'
    assert listings["CartPole-v1"].status == "installed"
