"""Held actions: the wrapper against hand-computed values, and every back end bit-identical."""

import io
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from proxima.envs.action_hold import ActionHold, Hold, steps_of
from proxima.envs.contract import ExactState, VecEnv
from proxima.envs.make import make_env
from proxima.errors import UsageError
from tests.envs import toy_envs
from tests.envs.synthetic_quadruped import SYNTHETIC

GAMMA = 0.9


@pytest.mark.parametrize(
    ("seconds", "step_seconds", "steps"),
    [
        *((0.0, 0.05, 1), (0.05, 0.05, 1), (0.3, 0.05, 6), (0.1, 0.05, 2), (0.15, 0.05, 3)),
        *((0.1, 0.008, 13), (0.05, 0.008, 6), (0.3, 0.008, 38), (0.001, 0.008, 1), (0.7, 0.1, 7), (0.35, 0.1, 4)),
    ],
)
def test_seconds_become_the_nearest_number_of_steps(seconds: float, step_seconds: float, steps: int) -> None:
    assert steps_of(seconds, step_seconds) == steps


@pytest.mark.parametrize("arguments", [(0, 0), (3, 2), (1, 1, 1.1), (1, 1, -0.1)])
def test_a_hold_that_cannot_be_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match="hold"):
        Hold(*arguments)


# ---- the wrapper


def test_the_wrapper_by_hand() -> None:
    """Counter rewards its step number and ends after four: holds of three take three steps, then one."""
    env = ActionHold(toy_envs.Counter(), 3, gamma=GAMMA)
    env.reset(seed=0)
    obs, reward, terminated, truncated, info = env.step(0)
    assert obs[:2].tolist() == [0, 3] and not terminated and not truncated
    assert reward == 1 + GAMMA * 2 + GAMMA * GAMMA * 3
    assert info["duration"] == 3 and info["undiscounted_reward"] == 6.0
    obs, reward, terminated, truncated, info = env.step(0)
    assert obs[:2].tolist() == [0, 4] and terminated and not truncated
    assert (reward, info["duration"], info["undiscounted_reward"]) == (4.0, 1, 4.0)
    assert env.reset()[0][:2].tolist() == [1, 0]  # nothing of the old hold is left
    assert env.step(0)[4]["duration"] == 3


def test_the_wrapper_stops_at_a_time_limit_inside_it() -> None:
    env = ActionHold(gym.make("toy/CounterTimed-v0"), 5)
    env.reset(seed=0)
    steps = [env.step(0) for _ in range(2)]
    assert [step[4]["duration"] for step in steps] == [5, 3]
    assert [step[3] for step in steps] == [False, True] and steps[1][1] == 6 + 7 + 8


def test_the_wrapper_draws_from_the_generator_of_the_env() -> None:
    def durations(seed: int) -> list[int]:
        env = ActionHold(toy_envs.Counter(length=1000), (2, 4))
        env.reset(seed=seed)
        return [env.step(0)[4]["duration"] for _ in range(40)]

    assert set(durations(1)) == {2, 3, 4}
    assert durations(1) == durations(1) != durations(2)


def test_the_hold_of_the_wrapper_may_change_and_actions_are_copies() -> None:
    env = ActionHold(toy_envs.Echo(gym.spaces.Box(-1, 1, (2,))), 2)
    env.reset(seed=0)
    env.step(np.zeros(2, np.float32))
    env.steps = 3
    assert env.step(np.ones(2, np.float32))[4]["duration"] == 3 and env.steps == 3
    kept = env.unwrapped.kept  # type: ignore[attr-defined]
    assert len(kept) == 5 and len({id(action) for action in kept}) == 5


# ---- every back end


def trajectory(env: VecEnv, count: int, *, seed: int = 3) -> list[torch.Tensor]:
    """Everything that `count` random actions returned, copied; arbitrary rows are left out."""
    first = [x.clone() for x in in_order(env.reset(seed))]
    return [*first, *rollout(env, count)]


def in_order(obs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Sorted by key: Gymnasium sorts the keys of a space, a vector env need not."""
    return [obs[key] for key in sorted(obs)]


def rollout(env: VecEnv, count: int) -> list[torch.Tensor]:
    rng, space, found = np.random.default_rng(0), env.action_space, []
    for _ in range(count):
        if isinstance(space, gym.spaces.Box):
            action = torch.from_numpy(rng.uniform(space.low, space.high, (env.num_envs, *space.shape))).float()
        else:
            action = torch.zeros(env.num_envs, dtype=torch.long)
        step = env.step(action)
        duration = torch.ones(env.num_envs, dtype=torch.long) if step.duration is None else step.duration
        fields = (step.reward, step.terminated, step.truncated, duration)
        found += [x.clone() for x in (*in_order(step.obs), *fields)]
        if step.ended.any():
            assert step.final_obs is not None
            last = (*in_order(step.final_obs), step.episodes.return_, step.episodes.length)
            found += [x[step.ended] for x in last]
        else:
            assert step.final_obs is None
    return found


def assert_equal(one: list[torch.Tensor], two: list[torch.Tensor]) -> None:
    assert len(one) == len(two)
    for place, (a, b) in enumerate(zip(one, two, strict=True)):
        assert torch.equal(a, b), f"item {place} differs: {a} {b}"


def held(env_id: str, mode: str, hold: Hold, **options: Any) -> VecEnv:
    env = make_env(env_id, num_envs=5, mode=mode, **options)
    env.hold = hold
    return env


MUJOCO = ["Hopper-v5", "InvertedDoublePendulum-v5", "Ant-v5", "Reacher-v4"]
HOLDS = [Hold(4, 4, 0.99), Hold(1, 7, 0.9), Hold(100, 100, 1.0)]


@pytest.mark.slow
@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("env_id", [*MUJOCO, SYNTHETIC])
def test_batch_equals_sync_with_ends_in_mid_hold(env_id: str, hold: Hold) -> None:
    """Terminations, and a time limit that is no multiple of any hold."""
    results = []
    for mode in ("batch", "sync"):
        env = held(env_id, mode, hold, max_episode_steps=47, spread_episodes=True)
        results.append(trajectory(env, 30))
        env.close()
    assert_equal(*results)


@pytest.mark.slow
def test_async_equals_sync() -> None:
    results = []
    for mode in ("sync", "async"):
        env = held("Hopper-v5", mode, Hold(1, 7, 0.9), max_episode_steps=47)
        results.append(trajectory(env, 30))
        env.close()
    assert_equal(*results)


@pytest.mark.parametrize("mode", ["batch", "sync"])
def test_a_held_step_is_what_its_single_steps_add_up_to(mode: str) -> None:
    """Bit-identical to the same env stepped repeatedly with the same action."""
    one, many = (held("Hopper-v5", mode, hold, max_episode_steps=20) for hold in (Hold(), Hold(6, 6, GAMMA)))
    rng = np.random.default_rng(1)
    one.reset(0), many.reset(0)
    lengths: list[int] = []
    for _ in range(20):
        action = torch.from_numpy(rng.uniform(-1, 1, (5, 3)).astype(np.float32))
        state, step = one.get_state(), many.step(action)
        assert step.duration is not None
        lengths += step.duration.tolist()
        reward, weight = torch.zeros(5, dtype=torch.float64), 1.0
        for i in range(6):
            single = one.step(action)
            going = step.duration > i  # steps after the end belong to the next episode and are not compared
            reward += torch.where(going, weight * single.reward, 0.0)
            weight *= GAMMA
            last = step.duration == i + 1
            assert torch.equal(single.ended[last], step.ended[last])
            kept = last & ~step.ended
            assert torch.equal(single.obs["obs"][kept], step.obs["obs"][kept])
        assert torch.equal(reward, step.reward)
        one.set_state({**many.get_state(), "hold": state["hold"]})
    assert set(lengths) > {6} and min(lengths) < 6


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["batch", "sync", "async"])
def test_a_hold_of_one_step_is_no_hold(mode: str) -> None:
    results = []
    for hold in (None, Hold(1, 1, 0.5)):
        env = make_env("Hopper-v5", num_envs=5, mode=mode, max_episode_steps=30)
        if hold is not None:
            env.hold = hold
        results.append(trajectory(env, 40))
        env.close()
    assert_equal(*results)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_episodes_are_counted_in_env_steps_and_returns_are_not_discounted(mode: str) -> None:
    env = make_env("toy/Counter-v0", num_envs=2, mode=mode)
    env.hold = Hold(3, 3, 0.5)
    env.reset(0)
    action = torch.zeros(2, dtype=torch.long)
    first = env.step(action)
    assert first.reward.tolist() == [1 + 0.5 * 2 + 0.25 * 3] * 2 and first.final_obs is None
    second = env.step(action)
    assert second.duration is not None and second.duration.tolist() == [1, 1] and second.reward.tolist() == [4.0, 4.0]
    assert second.episodes.return_.tolist() == [10.0, 10.0] and second.episodes.length.tolist() == [4, 4]
    # The next episode has begun, and the held action has not been applied to it.
    assert second.obs["obs"][:, :2].tolist() == [[1.0, 0.0]] * 2
    env.close()


@pytest.mark.parametrize(("mode", "fail"), [("sync", "raise"), ("async", "raise"), ("async", "exit")])
def test_an_env_that_fails_in_mid_hold_is_cut_off_where_the_agent_last_saw_it(mode: str, fail: str) -> None:
    kwargs = {"fail": fail, "fail_at": 5, "length": 100, "fail_seed": 0}
    env = make_env("toy/Counter-v0", num_envs=1, mode=mode, env_kwargs=kwargs)
    env.hold = Hold(3, 3, 0.5)
    env.reset(0)
    action = torch.zeros(1, dtype=torch.long)
    seen = env.step(action).obs["obs"].clone()
    step = env.step(action)
    assert step.truncated.tolist() == [True] and step.reward.tolist() == [0.0] and step.final_obs is not None
    assert step.duration is not None and step.duration.tolist() == [1]
    assert torch.equal(step.final_obs["obs"], seen)
    assert step.episodes.return_.tolist() == [6.0] and step.episodes.length.tolist() == [4]
    env.close()


@pytest.mark.parametrize("mode", ["batch", "sync"])
def test_the_state_holds_the_durations_to_come(mode: str) -> None:
    def make() -> VecEnv:
        return make_env("Hopper-v5", num_envs=5, mode=mode, max_episode_steps=40, spread_episodes=True)

    env = make()
    env.hold = Hold(1, 6, GAMMA)
    trajectory(env, 17)
    assert isinstance(env, ExactState)
    buffer = io.BytesIO()
    torch.save(env.get_state(), buffer)
    expected = rollout(env, 25)
    buffer.seek(0)
    resumed = make()
    assert isinstance(resumed, ExactState)
    resumed.set_state(torch.load(buffer, weights_only=True))
    assert resumed.hold == Hold(1, 6, GAMMA)
    assert_equal(rollout(resumed, 25), expected)


def test_durations_follow_the_seed_and_fill_the_range() -> None:
    def durations(seed: int) -> torch.Tensor:
        env = make_env("HalfCheetah-v5", num_envs=8)
        env.hold = Hold(2, 4, 1.0)
        env.reset(seed)
        action = torch.zeros(8, 6)
        return torch.stack([env.step(action).duration.clone() for _ in range(20)])  # type: ignore[union-attr]

    one = durations(1)
    assert set(one.unique().tolist()) == {2, 3, 4}
    assert any(len(row.unique()) > 1 for row in one)  # not the same for all envs
    assert torch.equal(one, durations(1)) and not torch.equal(one, durations(2))
