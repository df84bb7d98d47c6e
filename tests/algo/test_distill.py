"""The regression: its gradient by hand, what it trains and what it leaves alone, and the scale of actions."""

from typing import Any

import pytest
import torch
from torch import Tensor

from proxima.algo.distill import DistillLearner, Lesson
from proxima.data.rollout import Rollout
from proxima.nets.actor_critic import ActorCritic
from tests.envs.hidden_goal import HIGH, LOW, untrained

CPU = torch.device("cpu")
STEPS, ENVS, LENGTH = 10, 3, 4
RECURRENT = {"rnn": "gru", "rnn_size": 5, "hidden_sizes": [6], "bptt_length": LENGTH}


def made(**options: Any) -> tuple[DistillLearner, ActorCritic]:
    sizes = {"num_envs": ENVS, "num_steps": STEPS, "minibatch_size": 4, "max_grad_norm": None, "compile": "off"}
    policy, config = untrained(algorithm="distillation", **sizes | options)
    return DistillLearner(policy, config, device=CPU, seed=0, num_iterations=1), policy


def random_rollout(policy: ActorCritic) -> Rollout:
    """Episodes that end here and there; random observations and states."""
    torch.manual_seed(1)
    obs = {"state": torch.zeros(ENVS, 4)}
    sizes = {"num_steps": STEPS, "num_envs": ENVS, "sequence_length": LENGTH, "state_size": policy.state_size}
    rollout = Rollout(obs=obs, action=torch.zeros(ENVS, 2), device=CPU, **sizes)
    rollout.obs["state"].normal_()
    rollout.terminated[[2, 5, 7], [0, 1, 1]] = True
    if rollout.state is not None:
        rollout.state.normal_()
    return rollout


def gradient(learner: DistillLearner, lesson: Lesson) -> dict[str, Tensor]:
    every = torch.arange(learner.layout.num_sequences)
    return learner.flat.views(learner._gradient(learner.state, learner.gather(lesson, every))[0])


def test_the_gradient_of_a_linear_student_is_that_of_least_squares() -> None:
    learner, policy = made(hidden_sizes=[], normalize_obs=False)
    rollout, label = random_rollout(policy), torch.rand(STEPS, ENVS, 2)
    x = rollout.obs["state"][:-1].flatten(0, 1)  # [T * N, 4]
    centre, half = torch.tensor([0.0, 1.0]), torch.tensor([2.0, 2.0])  # of LOW and HIGH
    linear = policy.action_head.linear
    error = x @ linear.weight.T + linear.bias - ((label - centre) / half).flatten(0, 1)
    found = gradient(learner, learner.prepare(rollout, label))
    torch.testing.assert_close(found["action_head.linear.weight"], 2 * error.T @ x / error.numel())
    torch.testing.assert_close(found["action_head.linear.bias"], 2 * error.sum(0) / error.numel())
    assert set(found) == {"action_head.linear.weight", "action_head.linear.bias"}


@pytest.mark.parametrize("distribution", ["gaussian", "tanh_gaussian"])
@pytest.mark.parametrize("loss", ["mse", "huber"])
def test_the_gradient_through_time_is_that_of_the_loop(loss: str, distribution: str) -> None:
    learner, policy = made(distill_loss=loss, distribution=distribution, **RECURRENT)
    rollout, label = random_rollout(policy), 4.0 * torch.rand(STEPS, ENVS, 2)
    found = gradient(learner, learner.prepare(rollout, label))
    squash = torch.tanh if distribution == "tanh_gaussian" else lambda x: x
    total, zeroed = torch.zeros(()), 0
    for t in range(STEPS):
        if t % LENGTH == 0:
            state = rollout.state[t // LENGTH]  # type: ignore[index]
        if t and rollout.ended[t - 1].any():
            state, zeroed = state * ~rollout.ended[t - 1][:, None], zeroed + 1
        features, state = policy.actor_trunk.step({"state": rollout.obs["state"][t]}, state)
        action = squash(policy.action_head(policy.action_mlp(features)).mean)
        size = (action - policy.action_head.from_env(label[t])).abs()
        total = total + (size.square() if loss == "mse" else torch.where(size < 1, 0.5 * size**2, size - 0.5)).sum()
    assert zeroed == 3
    parameters = dict(policy.named_parameters())
    wanted = torch.autograd.grad(total / label.numel(), [parameters[name] for name in found])
    for name, x in zip(found, wanted, strict=True):
        torch.testing.assert_close(found[name], x, rtol=1e-4, atol=1e-6)
        assert x.any(), name


def test_accumulated_gradients_are_those_of_one_minibatch() -> None:
    lessons = {}
    for parts, size in ((1, 9), (3, 3)):
        learner, policy = made(gradient_accumulation=parts, minibatch_size=size, **RECURRENT)
        lesson = learner.prepare(random_rollout(policy), torch.ones(STEPS, ENVS, 2))
        learner.run_epoch(lesson, torch.arange(9)[None])
        lessons[parts] = learner.state.mean.clone()
    torch.testing.assert_close(lessons[1], lessons[3], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("share", ["on", "off"])
def test_the_std_and_the_critic_stay_even_with_weight_decay(share: str) -> None:
    learner, policy = made(optimizer="adamw", weight_decay=0.1, share_trunk=share, initial_std=0.3, **RECURRENT)
    before = {name: x.clone() for name, x in policy.state_dict().items()}
    lesson = learner.prepare(random_rollout(policy), torch.ones(STEPS, ENVS, 2))
    learner.update(lesson)
    changed = {name for name, x in policy.state_dict().items() if not torch.equal(x, before[name])}
    trained = set(learner.flat.views(learner.flat.vector))
    shared = {name.replace("actor_trunk", "critic_trunk") for name in trained} if share == "on" else set()
    assert changed == trained | shared and trained >= {"action_head.linear.weight", "actor_trunk.rnn.weight_hh_l0"}
    assert not any(name.startswith(("value", "action_head.log_std")) for name in trained)
    assert torch.equal(policy.action_head.log_std.exp(), torch.full((2,), 0.3).log().exp())


def test_the_errors_are_in_the_units_of_the_env_and_those_before_the_update() -> None:
    learner, policy = made(hidden_sizes=[], minibatch_size=STEPS * ENVS, update_epochs=3, normalize_obs=False)
    rollout, label = random_rollout(policy), torch.rand(STEPS, ENVS, 2)
    with torch.no_grad():
        action = policy.act({"state": rollout.obs["state"][:-1].flatten(0, 1)}).env_action
    wanted = (action - label.flatten(0, 1)).abs().mean(0)
    metrics = learner.update(learner.prepare(rollout, label))
    assert [metrics["action_error_0"], metrics["action_error_1"]] == pytest.approx(wanted.tolist(), rel=1e-5)
    assert metrics["action_error"] == pytest.approx(float(wanted.mean()), rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"distribution": "tanh_gaussian"}, {"scale_actions": False}])
def test_an_action_of_the_env_is_found_again_on_the_students_scale(options: dict[str, Any]) -> None:
    _, policy = made(**options)
    raw = torch.linspace(-0.8, 0.8, 10).view(5, 2)
    head = policy.action_head
    inside = ((head.to_env(raw) > torch.tensor(LOW)) & (head.to_env(raw) < torch.tensor(HIGH))).all()
    assert inside
    torch.testing.assert_close(head.from_env(head.to_env(raw)), head.scaled(raw))
