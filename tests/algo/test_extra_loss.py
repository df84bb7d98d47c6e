"""A user's term of the loss: its gradient, its metrics, and what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor

from proxima.algo.distill import DistillLearner, LessonMinibatch
from proxima.algo.dqn import DQNLearner
from proxima.algo.dqn import Minibatch as Transitions
from proxima.algo.learner import Learner
from proxima.config import load_config
from proxima.data.batch import Minibatch, minibatch_indices
from proxima.errors import UsageError
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.policy import Policy, make_policy
from proxima.nets.spec import ActionSpec, ObsSpec, Spec
from tests.algo.test_ppo import IMAGE, SEQUENCES, make
from tests.nets import own_nets

CPU = torch.device("cpu")
KINDS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "shared": {"share_trunk": "on"},
    "gru, padded": {"rnn": "gru", **SEQUENCES, "bptt_length": 5},
    "image": {"obs": IMAGE},
    "accumulated": {"gradient_accumulation": 2},
}


def gradient(learner: Learner, minibatch: Any) -> Tensor:
    return learner._gradient(learner.state, minibatch)[0]


def reference(learner: Learner, policy: Policy, *inputs: Any) -> Tensor:
    """The gradient of 0.3 mean(V^2) by autograd on the policy itself."""
    names = learner.flat.views(learner.flat.vector)
    parameters = [p for name, p in policy.named_parameters() if name in names]
    value = policy(*inputs)[1]
    grads = torch.autograd.grad(0.3 * value.square().mean(), parameters, allow_unused=True)
    pairs = zip(parameters, grads, strict=True)
    return torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in pairs])


@pytest.mark.parametrize("kind", KINDS)
def test_its_gradient_is_added_to_that_of_ppo(kind: str) -> None:
    plain, rollout, _ = make(**KINDS[kind])
    own, _, policy = make(**KINDS[kind], loss=own_nets.square_value)
    minibatch = own.gather(own.prepare(rollout).rows, torch.arange(4))
    assert isinstance(minibatch, Minibatch)
    added = gradient(own, minibatch) - gradient(plain, minibatch)
    expected = reference(own, policy, minibatch.obs, minibatch.state, minibatch.start)
    assert expected.norm() > 0.01
    torch.testing.assert_close(added, expected, rtol=1e-3, atol=1e-5)
    value = policy(minibatch.obs, minibatch.state, minibatch.start)[1]
    bias = own.flat.views(added)["value_head.bias"]  # by hand: dV / db = 1
    torch.testing.assert_close(bias, 0.6 * value.mean()[None].detach(), rtol=1e-3, atol=1e-5)


def test_its_gradient_is_added_to_that_of_dqn() -> None:
    spec = Spec({"obs": ObsSpec((5,), "float32")}, ActionSpec("discrete", (3,)))

    def learner(**options: Any) -> tuple[DQNLearner, Any]:
        config = load_config(None, {"algorithm": "DQN", "hidden_sizes": [8], "compile": "off", **options})
        torch.manual_seed(0)
        policy: Any = make_policy(spec, config)
        torch.nn.init.normal_(policy.action_head.linear.weight)
        return DQNLearner(policy, config, device=CPU, seed=0), policy

    (plain, _), (own, policy) = learner(), learner(loss=own_nets.square_value)
    minibatch = Transitions({"obs": torch.randn(16, 5)}, torch.arange(16) % 3, torch.randn(16))
    torch.testing.assert_close(
        gradient(own, minibatch) - gradient(plain, minibatch), reference(own, policy, minibatch.obs)
    )
    assert own.step_metrics == ("q_loss", "q_mean", "td_error", "extra_loss", "gradient_norm")
    assert own.metrics().keys() - plain.metrics().keys() == {"extra_loss"}


def squared_mean_action(minibatch: LessonMinibatch, outputs: Any) -> dict[str, Tensor]:
    loss = outputs.distribution.mode().square().mean()
    return {"loss": loss, "twice": 2.0 * loss}


def test_its_gradient_is_added_to_that_of_distillation() -> None:
    spec = Spec({"obs": ObsSpec((5,), "float32")}, ActionSpec("box", (2,), (-1.0,) * 2, (1.0,) * 2))

    def learner(**options: Any) -> DistillLearner:
        config = load_config(None, {"algorithm": "distillation", "hidden_sizes": [8], "compile": "off", **options})
        torch.manual_seed(0)
        policy = ActorCritic(spec, config.policy, config.normalize)
        return DistillLearner(policy, config, device=CPU, seed=0, num_iterations=1)

    plain, own = learner(), learner(loss=squared_mean_action)
    minibatch = LessonMinibatch({"obs": torch.randn(16, 5)}, None, None, torch.randn(16, 2))
    only_own = minibatch._replace(label=torch.zeros(16, 2))  # where the loss is the term itself
    torch.testing.assert_close(gradient(own, minibatch) - gradient(plain, minibatch), gradient(plain, only_own))
    assert own.loss_terms[-2:] == ("extra_loss", "twice")
    with pytest.raises(UsageError, match="has no gradient"):  # the critic is frozen
        learner(loss=own_nets.square_value)


def test_metrics_are_means_over_the_update() -> None:
    learner, rollout, _ = make(loss=own_nets.growing)
    learner.set_progress(0.5)
    metrics = learner.update(learner.prepare(rollout))
    assert metrics["samples"] == 16.0
    assert metrics["extra_loss"] == pytest.approx(0.5 * metrics["size"]) and metrics["size"] > 0


def test_without_it_nothing_changes() -> None:
    """A term of weight zero gives the same bits, and so does its absence."""
    ends = []
    for options in ({}, {"loss": own_nets.growing}):
        learner, rollout, _ = make(**options)  # type: ignore[arg-type]
        learner.set_progress(0.0)
        learner.update(learner.prepare(rollout))
        ends.append(learner.flat.vector.clone())
    torch.testing.assert_close(*ends, rtol=0, atol=0)


@pytest.mark.slow
def test_compiled_it_is_the_same_and_notices_changed_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = own_nets.SCALE.clone()
    monkeypatch.setattr(own_nets, "SCALE", scale)
    eager, rollout, _ = make(loss=own_nets.growing)
    learner, *_ = make(loss=own_nets.growing, compile="on")
    rows = learner.prepare(rollout).rows
    (order,) = minibatch_indices(learner.layout.num_sequences, 4, torch.Generator().manual_seed(0))
    for one in (eager, learner):
        one.set_progress(0.25)
    torch.testing.assert_close(eager.run_epoch(rows, order), learner.run_epoch(rows, order), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(eager.flat.vector, learner.flat.vector, rtol=1e-3, atol=1e-5)

    def share() -> float:
        """`extra_loss` in units of `size`."""
        metrics = dict(zip(learner.step_metrics, learner.run_epoch(rows, order).tolist(), strict=True))
        assert learner.epochs.compiled
        return metrics["extra_loss"] / metrics["size"]

    assert share() == pytest.approx(0.25)
    learner.set_progress(0.5)
    assert share() == pytest.approx(0.5)
    scale.fill_(3.0)  # a tensor, changed in place
    assert share() == pytest.approx(1.5)
    monkeypatch.setattr(own_nets, "FACTOR", 2.0)  # a Python number: compiled again
    assert share() == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (own_nets.per_sample, r"'loss' is a tensor of shape \[1\], but it must be a scalar tensor: take a mean"),
        (own_nets.a_number, "returned float: return a scalar tensor, or a dict with the key 'loss'"),
        (own_nets.without_loss, "returned the keys size: return a scalar tensor, or a dict with the key 'loss'"),
        (own_nets.a_list_of_metrics, "'size' is a float, but it must be a scalar tensor"),
        (own_nets.of_the_rollout_alone, "has no gradient: compute it from the distribution or the value"),
        (own_nets.broken, r"failed on a made-up minibatch \(AttributeError: .*nothing"),
        ("tests.nets.own_nets:Nothing", "extra_loss is .* has no Nothing"),
        ("tests.nets.own_nets:FACTOR", "is a float, but it must be a function"),
    ],
)
def test_terms_that_are_refused(loss: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        make(loss=loss)
    assert "\n" not in str(error.value)
