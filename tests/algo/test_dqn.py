"""DQN's learner: targets and losses by hand, what happens when, and a chain whose values are known."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from proxima.algo.dqn import DQNLearner
from proxima.config import Config, load_config
from proxima.data.replay import Replay
from proxima.data.rollout import Rollout
from proxima.errors import NonFiniteError
from proxima.nets.q_network import QNetwork
from proxima.nets.spec import ActionSpec, ObsSpec, Spec

CPU = torch.device("cpu")
DQN = {
    "train_freq": 4,
    "target_update_every": 100,
    "double_q": False,
    "exploration_start": 1.0,
    "exploration_end": 0.1,
    "exploration_fraction": 0.5,
}
STEPS, ENVS = 16, 4


def configured(**options: Any) -> Config:
    defaults = {"compile": "off", "hidden_sizes": [16], "normalize_obs": False, "gamma": 0.9, "minibatch_size": 8}
    defaults["num_envs"] = ENVS
    return load_config(None, {"algorithm": "DQN", "lr_schedule": "constant", **DQN, **defaults, **options})


def make(seed: int = 0, **options: Any) -> tuple[DQNLearner, Replay, QNetwork]:
    """A learner, and a replay of random transitions."""
    config = configured(**options)
    torch.manual_seed(seed)
    policy = QNetwork(
        Spec({"obs": ObsSpec((3,), "float32")}, ActionSpec("discrete", (4,))), config.policy, config.normalize
    )
    return DQNLearner(policy, config, device=CPU, seed=3), filled(random_rollout()), policy


def random_rollout() -> Rollout:
    generator = torch.Generator().manual_seed(1)
    rollout = empty(3)
    rollout.obs["obs"].normal_(generator=generator)
    rollout.reward.normal_(generator=generator)
    rollout.action.random_(0, 4, generator=generator)
    rollout.terminated[:] = torch.rand(STEPS, ENVS, generator=generator) < 0.2
    rollout.truncated[9, 2] = not rollout.terminated[9, 2]
    if rollout.truncated[9, 2]:
        rollout.add_final(torch.tensor([9]), torch.tensor([2]), {"obs": torch.randn(1, 3, generator=generator)})
    return rollout


def empty(width: int) -> Rollout:
    return Rollout(
        num_steps=STEPS,
        num_envs=ENVS,
        obs={"obs": torch.zeros(ENVS, width)},
        action=torch.zeros(ENVS, dtype=torch.long),
        device=CPU,
    )


def filled(rollout: Rollout) -> Replay:
    replay = Replay(rollout, buffer_size=STEPS * ENVS, margin=STEPS, gamma=0.9)
    replay.add(rollout)
    return replay


class Table(QNetwork):
    """Q is the parameter itself, by state: what is computed from it can be computed by hand."""

    def __init__(self, q: Tensor, config: Any):
        spec = Spec({"obs": ObsSpec((len(q),), "float32")}, ActionSpec("discrete", (q.shape[1],)))
        super().__init__(spec, config.policy, config.normalize)
        self.actor_trunk = torch.nn.Identity()  # type: ignore[assignment]
        self.action_head.linear = torch.nn.Linear(*q.shape, bias=False)
        self.action_head.linear.weight.data = q.T.clone()

    def forward(self, obs: Any, state: Any = None, start: Any = None) -> Any:
        return super().forward(obs["obs"], state, start)


@pytest.mark.parametrize(("double", "next_value"), [(False, 7.0), (True, 3.0)])
def test_targets_and_loss_by_hand(double: bool, next_value: float) -> None:
    config = configured(double_q=double, learning_rate=0.1, max_grad_norm=None)
    table = Table(torch.tensor([[1.0, 2.0], [5.0, 4.0]]), config)  # the online network prefers action 0 in state 1
    learner = DQNLearner(table, config, device=CPU, seed=0)
    learner.target.copy_(torch.tensor([[0.0, 3.0], [0.0, 7.0]]).flatten())  # weights are [A, S]: 3 and 7 in state 1
    states = torch.eye(2)
    batch = SimpleNamespace(
        obs={"obs": states[[0, 0]]},
        action=torch.tensor([1, 0]),
        return_=torch.tensor([0.5, 1.25]),
        discount=torch.tensor([0.9, 0.0]),
        next_obs={"obs": states[[1, 1]]},
        number=torch.arange(2),
    )
    data = learner._prepare(batch)  # type: ignore[arg-type]
    target = learner.complete(learner.flat.views(learner.state.param), data).target
    torch.testing.assert_close(target, torch.tensor([0.5 + 0.9 * next_value, 1.25]))
    _, metrics = learner._step(learner.state, learner.learning_rate, [data])
    found = dict(zip(learner.step_metrics, metrics.tolist(), strict=True))
    errors = (0.5 + 0.9 * next_value - 2.0, 0.25)  # the first beyond 1, where the loss is linear
    assert found["q_loss"] == pytest.approx(((errors[0] - 0.5) + 0.5 * errors[1] ** 2) / 2)
    assert found["td_error"] == pytest.approx(sum(errors) / 2) and found["q_mean"] == pytest.approx(1.5)
    assert found["gradient_norm"] == pytest.approx((0.5**2 + 0.125**2) ** 0.5)


def test_the_target_is_copied_exactly_when_due() -> None:
    learner, replay, _ = make(target_update_every=100)
    first = learner.target.clone()
    learner.update(replay, 3)
    assert not learner.copy_target(99) and torch.equal(learner.target, first)
    assert not torch.equal(learner.state.param, first)
    assert learner.copy_target(100) and torch.equal(learner.target, learner.state.param)
    learner.update(replay, 1)
    assert not learner.copy_target(199) and learner.copy_target(230)  # a multiple of 100 passed in between
    assert not learner.copy_target(299) and learner.copy_target(300)
    # The target is no view of the weights.
    learner.update(replay, 1)
    assert not torch.equal(learner.target, learner.state.param)


def test_the_policy_sees_the_new_weights() -> None:
    learner, replay, policy = make()
    learner.update(replay, 5)
    parameter = next(policy.parameters())
    assert torch.equal(parameter.flatten(), learner.state.param[: parameter.numel()])
    assert int(learner.state.steps) == 5


def test_epsilon_and_learning_rate_follow_the_progress() -> None:
    learner, _, policy = make(lr_schedule="linear", learning_rate=1e-2)
    found = []
    for progress in (0.0, 0.25, 0.5, 1.0):
        learner.set_progress(progress)
        found.append((float(policy.epsilon), learner.metrics()["learning_rate"]))
    assert [epsilon for epsilon, _ in found] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert [rate for _, rate in found] == pytest.approx([1e-2, 7.5e-3, 5e-3, 0.0])


def test_metrics_are_means_since_they_were_last_asked_for() -> None:
    learner, replay, _ = make()
    assert learner.metrics()["q_loss"] != learner.metrics()["q_loss"]  # NaN: no step was taken
    learner.update(replay, 3)
    total = learner._total.clone()
    metrics = learner.metrics()
    assert set(metrics) == {*learner.step_metrics, "learning_rate", "epsilon"}
    assert metrics["td_error"] == pytest.approx(float(total[learner.step_metrics.index("td_error")]) / 3)
    assert float(learner._total.abs().sum()) == 0.0


def test_many_updates_are_taken_in_few_sizes() -> None:
    learner, replay, _ = make()
    assert list(learner._counts(replay, 150)) == [64, 64, 16, 4, 2]
    assert list(learner._counts(replay, 1)) == [1] and not list(learner._counts(replay, 0))


@pytest.mark.parametrize("double", [False, True])
def test_state_dict_goes_on_bit_for_bit(double: bool) -> None:
    one, replay, policy = make(double_q=double)
    one.update(replay, 5)
    one.copy_target(100)
    one.update(replay, 2)
    state, weights = one.state_dict(), {name: x.clone() for name, x in policy.state_dict().items()}
    two, _, other = make(seed=5, double_q=double)
    other.load_state_dict(weights)
    assert two.load_state_dict(state)
    for learner in (one, two):
        learner.update(replay, 4)
        assert not learner.copy_target(199)
    assert torch.equal(one.state.param, two.state.param) and torch.equal(one.target, two.target)


@pytest.mark.parametrize("double", [False, True])
def test_the_unit_of_rewards_does_not_matter(double: bool) -> None:
    """Rewards of 64 a step would be in the linear part of the Huber loss, where all errors weigh the same."""
    learned = []
    for unit in (1.0, 64.0):
        learner, _, policy = make(double_q=double, clip_reward=2.0)
        rollout = random_rollout()
        rollout.reward.mul_(unit)
        replay = filled(rollout)
        learner.count_rewards(*replay.rewards_since(0))
        learner.update(replay, 5)
        learned.append(learner.state.param.clone())
        # Reports of values are in the env's unit.
        torch.testing.assert_close(float(policy.return_scale), float(learner.reward_normalizer.scale))
    torch.testing.assert_close(learned[0], learned[1], atol=1e-6, rtol=1e-5)
    unscaled, replay, _ = make(double_q=double, normalize_reward=False)
    unscaled.count_rewards(*replay.rewards_since(0))
    unscaled.update(replay, 5)
    assert not torch.allclose(unscaled.state.param, learned[0], atol=1e-4)


def test_held_rewards_are_discounted_by_duration() -> None:
    learner, _, _ = make()
    reward, duration = torch.ones(3, ENVS), torch.full((3, ENVS), 2)
    learner.count_rewards(reward, torch.zeros(3, ENVS, dtype=torch.bool), duration)
    returns = torch.tensor([1.0, 1 + 0.81, 1 + 0.81 + 0.81**2])
    assert float(learner.reward_normalizer.scale) == pytest.approx(float(returns.std(correction=0)), rel=1e-5)


def test_a_nan_is_named() -> None:
    learner, _, _ = make()
    rollout = random_rollout()
    rollout.reward.fill_(torch.nan)
    learner.update(filled(rollout), 1)
    with pytest.raises(NonFiniteError, match="q_loss became nan in the update"):
        learner.metrics()


@pytest.mark.slow
@pytest.mark.parametrize("return_steps", [1, 3])
@pytest.mark.parametrize("double", [False, True])
def test_a_chain_whose_values_are_known(double: bool, return_steps: int) -> None:
    """Three states in a row; 1 goes on and 0 stays, and leaving the last pays 1 and ends the episode.

    Q*(s, on) = 0.9^(2 - s), Q*(s, stay) = 0.9 Q*(s, on), whatever the behaviour, if returns are of one step. Those of
    several are of the behaviour: here it always goes on, and Q of that action alone is known.
    """
    options = {"learning_rate": 2e-2, "max_grad_norm": None, "minibatch_size": 64, "hidden_sizes": [32]}
    config = configured(double_q=double, target_update_every=1, **options)
    torch.manual_seed(0)
    policy = QNetwork(
        Spec({"obs": ObsSpec((3,), "float32")}, ActionSpec("discrete", (2,))), config.policy, config.normalize
    )
    learner = DQNLearner(policy, config, device=CPU, seed=0)
    rollout, generator = empty(3), torch.Generator().manual_seed(0)
    rollout.action.random_(0, 2, generator=generator)
    if return_steps > 1:
        rollout.action.fill_(1)
    state = torch.arange(ENVS) % 3
    for t in range(STEPS):
        rollout.obs["obs"][t] = torch.eye(3)[state]
        state = state + rollout.action[t]
        rollout.terminated[t] = state == 3
        rollout.reward[t] = (state == 3).float()
        state = state % 3
    rollout.obs["obs"][STEPS] = torch.eye(3)[state]
    replay = Replay(rollout, buffer_size=64, margin=STEPS, gamma=0.9, return_steps=return_steps)
    replay.add(rollout)
    for step in range(60):
        learner.set_progress(step / 60)
        learner.update(replay, 10)
        learner.copy_target(step + 1)
        if step == 40:
            learner.learning_rate.fill_(1e-3)
    on = torch.tensor([0.81, 0.9, 1.0])
    q = policy({"obs": torch.eye(3)})[0].q.detach()
    torch.testing.assert_close(q[:, 1], on, atol=1e-2, rtol=0.0)
    if return_steps == 1:
        torch.testing.assert_close(q[:, 0], 0.9 * on, atol=1e-2, rtol=0.0)


@pytest.mark.parametrize("double", [False, True])
def test_the_target_network_values_an_image_once(double: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a replay that wraps, and with a target that changes: what is kept is what it would say now."""
    config = configured(double_q=double, minibatch_size=16, cnn_features=8, learning_rate=1e-2)
    policy = QNetwork(
        Spec({"obs": ObsSpec((1, 12, 12), "uint8")}, ActionSpec("discrete", (3,))), config.policy, config.normalize
    )
    learner, generator = DQNLearner(policy, config, device=CPU, seed=3), torch.Generator().manual_seed(0)
    image, action = torch.zeros(ENVS, 1, 12, 12, dtype=torch.uint8), torch.zeros(ENVS, dtype=torch.long)
    rollout = Rollout(num_steps=4, num_envs=ENVS, obs={"obs": image}, action=action, device=CPU)
    replay = Replay(rollout, buffer_size=10 * ENVS, margin=4, gamma=0.9)
    learner.keep_values(replay, actions=3)
    real_q, real_target_q, valued, asked = learner._q, learner._target_q, 0, 0

    def is_target(weights: dict[str, Tensor]) -> bool:
        storage = next(iter(weights.values())).untyped_storage().data_ptr()
        return storage == learner.target.untyped_storage().data_ptr()

    def counting_q(weights: dict[str, Tensor], obs: Any) -> Tensor:
        nonlocal valued
        valued += len(obs["obs"]) if is_target(weights) else 0
        return real_q(weights, obs)

    def checked_target_q(number: Tensor, next_obs: Any) -> Tensor:
        nonlocal asked
        found, asked = real_target_q(number, next_obs), asked + len(number)
        torch.testing.assert_close(found, real_q(learner.flat.views(learner.target), next_obs), rtol=1e-5, atol=1e-6)
        return found

    monkeypatch.setattr(learner, "_q", counting_q)
    monkeypatch.setattr(learner, "_target_q", checked_target_q)
    for round_ in range(12):  # a window of 40 transitions moves on by 16; the target is another in every fifth
        last = rollout.obs["obs"][-1].clone()
        rollout.obs["obs"].random_(0, 256, generator=generator)
        rollout.obs["obs"][0] = last
        rollout.reward.normal_(generator=generator)
        replay.add(rollout)
        learner.copy_target(20 * round_)
        for _ in range(10):
            learner.update(replay, 1)
    assert asked == 12 * 160 and 12 * 16 < valued < asked / 4


@pytest.mark.slow
def test_compiled_agrees_with_eager() -> None:
    eager, replay, _ = make(double_q=True, learning_rate=1e-3)
    compiled, _, _ = make(double_q=True, learning_rate=1e-3, compile="on")
    for learner in (eager, compiled):
        learner.update(replay, 5)  # four in a loop, and one
    assert compiled.epochs.compiled, "the compiler did not work"
    torch.testing.assert_close(eager.state.param, compiled.state.param, rtol=1e-5, atol=1e-5)
    assert eager.metrics()["q_loss"] == pytest.approx(compiled.metrics()["q_loss"], abs=1e-5)


def test_without_a_compiler_the_run_goes_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("no working C++ compiler found\nmore")

    monkeypatch.setattr(torch, "compile", broken)
    learner, replay, _ = make(compile="on")
    learner.update(replay, 2)
    assert not learner.epochs.compiled and int(learner.state.steps) == 2
    assert caplog.text.count("no working C++ compiler found") == 1
