"""The recurrent state in collection: zeroed where an episode ended and only there, stored where sequences begin."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from proxima.algo.ppo import PPOLearner
from proxima.config import load_config
from proxima.envs.make import make_env
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.spec import Spec
from proxima.training.collector import Collector
from proxima.training.endings import EndingBuffer
from proxima.training.episode_statistics import EpisodeStatistics
from proxima.training.trainer import Trainer
from tests.envs import toy_envs  # noqa: F401 - registers them
from tests.envs.synthetic_quadruped import SYNTHETIC

STEPS, ENVS = 25, 3


def make(env_id: str = "CartPole-v1", **options: Any) -> tuple[Collector, ActorCritic, PPOLearner]:
    defaults = {"rnn": "gru", "rnn_size": 8, "hidden_sizes": [8], "bptt_length": 6, "minibatch_size": 4}
    sizes = {"num_envs": ENVS, "num_steps": STEPS, "compile": "off", "env": env_id}
    config = load_config(None, defaults | sizes | options)
    env = make_env(env_id, num_envs=ENVS, max_episode_steps=config.env.max_episode_steps)
    torch.manual_seed(0)
    policy = ActorCritic(Spec.from_spaces(env.observation_space, env.action_space), config.policy, config.normalize)
    cpu = torch.device("cpu")
    collector = Collector(
        env, policy, num_steps=STEPS, device=cpu, env_seed=1, seed=2, sequence_length=config.sequence_length
    )
    return collector, policy, PPOLearner(policy, config, device=cpu, seed=3)


def value_of(policy: ActorCritic, obs: dict[str, torch.Tensor], state: torch.Tensor | None) -> torch.Tensor:
    with torch.no_grad():
        return policy.value(policy.normalizer(obs), state)


def replay(policy: ActorCritic, rollout: Any, first: torch.Tensor) -> torch.Tensor:
    """The state before every step and after the last `[T + 1, N, S]`, made anew from what was seen."""
    states = [first]
    for t in range(STEPS):
        after = policy.act({key: x[t] for key, x in rollout.obs.items()}, None, states[-1]).state
        states.append(after.masked_fill(rollout.ended[t][:, None], 0.0))
    return torch.stack(states)


@pytest.mark.parametrize("rnn", ["gru", "lstm"])
@pytest.mark.parametrize("share", ["on", "off"])
def test_states_are_zeroed_for_ended_envs_only_and_stored_where_sequences_begin(rnn: str, share: str) -> None:
    collector, policy, _ = make(rnn=rnn, share_trunk=share)
    first = policy.first_state(ENVS)
    for _ in range(3):
        rollout = collector.collect()
        assert rollout.ended.any() and not rollout.ended.all(1).any(), "a test of nothing"
        states = replay(policy, rollout, first)
        torch.testing.assert_close(rollout.state, states[:-1:6], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(rollout.last_state, states[-1], rtol=1e-5, atol=1e-6)
        for t, env in rollout.ended.nonzero().tolist():
            assert not states[t + 1, env].any()
        for t, env in (~rollout.ended).nonzero().tolist():
            assert states[t + 1, env].any()
        first = states[-1]


@pytest.mark.parametrize("share", ["on", "off"])
def test_truncated_episodes_are_valued_with_the_state_of_what_came_before(share: str) -> None:
    collector, policy, learner = make(share_trunk=share, max_episode_steps=7, normalize_reward=False)
    rollout = collector.collect()
    before = policy.first_state(ENVS)
    batch = learner.prepare(rollout)
    value = batch.rows.old_value.view(STEPS, ENVS)
    advantage = batch.rows.return_.view(STEPS, ENVS) - value
    places = zip(rollout.final_time.tolist(), rollout.final_env.tolist(), strict=True)
    final = dict(zip(places, rollout.bootstrap_obs()["obs"][ENVS:], strict=True))
    assert len(final) >= 3
    for t in range(STEPS):
        now = {"obs": rollout.obs["obs"][t]}
        torch.testing.assert_close(value_of(policy, now, before), value[t], rtol=1e-5, atol=1e-5)
        after = policy.act(now, None, before).state
        for env in range(ENVS):
            if (t, env) in final:
                end = value_of(policy, {"obs": final[t, env][None]}, after[env][None])
                expected = rollout.reward[t, env] + 0.99 * end[0] - value[t, env]
                torch.testing.assert_close(advantage[t, env], expected, rtol=1e-4, atol=1e-5)
        before = after.masked_fill(rollout.ended[t][:, None], 0.0)
    last = value_of(policy, {"obs": rollout.obs["obs"][-1]}, before)
    open_ended = ~rollout.ended[-1]
    expected = rollout.reward[-1] + 0.99 * last - value[-1]
    torch.testing.assert_close(advantage[-1][open_ended], expected[open_ended], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [1, 5, 25])
def test_the_length_of_sequences_does_not_change_what_was_seen(length: int) -> None:
    """Values and log-probabilities of the behaviour policy, however the rollout is cut."""
    collector, _, learner = make(bptt_length=24)
    rollout = collector.collect()
    expected = learner.prepare(rollout).rows
    other, _, cut = make(bptt_length=length)
    same = other.collect()
    found = cut.prepare(same).rows
    for one, two in (
        (expected.old_value, found.old_value),
        (expected.old_log_prob, found.old_log_prob),
        (expected.advantage, found.advantage),
    ):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_endings_of_a_device_are_those_of_the_cpu() -> None:
    runs = []
    for deferred in (False, True):
        collector, _, learner = make(max_episode_steps=7)
        collector._ending_buffer = EndingBuffer(collector.rollout.num_steps) if deferred else None
        for _ in range(2):
            rollout = collector.collect()
        runs.append(
            [
                rollout.final_time,
                rollout.final_env,
                rollout.bootstrap_obs()["obs"][ENVS:],
                rollout.bootstrap_state()[ENVS:],
                torch.tensor(collector.episodes.returns),
                learner.prepare(rollout).rows.advantage,
            ]
        )
    for one, *others in zip(*runs, strict=True):
        assert all(torch.equal(one, other) for other in others)


def test_a_recurrent_policy_learns_a_dict_with_a_key_for_the_critic_alone() -> None:
    encoders = {"scandots": {"widths": [8]}, "commands": {"use": "critic"}}
    options = {"env": SYNTHETIC, "num_envs": 4, "num_steps": 12, "minibatch_size": 2}
    rnn = {"rnn": "lstm", "rnn_size": 8, "bptt_length": 5, "encoders": encoders, "compile": "off"}
    trainer = Trainer(load_config(None, options | rnn))
    before = trainer.algorithm.learner.state.param.clone()
    trainer.iterate()
    assert not torch.equal(before, trainer.algorithm.learner.state.param)
    assert trainer.policy.actor_keys == ["proprioception", "scandots"]


@pytest.mark.parametrize("deferred", [False, True])
def test_success_and_the_envs_own_numbers_are_kept(deferred: bool) -> None:
    config = load_config(None, {"num_envs": 2, "num_steps": 10, "compile": "off"})
    env = make_env("toy/Scorer-v0", num_envs=2, env_kwargs={"success": True})
    policy = ActorCritic(Spec.from_spaces(env.observation_space, env.action_space), config.policy, config.normalize)
    collector = Collector(env, policy, num_steps=10, device=torch.device("cpu"), env_seed=1, seed=2)
    if deferred:
        collector._ending_buffer = EndingBuffer(10)
    before = collector.episodes.metrics()
    assert "episode_success" not in before and math.isnan(before["episode_x_pos"])
    for _ in range(2):  # 20 steps of two envs, four an episode
        collector.collect()
    found = collector.episodes.metrics()
    assert found["episodes"] == 10 and found["episode_flag_get"] == found["episode_success"] == 3 / 5
    assert found["episode_x_pos"] == 24.0 and math.isnan(found["episode_note"])


def test_statistics_go_through_a_state_and_an_old_one_will_do() -> None:
    one = EpisodeStatistics(["x"])
    one.add(np.array([[1.0, 3.0, math.nan, 5.0], [2.0, 4.0, 1.0, math.nan]]))
    other, old = EpisodeStatistics(["x", "y"]), EpisodeStatistics(["x"])
    other.set_state(one.get_state())
    assert other.returns == [1.0, 2.0] and other.metrics()["episode_x"] == 5.0
    assert other.metrics()["episode_success"] == 1.0 and math.isnan(other.metrics()["episode_y"])
    old.set_state({"returns": [1.0], "lengths": [2], "count": 1})
    assert old.metrics()["episode_return"] == 1.0 and "episode_success" not in old.metrics()
    lists = EpisodeStatistics(["x"])
    lists.set_state({"returns": [1.0, 2.0], "lengths": [3, 4], "success": [1.0], "info": {"x": [5.0, 7.0]}, "count": 9})
    found = lists.metrics()
    assert (found["episode_length_max"], found["episode_success"], found["episode_x"], found["episodes"]) == (
        4,
        1,
        6,
        9,
    )


def test_the_window_is_that_of_the_last_hundred_episodes_with_the_unknown_in_it() -> None:
    statistics = EpisodeStatistics(["x"])
    statistics.add(np.array([[0.0, 1.0, math.nan, 1.0]] * 50))
    assert "episode_success" not in statistics.metrics()  # nothing told yet
    statistics.add(np.array([[0.0, 1.0, 1.0, 3.0]] * 75))
    assert statistics.metrics()["episode_success"] == 1.0 and statistics.metrics()["episode_x"] == 2.5
    statistics.add(np.array([[0.0, 1.0, math.nan, math.nan]] * 100))
    assert math.isnan(statistics.metrics()["episode_success"]) and math.isnan(statistics.metrics()["episode_x"])


def test_what_the_env_gives_a_second_learner_is_stored_with_its_step() -> None:
    collector, _, _ = make()
    real, given = collector.env.step, []

    def step(action: torch.Tensor) -> Any:
        found = real(action)
        found.aux = {"torque": torch.full((ENVS, 2), float(len(given))), "muscle": found.reward.clone()}
        given.append(found.aux)
        return found

    collector.env.step = step  # type: ignore[method-assign]
    rollout = collector.collect()
    for name in ("torque", "muscle"):
        assert torch.equal(rollout.aux[name], torch.stack([aux[name] for aux in given]))


def test_a_state_of_an_older_version_is_read() -> None:
    (one, _, _), (two, _, _) = make(), make()
    one.collect()
    state = one.get_state()
    ours = state["collector"]
    ours["decision_count"], ours["memory"] = ours.pop("policy_steps"), ours.pop("recurrent_state")
    assert two.set_state(state, new_episodes_seed=0) == [] and two.policy_steps == STEPS * ENVS
    assert torch.equal(two.get_state()["collector"]["recurrent_state"][0], ours["memory"][0])
