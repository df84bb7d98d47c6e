"""Evaluated episodes against the env stepped by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from proxima import load_policy, train
from proxima.cli import main
from proxima.config import load_config
from proxima.envs.action_hold import Hold
from proxima.envs.contract import VecEnv
from proxima.envs.make import make_env
from proxima.errors import UsageError
from proxima.evaluation import episodes as episodes_module
from proxima.evaluation.episodes import Episode, Evaluation, evaluate, run_episodes
from proxima.evaluation.report import write_report
from proxima.evaluation.restored import restore_policy
from proxima.evaluation.world import chosen_env
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.spec import Spec
from proxima.training.trainer import TrainResult
from tests.envs import toy_envs  # noqa: F401 - registers them
from tests.resealed import tiny

SMALL = {"num_envs": 2, "num_steps": 64, "minibatch_size": 64, "update_epochs": 1, "total_timesteps": 256}
RECURRENT = {"rnn": "gru", "rnn_size": 8, "hidden_sizes": [8], "bptt_length": 8, "minibatch_size": 8}
TRACED = {"deterministic": True, "trace": True}
QUIET = {"compile": "off", "tensorboard": False, "progress": False}


def short_run(env: str, **options: Any) -> TrainResult:
    return train(env=env, **(SMALL | QUIET | options))


class Chance(gym.Env):
    """Lasts a random number of steps; a success if that number is even."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple:
        super().reset(seed=seed)
        self.left = self.length = int(self.np_random.integers(1, 9))
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple:
        self.left -= 1
        info = {"is_success": self.length % 2 == 0} if self.left == 0 else {}
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, info


@pytest.fixture(autouse=True)
def register() -> None:
    gym.register("Chance-v0", Chance)


@pytest.mark.parametrize("rnn", [{}, RECURRENT, RECURRENT | {"share_trunk": "off"}])
def test_deterministic_episodes_equal_the_env_stepped_by_hand(rnn: dict[str, Any]) -> None:
    result = short_run("Hopper-v5", **rnn)
    found = evaluate(result.run_dir, episodes=3, seed=5)
    policy = load_policy(result.run_dir)
    for i, episode in enumerate(found.episodes):
        env = gym.make("Hopper-v5")
        obs, _ = env.reset(seed=5 + i)
        policy.reset()
        total, length, over = 0.0, 0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
            total, length, over = total + float(reward), length + 1, terminated or truncated
        assert (episode.return_, episode.length) == (pytest.approx(total, rel=1e-4), length)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_every_env_runs_as_many_episodes_and_success_is_reported(mode: str) -> None:
    env = make_env("Chance-v0", num_envs=4, mode=mode)
    options = load_config(None, {})
    policy = ActorCritic(Spec.from_spaces(env.observation_space, env.action_space), options.policy, options.normalize)
    episodes = run_episodes(policy, env, episodes=10, seed=3, deterministic=False)
    env.close()
    expected: list[int] = []
    single = [gym.make("Chance-v0").unwrapped for _ in range(4)]
    for n in range(10):
        single[n % 4].reset(seed=3 + n % 4 if n < 4 else None)
        expected.append(single[n % 4].length)
    assert [episode.length for episode in episodes] == expected
    assert [episode.success for episode in episodes] == [length % 2 == 0 for length in expected]
    assert all(episode.terminated for episode in episodes)


def test_the_recurrent_state_is_zero_where_an_episode_begins() -> None:
    policy = short_run("Hopper-v5", **RECURRENT).policy
    act, seen = policy.act, []

    def watched(obs: Any, noise: Any, state: Any) -> Any:
        seen.append(state)
        return act(obs, noise, state)

    policy.act = watched  # type: ignore[method-assign]
    episodes = run_episodes(policy, make_env("Hopper-v5"), episodes=3, seed=5, deterministic=True)
    first, second, _ = (episode.length for episode in episodes)
    assert [t for t, state in enumerate(seen) if not state.any()] == [0, first, first + second]


def test_a_loaded_policy_keeps_its_recurrent_state_until_it_is_reset() -> None:
    policy = load_policy(short_run("Hopper-v5", **RECURRENT).run_dir)
    obs = np.random.default_rng(0).normal(size=(2, 11))
    first, second = policy.act(obs), policy.act(obs)
    assert not np.allclose(first, second)
    policy.reset(np.array([True, False]))
    third = policy.act(obs)
    assert np.allclose(third[0], first[0]) and not np.allclose(third[1], first[1])
    with pytest.raises(UsageError, match=r"is of 2 envs, but there are 1 observations: call reset\(\)"):
        policy.act(obs[0])
    policy.reset()
    assert np.allclose(policy.act(obs[0]), first[0])


@pytest.mark.parametrize("rnn", [{}, RECURRENT | {"share_trunk": "off"}])
def test_a_trace_holds_every_step_in_the_units_of_the_reward(rnn: dict[str, Any]) -> None:
    result = short_run("InvertedPendulum-v5", normalize_reward=True, **rnn)
    found = evaluate(result.run_dir, episodes=2, trace=True, deterministic=False)
    policy = load_policy(result.run_dir).policy
    assert float(policy.return_scale) != 1.0
    for episode in found.episodes:
        trace = episode.trace
        assert len(trace.reward) == len(trace.value) == len(trace.action) == len(trace.entropy) == episode.length
        assert trace.reward.sum() == pytest.approx(episode.return_)
        obs, state = {"obs": torch.tensor(trace.obs["obs"])}, policy.first_state(1)
        start = None if state is None else torch.zeros(episode.length, dtype=torch.bool)
        with torch.no_grad():
            value = policy.value(policy.normalizer(obs), state, start) * policy.return_scale
        np.testing.assert_allclose(trace.value, value.detach().numpy(), rtol=1e-4)


def test_the_same_seed_gives_the_same_episodes_and_stochastic_ones_differ() -> None:
    result = short_run("CartPole-v1")
    one, two, other = (evaluate(result.run_dir, episodes=4, seed=s, deterministic=False) for s in (1, 1, 2))
    assert one.to_dict()["lengths"] == two.to_dict()["lengths"] != other.to_dict()["lengths"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episodes": 0}, "episodes is 0, but it must be >= 1"),
        ({"seed": -1}, "seed is -1, but it must be >= 0"),
        (
            {"env": "Acrobot-v1"},
            r"does not fit the policy: its observation 'obs' is \(6,\), the policy's \(4,\)",
        ),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], message: str) -> None:
    result = short_run("CartPole-v1")
    with pytest.raises(UsageError, match=message):
        evaluate(result.run_dir, **options)


class Drift(gym.Env):
    """Starts at its seed and moves by 1 per step; only a time limit ends it."""

    observation_space = gym.spaces.Box(-99, 99, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple:
        self.place = float(seed or 0)
        return np.array([self.place], np.float32), {}

    def step(self, action: Any) -> tuple:
        self.place += 1
        return np.array([self.place], np.float32), 1.0, False, False, {}


def drifting(num_envs: int, limit: int | None) -> tuple[VecEnv, ActorCritic]:
    gym.register("Drift-v0", Drift, max_episode_steps=limit)
    env = make_env("Drift-v0", num_envs=num_envs, mode="sync")
    options = load_config(None, {})
    torch.manual_seed(0)
    policy = ActorCritic(Spec.from_spaces(env.observation_space, env.action_space), options.policy, options.normalize)
    policy.return_scale.fill_(7.0)
    return env, policy


def test_the_value_after_a_time_limit_is_that_of_the_envs_own_last_observation() -> None:
    env, policy = drifting(2, limit=3)
    episodes = run_episodes(policy, env, episodes=2, seed=5, deterministic=True, trace=True)
    env.close()
    for first, episode in zip((5.0, 6.0), episodes, strict=True):
        obs = {"obs": torch.tensor([[first + t] for t in range(4)])}
        expected = 7.0 * policy.value(obs).detach().numpy()
        assert episode.trace is not None and not episode.terminated
        np.testing.assert_allclose([*episode.trace.value, episode.trace.final_value], expected, rtol=1e-5)
        entropy = policy(policy.normalizer(obs))[0].entropy()[:3]
        np.testing.assert_allclose(episode.trace.entropy, entropy.detach().numpy(), rtol=1e-5)


def test_a_trace_copies_observations_before_the_env_reuses_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    env, policy = drifting(2, limit=3)
    reset, step, buffer = env.reset, env.step, {"obs": torch.zeros(2, 1)}

    def reused(obs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        buffer["obs"].copy_(obs["obs"])
        return buffer

    monkeypatch.setattr(env, "reset", lambda seed: reused(reset(seed)))
    monkeypatch.setattr(env, "step", lambda action: replace(taken := step(action), obs=reused(taken.obs)))
    for first, episode in zip((5.0, 6.0), run_episodes(policy, env, episodes=2, seed=5, **TRACED), strict=True):
        assert episode.trace is not None
        assert episode.trace.obs["obs"].ravel().tolist() == [first, first + 1, first + 2]
        value = 7.0 * policy.value({"obs": torch.tensor(episode.trace.obs["obs"])}).detach().numpy()
        np.testing.assert_allclose(episode.trace.value, value, rtol=1e-5)
    env.close()


def test_an_endless_episode_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes_module, "LONGEST_EPISODE", 50)
    env, policy = drifting(1, limit=None)
    with pytest.raises(UsageError, match="has not ended after 50 policy steps: give the env a time limit"):
        run_episodes(policy, env, episodes=1, seed=0, deterministic=True)
    env.close()


def test_the_checkpoints_own_env_options_are_used() -> None:
    free = {"forward_reward_weight": 0.0, "ctrl_cost_weight": 0.0}
    result = short_run("HalfCheetah-v5", env_kwargs=free, max_episode_steps=7)
    found = evaluate(result.run_dir, episodes=2)
    assert [(episode.return_, episode.length) for episode in found.episodes] == [(0.0, 7), (0.0, 7)]
    other = evaluate(result.run_dir, env="HalfCheetah-v4", episodes=1)  # its own limit, its own options
    assert other.episodes[0].length == 1000 and other.episodes[0].return_ != 0.0


def evaluation(infos: list[dict[str, float]], success: list[bool | None] | None = None) -> Evaluation:
    known = success or [None] * len(infos)
    episodes = [Episode(1.0, 2, True, ok, info=info) for info, ok in zip(infos, known, strict=True)]
    return Evaluation("Game-v0", "a", episodes, 1.0, True, 0, Hold())


def test_the_envs_own_numbers_are_summarised_and_yes_or_no_is_a_share() -> None:
    infos = [{"flag_get": float(i < 3), "x_pos": 100.0 * i, "a_long_name": 7.0} for i in range(4)]
    infos[0].pop("a_long_name")
    found = evaluation(infos)
    lines = found.text().splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [
        *(["return", "1"], ["length", "2"], ["x_pos", "150"], ["a_long_name", "7"], ["flag_get", "75.0%"])
    ]
    assert len({len(line) for line in lines[1:6]}) == 1  # the columns stay in line
    numbers = json.loads(json.dumps(found.to_dict()))
    assert numbers["info"]["x_pos"]["max"] == 300.0 and numbers["info"]["flag_get"]["mean"] == 0.75
    assert numbers["infos"]["a_long_name"] == [None, 7.0, 7.0, 7.0] and numbers["success_rate"] is None


def test_a_number_that_equals_success_is_not_shown_twice() -> None:
    flags = [{"flag_get": 1.0}, {"flag_get": 0.0}]
    same, other = evaluation(flags, [True, False]), evaluation(flags, [True, True])
    assert same.shares == {"success": 0.5} and "flag_get" not in same.text()
    assert other.shares == {"success": 1.0, "flag_get": 0.5}
    assert evaluation([{"flag_get": 0.0}] * 2, [False, False]).text().endswith("success 0.0%")


def test_a_score_that_is_always_zero_is_not_a_share() -> None:
    found = evaluation([{"score": 0.0}] * 2)
    assert found.shares == {} and [name for name, _ in found.rows] == ["return", "length", "score"]


def test_an_env_without_episode_info() -> None:
    found = evaluation([{}, {}])
    assert found.text().splitlines()[2].startswith("return           1") and found.to_dict()["info"] == {}


def test_a_run_of_an_env_that_names_numbers_is_evaluated_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    result = short_run("toy/Scorer-v0", env_kwargs={"success": True})
    found = evaluate(result.run_dir, episodes=3, trace=True)  # the first episode of each of three envs
    assert [episode.info for episode in found.episodes] == [{"flag_get": 1.0, "x_pos": 4.0}] * 3
    assert main(["evaluate", str(result.run_dir), "--episodes", "2", "--analyze-policy"]) == 0
    assert "x_pos" in capsys.readouterr().out
    page = (result.run_dir / "report" / "index.html").read_text()
    assert "<td>x_pos</td><td>4</td>" in page and "success in 100.0% of the episodes" in page
    assert "flag_get" not in page


@pytest.mark.slow
def test_a_trace_of_an_image_agent_keeps_no_images() -> None:
    result = short_run("toy/Screen-v0", total_timesteps=128)
    found = evaluate(result.run_dir, episodes=2, trace=True)
    for episode in found.episodes:
        assert episode.trace is not None and episode.trace.obs == {} and len(episode.trace.value) == 3
    page, _ = write_report(found, value=True, policy=True)
    assert page.is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 10**30}, "seed is a number of 25 hexadecimal digits, but it must be <= 2147483647"),
        ({"seed": 10**400}, "seed is a number of 333 hexadecimal digits, but it must be <= 2147483647"),
        ({"seed": 2**31}, "seed is 2147483648, but it must be <= 2147483647"),
        ({"seed": -1}, "seed is -1, but it must be >= 0"),
        ({"seed": 1.5}, "seed is 1.5, but it must be a whole number"),
        ({"seed": "7"}, "seed is '7', but it must be a whole number"),
        ({"seed": None}, "seed is None, but it must be a whole number"),
        ({"episodes": 0}, "episodes is 0, but it must be >= 1"),
        ({"episodes": 10**30}, "episodes is a number of 25 hexadecimal digits, but it must be <= 1000000"),
        (
            {"env_kwargs": {"render_mode": "human"}},
            "render_mode human, which opens a window for every env: leave it out",
        ),
    ],
)
def test_numbers_and_keywords_out_of_range_are_one_line(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run")
    with pytest.raises(UsageError, match=message) as error:
        evaluate(folder, **options)
    assert "\n" not in str(error.value)
    if "seed" in options:
        with pytest.raises(UsageError, match=message):
            load_policy(folder, **options)


def test_the_highest_seed_works(tmp_path: Path) -> None:
    assert len(evaluate(tiny(tmp_path / "run"), episodes=3, seed=2**31 - 1).episodes) == 3


def test_a_window_that_the_run_had_is_not_opened_again(tmp_path: Path) -> None:
    saved = restore_policy(tiny(tmp_path / "run", env_kwargs={"render_mode": "human", "sutton_barto_reward": True}))
    assert chosen_env(saved.config, None, None) == ("CartPole-v1", {"sutton_barto_reward": True}, None)
