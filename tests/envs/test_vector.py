"""Gymnasium vector envs through our contract: trajectories and final observations in every autoreset mode."""

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from proxima.envs.action_hold import Hold
from proxima.envs.contract import VecEnv
from proxima.envs.gymnasium.vector import GymnasiumVectorEnv
from proxima.envs.make import make_env
from proxima.errors import EnvFailure, UsageError
from proxima.training.trainer import Trainer
from tests.envs.vector_envs import Counting
from tests.probes import Endless, learn

MODES = ("SAME_STEP", "NEXT_STEP", "DISABLED")
Choose = Callable[[VecEnv], Tensor]


def zeros(env: VecEnv) -> Tensor:
    return torch.zeros(env.num_envs, dtype=torch.int64)


def transitions(env: VecEnv, steps: int, choose: Choose = zeros) -> list[list[tuple[Any, ...]]]:
    """Of each env, without skipped rows: observation, reward, ends, next or final observation, return and length."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(env.num_envs)]
    obs = env.reset(0)["obs"].clone()
    for _ in range(steps):
        step = env.step(choose(env))
        for i, mine in enumerate(found):
            if step.skipped is not None and step.skipped[i]:
                assert step.reward[i] == 0 and not step.ended[i]
                continue
            after = step.final_obs["obs"][i] if step.ended[i] and step.final_obs else step.obs["obs"][i]
            ends = bool(step.terminated[i]), bool(step.truncated[i])
            numbers = float(step.episodes.return_[i]), int(step.episodes.length[i])
            mine.append((obs[i].tolist(), float(step.reward[i]), ends, after.tolist(), numbers if any(ends) else None))
        obs = step.obs["obs"].clone()
    return found


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_has_the_transitions_of_the_episodes(mode: str, tensors: bool) -> None:
    env = GymnasiumVectorEnv(Counting(2, mode=mode, tensors=tensors), name="counting")
    for limit, mine in zip((3, 4), transitions(env, 14), strict=True):
        for number, row in enumerate(mine):
            episode, time = divmod(number, limit)
            ended = time == limit - 1
            ends = (ended and episode % 2 == 1, ended and episode % 2 == 0)
            totals = (float(limit), limit) if ended else None
            assert row == ([episode, time], 1.0, ends, [episode, time + 1], totals)


def test_only_next_step_autoreset_skips_rows() -> None:
    envs = {mode: GymnasiumVectorEnv(Counting(2, mode=mode), name="counting") for mode in MODES}
    assert {mode for mode, env in envs.items() if env.skips} == {"NEXT_STEP"}
    taken = {mode: len(transitions(env, 12)[0]) for mode, env in envs.items()}
    assert taken == {"SAME_STEP": 12, "DISABLED": 12, "NEXT_STEP": 9}


@pytest.mark.parametrize("mode", MODES)
def test_gymnasiums_own_vector_envs_equal_our_sync_mode(mode: str) -> None:
    """They reset single envs where they are asked to, so that no step is skipped in any mode."""

    def choose(env: VecEnv) -> Tensor:
        return torch.from_numpy(generator.integers(0, 2, env.num_envs))

    # Without copies, its next call overwrites what it returned.
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3, copy=False, autoreset_mode=AutoresetMode[mode])
    theirs, ours = GymnasiumVectorEnv(envs, name="sync"), make_env("CartPole-v1", num_envs=3, mode="sync")
    assert not theirs.skips
    found = []
    for env in (theirs, ours):
        generator = np.random.default_rng(0)
        found.append(transitions(env, 60, choose))
        env.close()
    assert found[0] == found[1]
    assert any(row[2][0] for row in found[0][0])


class Mixed(gym.Env):
    """Observations of every kind of space."""

    observation_space = spaces.Dict(
        {
            "one": spaces.Discrete(3, start=1),
            "two": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2))),
            "three": spaces.Box(-1.0, 1.0, (), np.float32),
        }
    )
    action_space = spaces.MultiDiscrete([2, 2], start=[1, 5])

    def __init__(self) -> None:
        self.observation_space = copy.deepcopy(self.observation_space)  # with a generator of its own

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), float(np.dot(action, [1, 10])), False, False, {}


def test_every_space_is_read_as_in_sync_mode() -> None:
    envs = SyncVectorEnv([Mixed] * 2)
    pair = GymnasiumVectorEnv(envs, name="mixed"), make_env(Mixed, num_envs=2)
    assert pair[0].observation_space == pair[1].observation_space
    seen = [env.reset(0) for env in pair]
    steps = [env.step(torch.tensor([[0, 1], [1, 0]])) for env in pair]
    assert steps[0].reward.tolist() == steps[1].reward.tolist() == [61.0, 52.0]
    for one, two in (seen, [step.obs for step in steps]):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) and one[key].dtype == two[key].dtype for key in one)


def test_the_final_observation_of_cart_pole_is_outside_its_bounds() -> None:
    env = make_env(gym.make_vec("CartPole-v1", num_envs=8, vectorization_mode="vector_entry_point"))
    first = env.reset(0)["obs"]
    assert first.abs().max() <= 0.05
    ends, was_over = 0, torch.zeros(8, dtype=torch.bool)
    for _ in range(60):
        step = env.step(torch.ones(8, dtype=torch.int64))  # falls within a dozen steps
        if step.skipped is not None:
            assert torch.equal(step.skipped, was_over)
            assert step.obs["obs"][step.skipped].abs().max() <= 0.05
        was_over = step.ended.clone()
        if step.final_obs is not None:
            assert (step.final_obs["obs"][step.ended][:, 2].abs() > 0.2).all()
            assert (step.episodes.return_[step.ended] == step.episodes.length[step.ended]).all()
            ends += int(step.ended.sum())
    assert ends > 20


def test_tensors_are_not_copied() -> None:
    counting = Counting(2, tensors=True)
    given = torch.zeros(2, 2)
    counting.give = lambda array: given if array.shape == (2, 2) else torch.from_numpy(array)  # type: ignore[method-assign]
    env = GymnasiumVectorEnv(counting, name="counting")
    env.reset(0)
    assert env.step(zeros(env)).obs["obs"].data_ptr() == given.data_ptr()


def test_the_final_observation_of_a_truncated_episode_is_required() -> None:
    counting = Counting(2)
    original = counting.step
    counting.step = lambda actions: (*original(actions)[:4], {})  # type: ignore[method-assign]
    env = GymnasiumVectorEnv(counting, name="counting")
    env.reset(0)
    with pytest.raises(EnvFailure, match="final_obs"):
        for _ in range(3):
            env.step(zeros(env))


def test_actions_cannot_be_held() -> None:
    env = GymnasiumVectorEnv(Counting(2), name="counting")
    env.hold = Hold(1, 1, 0.9)
    with pytest.raises(UsageError, match="actions cannot be held in counting"):
        env.hold = Hold(2, 2)


def test_an_unknown_autoreset_mode_is_an_error() -> None:
    counting = Counting(2)
    counting.metadata = {}
    with pytest.raises(UsageError, match="metadata"):
        GymnasiumVectorEnv(counting, name="counting")


def test_an_object_is_left_open_and_a_made_env_is_closed() -> None:
    given = Counting(2)
    make_env(given).close()
    assert not given.is_closed
    made: list[Counting] = []

    def make(num_envs: int) -> Counting:
        made.append(Counting(num_envs))
        return made[0]

    make_env(make, num_envs=3).close()
    assert made[0].is_closed and made[0].num_envs == 3


# Learning ------------------------------------------------------------------------------------------------------------


def trainer(config: Any, **options: Any) -> Trainer:
    from proxima.config import load_config

    small = {"num_steps": 16, "minibatch_size": 8, "update_epochs": 1, "tensorboard": False, "quiet": True}
    return Trainer(load_config(None, {"env": config, "total_timesteps": 1000, **small, **options}))


@pytest.mark.parametrize("rnn", ["none", "gru"])
def test_nothing_is_learned_from_skipped_rows(rnn: str) -> None:
    run = trainer(Counting(2, mode="NEXT_STEP"), rnn=rnn, rnn_size=8, bptt_length=4, normalize_obs=False)
    ppo = run.algorithm.learners["learner"]
    rollout = run.source.collect()
    skipped = rollout.skipped
    assert skipped is not None
    assert skipped.sum(0).tolist() == [4, 3]  # 16 steps of 3 + 1, and of 4 + 1
    assert run.source.global_step == 32 - 7
    assert rollout.episode_ends.sum(0).tolist() == [4, 3]
    batch = ppo.prepare(rollout)  # type: ignore[attr-defined]
    rows, everything = batch.rows, torch.arange(ppo.layout.num_sequences)  # type: ignore[attr-defined]
    weights = ppo.flat.views(ppo.flat.vector)
    loss, _ = ppo.loss(weights, ppo.gather(rows, everything))
    blank = skipped.flatten()
    changed = rows._replace(
        action=torch.where(blank, 1 - rows.action, rows.action),
        old_log_prob=torch.where(blank, -3.0, rows.old_log_prob),
        return_=torch.where(blank, 99.0, rows.return_),
    )
    assert torch.equal(loss, ppo.loss(weights, ppo.gather(changed, everything))[0])
    assert (rows.advantage[blank] == 0).all()
    run.close()


def test_skipped_rows_start_a_sequence_anew() -> None:
    run = trainer(Counting(2, mode="NEXT_STEP"), rnn="gru", rnn_size=8, bptt_length=4)
    rollout = run.source.collect()
    assert rollout.start[4, 0] and rollout.start[3, 0]  # after the skipped row, and before it
    assert rollout.obs["obs"][4, 0].tolist() == [1.0, 0.0]
    assert rollout.state is not None and (rollout.state[1, 0] == 0).all()  # step 4: the first of the second episode
    run.close()


def test_dqn_refuses_skipped_rows() -> None:
    with pytest.raises(UsageError, match="SAME_STEP"):
        trainer(Counting(2, mode="NEXT_STEP"), algorithm="DQN")


class EndlessVector(Counting):
    """Reward 1 for ever, cut by time limits; the observation says nothing."""

    def observe(self) -> np.ndarray:
        return np.zeros((self.num_envs, 2), np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tensors", [False, True])
def test_time_limits_are_bootstrapped_in_every_mode(mode: str, tensors: bool) -> None:
    env = EndlessVector(8, mode=mode, tensors=tensors, endless=True)
    policy = learn(env, 16_000)  # type: ignore[arg-type]
    found = policy.value({"obs": torch.zeros(1, 2)}).item()
    assert found == pytest.approx(1 / (1 - 0.8), abs=0.1)
    assert policy.spec.action.start == (3,)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_same_value_with_gymnasiums_sync_vector_env(mode: str) -> None:
    def make() -> gym.Env:
        return gym.wrappers.TimeLimit(Endless(), 8)

    env = SyncVectorEnv([make] * 8, autoreset_mode=AutoresetMode[mode])
    policy = learn(env, 16_000)  # type: ignore[arg-type]
    assert policy.value({"obs": torch.zeros(1, 1)}).item() == pytest.approx(5.0, abs=0.1)
    env.close()


@pytest.mark.slow
def test_gymnasiums_cart_pole_is_learned_as_ours_is() -> None:
    from proxima import train

    options: dict[str, Any] = {"total_timesteps": 16_000, "preset": "cartpole", "quiet": True, "num_envs": 8}
    options |= {"compile": "off", "tensorboard": False}
    theirs = gym.make_vec("CartPole-v1", num_envs=8, vectorization_mode="vector_entry_point")
    returns = [train(env=env, **options).episode_return for env in (theirs, "CartPole-v1")]
    assert min(returns) > 80, returns
