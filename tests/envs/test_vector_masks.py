"""Masks, numbers of the info and calls of Gymnasium vector envs: as in sync mode, whichever way the env has them."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from torch import Tensor

from proxima import make_env, train
from proxima.envs.contract import Obs, VecEnv
from proxima.envs.gymnasium.vector import GymnasiumVectorEnv
from proxima.envs.tensor_env import TensorVecEnv, World
from proxima.errors import EnvFailure, UsageError
from proxima.evaluation.episodes import evaluate
from proxima.training.trainer import Trainer
from tests.envs.test_vector import MODES, trainer
from tests.envs.vector_envs import MaskedCounting
from tests.masked_envs import ENV, Maze
from tests.training.runs import SMALL

WAYS = ("info", "observation", "method")


def valid(mask: Tensor, sizes: list[int]) -> Tensor:
    """The first valid choice of every column."""
    chosen = torch.stack([column.long().argmax(-1) for column in mask.split(sizes, -1)], -1)
    return chosen if len(sizes) > 1 else chosen[:, 0]


def masked_steps(env: VecEnv, sizes: list[int], steps: int) -> list[Obs]:
    """Observations, and the final ones of ended envs, of a policy that takes the first valid choice."""
    obs = env.reset(3)
    found = [{key: x.clone() for key, x in obs.items()}]
    for _ in range(steps):
        step = env.step(valid(obs["action_mask"], sizes))
        obs = step.obs
        found.append({key: x.clone() for key, x in obs.items()})
        if step.final_obs is not None:
            found.append({key: x[step.ended].clone() for key, x in step.final_obs.items()})
    return found


@pytest.mark.parametrize("kind", ["shifted", "multi_discrete"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
def test_gymnasiums_vector_env_has_the_masks_of_our_sync_mode(kind: str, way: str, mode: str) -> None:
    Maze.invalid_actions = 0
    options: dict[str, Any] = {"kind": kind, "way": way, "truncates": True}
    theirs = GymnasiumVectorEnv(
        SyncVectorEnv([partial(Maze, **options)] * 3, autoreset_mode=AutoresetMode[mode]), name="maze"
    )
    ours = make_env(ENV, num_envs=3, mode="sync", env_kwargs=options)
    assert theirs.observation_space == ours.observation_space
    sizes = [3, 4] if kind == "multi_discrete" else [5]
    found, expected = masked_steps(theirs, sizes, 45), masked_steps(ours, sizes, 45)
    assert len(found) == len(expected) == 48  # two ends of every env
    for one, two in zip(found, expected, strict=True):
        final = len(one["action_mask"]) < 3 or way == "method"
        for key in two:
            # A method cannot be asked for the mask before a reset in the same step.
            if not (key == "action_mask" and way == "method" and mode == "SAME_STEP" and final):
                assert torch.equal(one[key], two[key]) and one[key].dtype == two[key].dtype
    assert Maze.invalid_actions == 0


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "way"), [*((mode, "info") for mode in MODES), ("DISABLED", "method")])
def test_the_same_in_the_processes_of_gymnasium(mode: str, way: str) -> None:
    options: dict[str, Any] = {"way": way, "truncates": True}
    envs = AsyncVectorEnv([partial(Maze, **options)] * 2, autoreset_mode=AutoresetMode[mode])
    theirs = GymnasiumVectorEnv(envs, name="maze")
    found = masked_steps(theirs, [5], 25)
    theirs.close()
    expected = masked_steps(make_env(ENV, num_envs=2, mode="sync", env_kwargs=options), [5], 25)
    for one, two in zip(found, expected, strict=True):
        assert all(torch.equal(one[key], two[key]) for key in two)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
def test_masks_belong_to_their_observations(mode: str, way: str, tensors: bool) -> None:
    """Where something is chosen, the mask is that of the observation's step; no mask that is acted on is empty."""
    env = MaskedCounting(2, mode=mode, way=way, tensors=tensors)
    adapted = GymnasiumVectorEnv(env, name="counting")
    seen = "seen" if way == "observation" else "obs"
    obs = adapted.reset(0)
    for _ in range(14):
        assert obs["action_mask"].dtype == torch.uint8 and obs["action_mask"].any(1).all()
        odd = obs[seen][:, 1] % 2 == 1
        acts = ~adapted._ended if adapted.skips else torch.ones(2, dtype=torch.bool)
        assert torch.equal(obs["action_mask"][acts], torch.stack([odd, ~odd], 1).byte()[acts])
        step = adapted.step(valid(obs["action_mask"], [2]))
        obs = step.obs
    assert env.invalid == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_run_on_masked_vector_envs_takes_no_invalid_action(mode: str) -> None:
    env = MaskedCounting(4, mode=mode, tensors=True)
    run = trainer(env, num_steps=32, minibatch_size=64, total_timesteps=256)
    run.run()
    assert env.invalid == 0 and "invalid actions masked" in run.source.text()


def test_dqn_on_a_masked_vector_env_takes_no_invalid_action_in_evaluation_either() -> None:
    options: dict[str, Any] = {"algorithm": "DQN", "learning_starts": 32, "buffer_size": 500, "iteration_steps": 64}
    made: list[MaskedCounting] = []

    def make(num_envs: int) -> MaskedCounting:
        made.append(MaskedCounting(num_envs))
        return made[-1]

    done = train(env=make, total_timesteps=256, **SMALL | options)
    evaluate(done.run_dir, episodes=4, deterministic=False)
    assert len(made) == 2 and [env.invalid for env in made] == [0, 0]


def test_a_mask_that_is_missing_later_is_an_error() -> None:
    env = MaskedCounting(2)
    adapted = GymnasiumVectorEnv(env, name="counting")
    adapted.reset(0)
    env.info = lambda: {"action_mask": np.ones((2, 2)), "_action_mask": np.array([True, False])}  # type: ignore[method-assign]
    with pytest.raises(
        EnvFailure, match="counting: the info has no 'action_mask' of env 1, but that of the first reset"
    ):
        adapted.step(torch.ones(2, dtype=torch.int64))
    env.info = dict  # type: ignore[method-assign]
    with pytest.raises(EnvFailure, match="of env 0"):
        adapted.step(torch.zeros(2, dtype=torch.int64))
    env.info = lambda: {"action_mask": np.ones((2, 3))}  # type: ignore[method-assign]
    with pytest.raises(EnvFailure, match=r"action_mask has shape \(2, 3\), but it must be \(2, 2\)"):
        adapted.step(torch.ones(2, dtype=torch.int64))


def test_a_key_of_another_size_is_not_a_mask() -> None:
    env = MaskedCounting(2, way="observation")
    env.single_observation_space["action_mask"] = spaces.MultiBinary(3)
    with pytest.raises(UsageError, match="has 3 numbers, but the action space"):
        GymnasiumVectorEnv(env, name="counting")


# Numbers of the info -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_numbers_of_the_info_are_averaged_over_env_steps(mode: str, tensors: bool) -> None:
    """Two episodes of 3 and of 4 steps: skipped rows and first observations do not count."""
    made = MaskedCounting(2, mode=mode, tensors=tensors)
    env = make_env(made, log_info=["time", "episodes", "absent"])
    env.reset(0)
    ended: list[tuple[float, float]] = []
    for _ in range(4):
        step = env.step(torch.zeros(2, dtype=torch.int64))
        ended += [
            (float(step.episodes.info["time"][i]), float(x))
            for i, x in enumerate(step.episodes.length)
            if step.ended[i]
        ]
    means = env.take_info()
    times = [1, 2, 3, *([] if mode == "NEXT_STEP" else [1]), 1, 2, 3, 4]
    assert means["time"] == pytest.approx(np.mean(times))
    assert np.isnan(means["absent"]) and means["episodes"] >= 0
    assert ended == [(3.0, 3.0), (4.0, 4.0)]
    assert np.isnan(env.take_info()["time"])


def test_gymnasiums_vector_env_has_the_numbers_of_our_sync_mode() -> None:
    def make() -> gym.Env:
        return gym.wrappers.TimeLimit(gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1")), 5)

    class Numbers(gym.Wrapper):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            info |= {"angle": float(obs[2]), "fell": np.bool_(terminated)}  # Gymnasium makes objects of the latter
            return obs, reward, terminated, truncated, info

    for mode in MODES:
        vector = SyncVectorEnv([lambda: Numbers(make())] * 2, autoreset_mode=AutoresetMode[mode])
        pair = (
            make_env(vector, log_info=["angle", "fell"]),
            make_env(lambda: Numbers(make()), num_envs=2, log_info=["angle", "fell"]),
        )
        for env in pair:
            env.reset(1)
            for action in [0, 1, 1, 0, 1, 1, 0, 1, 1, 1, 0, 0]:
                env.step(torch.tensor([action, 1 - action]))
        assert pair[0].take_info() == pytest.approx(pair[1].take_info())


class Level(TensorVecEnv):
    """An own vector env that reports a number, and has a method."""

    log_info = ("level",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observation_space = spaces.Dict({"obs": spaces.Box(0, 1, (1,), np.float32)})
        self.action_space = spaces.Discrete(2)
        self.level = 1.0

    def _first(self) -> World:
        return {"x": torch.zeros(self.num_envs)}

    def _next(self, world: World, action: Tensor) -> tuple[World, Tensor, Tensor | None]:
        return {"x": world["x"]}, action.double(), None

    def _observation(self, world: World) -> Obs:
        return {"obs": world["x"][:, None]}

    def take_info(self) -> dict[str, float]:
        return {"level": self.level}

    def set_level(self, level: float) -> None:
        self.level = level


def test_numbers_of_an_own_vec_env_are_logged_and_others_refused() -> None:
    seen: list[float] = []

    def on_iteration(run: Trainer, metrics: dict[str, float]) -> None:
        seen.append(metrics["info_level"])
        run.call_envs("set_level", 5.0)

    options: dict[str, Any] = {"env": Level, "max_episode_steps": 5, "total_timesteps": 256, **SMALL}
    train(**options, log_info="level", on_iteration=on_iteration)
    assert seen == [1.0, 5.0]
    with pytest.raises(UsageError, match=r"log_info is level, power, but env .*Level' reports level: leave power out"):
        train(**options, log_info="level,power")


# Calls ---------------------------------------------------------------------------------------------------------------


def test_methods_of_vector_envs_are_called() -> None:
    class Outer(VectorWrapper):
        pass

    env = MaskedCounting(2)
    run = trainer(Outer(env))
    assert run.call_envs("set_level", 3) == 3 and env.level == 3
    with pytest.raises(UsageError, match="has no method 'set_color' to call"):
        run.call_envs("set_color", 3)
    run.close()


def test_methods_of_the_envs_in_a_sync_vector_env_are_called() -> None:
    run = trainer(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2))
    assert run.call_envs("has_wrapper_attr", "gravity") == [True, True]
    with pytest.raises(UsageError, match=r"set_color of env .*AttributeError"):
        run.call_envs("set_color", 3)
    run.close()
