"""Envs of a user's own: functions, classes, closures, names; wrappers; vector envs of our contract."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from proxima.config import load_config
from proxima.envs.contract import Obs, VecEnv
from proxima.envs.make import find_spec, make_env, num_envs_of
from proxima.envs.own import find_wrappers
from proxima.envs.tensor_env import TensorVecEnv, World
from proxima.errors import UsageError
from tests.envs.vector_envs import Counting, Mission, make_cart_pole

HERE = "tests.envs.vector_envs"
ROOT = Path(__file__).parents[2]


def rewards(env: VecEnv, steps: int = 30) -> list[list[float]]:
    """What an env does after a reset with seed 3."""
    found = [env.reset(3)["obs"].clone()]
    for _ in range(steps):
        found.append(env.step(torch.ones(env.num_envs, dtype=torch.int64)).obs["obs"].clone())
    return torch.stack(found).flatten(1).tolist()


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_a_function_makes_the_envs_wherever_they_run(mode: str, opened: list[VecEnv]) -> None:
    """By reference, by name and as a closure, whose code is sent to the workers."""
    length = 0.3

    def closure() -> gym.Env:
        env = make_cart_pole()
        env.unwrapped.length = length
        return env

    options: dict[str, Any] = {"num_envs": 3, "mode": mode, "num_workers": 1}
    opened += [
        make_env(make_cart_pole, env_kwargs={"length": 0.3}, **options),
        make_env(f"{HERE}:make_cart_pole", env_kwargs={"length": 0.3}, **options),
        make_env(lambda: closure(), **options),
    ]
    first, *others = [rewards(env) for env in opened]
    assert all(other == first for other in others)
    opened.append(make_env("CartPole-v1", num_envs=3))
    assert rewards(opened[-1]) != first


def test_a_function_that_makes_a_registered_env_equals_its_id(opened: list[VecEnv]) -> None:
    opened += [make_env(make_cart_pole, num_envs=2), make_env("CartPole-v1", num_envs=2)]
    assert rewards(opened[0]) == rewards(opened[1])
    assert opened[0].why_inexact() is None


def test_a_class_makes_one_env(opened: list[VecEnv]) -> None:
    opened.append(make_env(Mission, num_envs=2, leave_out=["mission"]))
    assert list(opened[0].observation_space.spaces) == ["image"]


def test_a_registered_id_comes_before_an_attribute() -> None:
    name = f"{HERE}:make_counting"
    assert find_spec(name).max_episode_steps is None
    gym.register("make_counting", make_cart_pole, max_episode_steps=7)
    try:
        assert find_spec(name).max_episode_steps == 7
    finally:
        del gym.registry["make_counting"]


@pytest.mark.parametrize(("given", "limit"), [(None, 500), (20, 20), (900, 900)])
def test_the_time_limit_is_that_of_the_env_or_replaces_it(given: int | None, limit: int, opened: list[VecEnv]) -> None:
    opened.append(make_env(make_cart_pole, num_envs=1, max_episode_steps=given))
    assert opened[0].time_limit == limit  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (gym.make("CartPole-v1"), "one env object.*give the function"),
        (lambda: 3, "made a int, but it must make a gymnasium.Env"),
        (lambda: Counting(2), "takes its number of envs as num_envs"),
        (lambda num_envs: gym.make("CartPole-v1"), "must make a gymnasium.vector.VectorEnv"),
        (f"{HERE}:make_cart_pol", "nor an attribute of"),
        ("no_such_module_at_all:make", "cannot be imported"),
        ("somewhere:f.<locals>.make", "pass it again as env="),
        ("__main__:no_such_function", "pass it again as env="),
    ],
)
def test_what_makes_no_env_is_an_error_of_one_line(env: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make_env(env, num_envs=2)
    assert "\n" not in str(caught.value)


def test_keywords_of_a_function_are_checked() -> None:
    with pytest.raises(UsageError, match="does not take the keyword 'lenght'; did you mean 'length'"):
        make_env(make_cart_pole, env_kwargs={"lenght": 1.0})


# Wrappers ------------------------------------------------------------------------------------------------------------


class Scaled(gym.ObservationWrapper):
    def __init__(self, env: gym.Env, by: float = 2.0) -> None:
        super().__init__(env)
        self.by = by

    def observation(self, observation: Any) -> Any:
        return observation * self.by


NAME = f"{__name__}:Scaled"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ([Scaled], [NAME]),
        ([Scaled, (Scaled, {"by": 3.0})], [NAME, {NAME: {"by": 3.0}}]),
        ((Scaled, {"by": np.float64(3.0)}), [{NAME: {"by": 3.0}}]),
        (NAME, [NAME]),
        ([f"{{{NAME}: {{by: 4}}}}", NAME], [{NAME: {"by": 4}}, NAME]),
        ([{NAME: {"by": 4}}], [{NAME: {"by": 4}}]),
        (None, []),
    ],
)
def test_wrappers_are_stored_by_name(given: Any, stored: list[Any]) -> None:
    config = load_config(None, {"wrappers": given, "env": "CartPole-v1"})
    assert config.env.wrappers == stored
    assert len(find_wrappers(stored)) == len(stored)


@pytest.mark.parametrize("given", [[3], [["a"]], [{"a": {}, "b": {}}], [(Scaled, {"by": lambda: 3})]])
def test_what_is_no_wrapper_is_an_error(given: Any) -> None:
    with pytest.raises(UsageError, match=r"module:Class|which a file cannot hold"):
        load_config(None, {"wrappers": given})


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_wrappers_are_applied_in_order(mode: str, opened: list[VecEnv]) -> None:
    wrappers = find_wrappers([{NAME: {"by": 3.0}}, "gymnasium.wrappers:FlattenObservation"])
    opened += [
        make_env("CartPole-v1", num_envs=2, mode=mode, num_workers=1, wrappers=wrappers),
        make_env("CartPole-v1", num_envs=2),
    ]
    three, one = (env.reset(0)["obs"] for env in opened)
    assert torch.equal(three, (one.double() * 3).float())


def test_vector_envs_take_no_wrappers() -> None:
    with pytest.raises(UsageError, match="wrappers is for single envs"):
        make_env(Counting, num_envs=2, wrappers=[Scaled])


# Vector envs ---------------------------------------------------------------------------------------------------------


class Drift(TensorVecEnv):
    """Our contract: the action is added to the state."""

    def __init__(self, speed: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.speed = speed
        self.observation_space = spaces.Dict({"obs": spaces.Box(-9, 9, (1,), np.float32)})
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def _first(self) -> World:
        return {"x": torch.zeros(self.num_envs, 1)}

    def _next(self, world: World, action: torch.Tensor) -> tuple[World, torch.Tensor, torch.Tensor | None]:
        x = world["x"] + self.speed * action
        return {"x": x}, -x[:, 0].abs(), None

    def _observation(self, world: World) -> Obs:
        return {"obs": world["x"]}


def test_a_vec_env_of_our_contract_by_class_function_and_object(opened: list[VecEnv]) -> None:
    given = Drift(speed=2.0, num_envs=3)
    opened += [
        make_env(Drift, num_envs=3, env_kwargs={"speed": 2.0}, max_episode_steps=5),
        make_env(lambda num_envs: Drift(2.0, num_envs=num_envs), num_envs=3),
        make_env(given),
    ]
    assert opened[2] is given and num_envs_of(f"{__name__}:Drift") is None
    for env in opened:
        env.reset(0)
        assert env.step(torch.ones(3, 1)).obs["obs"].tolist() == [[2.0]] * 3
        assert env.why_inexact() is None
    assert opened[0].time_limit == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 5}, "num_envs is 5, but env .* has 2 envs: leave num_envs out"),
        ({"max_episode_steps": 5}, "has time limits of its own"),
        ({"env_kwargs": {"mode": "DISABLED"}}, "is an object: give the function"),
        ({"mode": "async"}, "mode async is for single envs"),
    ],
)
def test_an_object_contradicts_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_env(Counting(2), **options)


# Spaces that cannot be taken -----------------------------------------------------------------------------------------


def test_a_text_is_left_out_as_the_error_says(opened: list[VecEnv]) -> None:
    with pytest.raises(UsageError, match=r"--encoders '\{mission: \{use: none\}\}'"):
        make_env(Mission)
    opened.append(make_env(Mission, leave_out=["mission"]))
    assert opened[0].left_out == ("mission",)  # type: ignore[attr-defined]


# Packages that are not there -----------------------------------------------------------------------------------------

WITHOUT_MUJOCO = """
import sys
sys.modules["mujoco"] = None  # an import of it raises ModuleNotFoundError
from proxima.cli import main
small = "--total-timesteps 64 --num-envs 2 --num-steps 32 --minibatch-size 32 --quiet --no-tensorboard".split()
assert main(["train", "--env", "CartPole-v1", *small]) == 0
assert main(["envs", "Cart"]) == 0
"""


@pytest.mark.slow
def test_cart_pole_is_trained_without_mujoco(tmp_path: Path) -> None:
    options: dict[str, Any] = {"capture_output": True, "text": True, "cwd": tmp_path}
    done = subprocess.run([sys.executable, "-c", WITHOUT_MUJOCO], env={"PYTHONPATH": str(ROOT)}, **options)
    assert done.returncode == 0, done.stderr
    assert "CartPole-v1" in done.stdout and "mujoco" not in done.stderr
