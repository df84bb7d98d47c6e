"""The learner's invariants, on rollouts made by hand."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from proxima.algo.ppo import PPOLearner
from proxima.config import load_config
from proxima.data.rollout import Rollout
from proxima.envs.contract import Mirror
from proxima.errors import NonFiniteError
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.spec import ActionSpec, ObsSpec, Spec

BOX = ActionSpec("box", (2,), (-1.0, -1.0), (1.0, 1.0))
DISCRETE = ActionSpec("discrete", (4,))
SEQUENCES = {"rnn_size": 8, "hidden_sizes": [8], "minibatch_size": 4}
KINDS: dict[str, tuple[ActionSpec, dict[str, Any]]] = {
    "gaussian": (BOX, {}),
    "fixed std": (BOX, {"std_mode": "fixed"}),
    "state std": (BOX, {"std_mode": "state"}),
    "tanh": (BOX, {"distribution": "tanh_gaussian"}),
    "beta": (BOX, {"distribution": "beta"}),
    "discrete": (DISCRETE, {}),
    "multi_discrete": (ActionSpec("multi_discrete", (3, 2)), {}),
    "multi_binary": (ActionSpec("multi_binary", (3,)), {}),
    "shared": (BOX, {"share_trunk": "on"}),
    "wider critic": (BOX, {"critic_hidden_sizes": [24, 16, 8]}),
    "gru": (BOX, {"rnn": "gru", **SEQUENCES, "bptt_length": 4}),
    "lstm, two layers, discrete": (DISCRETE, {"rnn": "lstm", "rnn_layers": 2, **SEQUENCES, "bptt_length": 1}),
    "two RNNs, padded": (BOX, {"rnn": "gru", "share_trunk": "off", **SEQUENCES, "bptt_length": 5}),
    "lstm, whole rollouts, beta": (
        BOX,
        {"rnn": "lstm", "distribution": "beta", **SEQUENCES, "minibatch_size": 2, "bptt_length": 16},
    ),
}
POOLED = {"image": {"kernels": [4, 3], "strides": [1, 1], "channels": [8, 8], "pool": 2, "features": 16}}
IMAGE = {"image": ObsSpec((12, 12, 3), "uint8"), "state": ObsSpec((4,), "float32")}


def make(
    action: ActionSpec = BOX, obs: dict[str, ObsSpec] | None = None, mirror: Mirror | None = None, **options: Any
) -> tuple[PPOLearner, Rollout, ActorCritic]:
    """A learner and a rollout that its policy acted out on random observations."""
    defaults = {"num_envs": 4, "num_steps": 16, "minibatch_size": 16, "update_epochs": 2, "compile": "off"}
    config = load_config(None, defaults | options)
    torch.manual_seed(0)
    spec = Spec(obs or {"obs": ObsSpec((5,), "float64")}, action)
    policy = ActorCritic(spec, config.policy, config.normalize)
    generator = torch.Generator().manual_seed(1)
    first = {key: draw(o) for key, o in spec.obs.items()}
    rollout = Rollout(
        num_steps=16,
        num_envs=4,
        obs=first,
        action=policy.act(first).action,
        device=torch.device("cpu"),
        sequence_length=config.sequence_length,
        state_size=policy.state_size,
    )
    rollout.terminated[5, 1] = rollout.truncated[9, 2] = True
    state = policy.first_state(4)
    for t in range(17):
        for key, o in spec.obs.items():
            rollout.obs[key][t] = draw(o)
        if t == 16:
            break
        if rollout.state is not None and t % config.sequence_length == 0:
            rollout.state[t // config.sequence_length] = state
        now = {key: x[t] for key, x in rollout.obs.items()}
        noise = torch.randn(4, policy.noise_size, generator=generator)
        rollout.action[t], _, state, *_ = policy.act(now, noise, state)
        rollout.reward[t] = torch.randn(4)
        if t == 9:
            final = {key: draw(o)[2:3] for key, o in spec.obs.items()}
            rollout.add_final(torch.tensor([9]), torch.tensor([2]), final, None if state is None else state[2:3])
        if state is not None:
            state = rollout.last_state = state.masked_fill(rollout.ended[t][:, None], 0.0)
    return PPOLearner(policy, config, device=torch.device("cpu"), seed=3, mirror=mirror), rollout, policy


def draw(spec: ObsSpec) -> torch.Tensor:
    if spec.dtype == "uint8":
        return torch.randint(0, 256, (4, *spec.shape), dtype=torch.uint8)
    return torch.randn(4, *spec.shape)


def first_metrics(learner: PPOLearner, rollout: Rollout) -> dict[str, float]:
    """Metrics of the first minibatch, before anything has moved."""
    batch = learner.prepare(rollout)
    index = torch.randperm(learner.layout.num_sequences)[: learner.config.algorithm.minibatch_size]
    values = learner.run_epoch(batch.rows, index[None])
    return dict(zip(learner.step_metrics, values.tolist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_ratio_is_one(kind: str) -> None:
    action, options = KINDS[kind]
    learner, rollout, policy = make(action, **options)
    policy.normalizer.update(rollout.step_obs())
    metrics = first_metrics(learner, rollout)
    assert abs(metrics["approx_kl"]) < 1e-9 and metrics["clip_fraction"] == 0.0


@pytest.mark.parametrize("encoders", [{}, POOLED])
@pytest.mark.parametrize("rnn", [{}, {"rnn": "gru", **SEQUENCES, "bptt_length": 4}])
def test_the_first_ratio_is_one_with_images(rnn: dict[str, Any], encoders: dict[str, Any]) -> None:
    learner, rollout, _ = make(obs=IMAGE, encoders=encoders, **rnn)
    metrics = first_metrics(learner, rollout)
    assert abs(metrics["approx_kl"]) < 1e-9 and metrics["clip_fraction"] == 0.0


def test_a_normaliser_that_moves_before_the_update_would_show() -> None:
    """The guard above can fail: statistics that change between acting and learning move the ratio."""
    learner, rollout, policy = make()
    batch = learner.prepare(rollout)
    seen = rollout.step_obs()["obs"].flatten(0, 1)
    policy.normalizer.update({"obs": seen * 3 + 1})
    with torch.no_grad():
        distribution, _ = policy(policy.normalizer({"obs": seen}))
    rows = batch.rows
    assert float((distribution.log_prob(rows.action) - rows.old_log_prob).abs().max()) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_updates_to_finite_weights(kind: str) -> None:
    action, options = KINDS[kind]
    learner, rollout, policy = make(action, learning_rate=3e-3, **options)
    before = learner.state.param.clone()
    metrics = learner.update(learner.prepare(rollout))
    assert bool(torch.isfinite(learner.state.param).all()) and not torch.equal(before, learner.state.param)
    # The modules see the new weights: they share the flat storage.
    parameter = next(p for p in policy.parameters() if p.requires_grad)
    assert torch.equal(parameter.flatten(), learner.state.param[: parameter.numel()])
    assert metrics["epochs"] == 2 and metrics["gradient_norm"] > 0


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"minibatch_size": 15}, [22, 21, 21]),
        ({"rnn": "gru", "rnn_size": 4, "bptt_length": 5, "minibatch_size": 3}, [6, 5, 5]),
    ],
)
def test_each_epoch_visits_every_sample_once(
    options: dict[str, Any], sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, rollout, _ = make(gradient_accumulation=2, update_epochs=3, **options)
    seen: list[torch.Tensor] = []

    def record(_rows: Any, order: torch.Tensor) -> torch.Tensor:
        seen.extend(order)
        return torch.ones(len(learner.step_metrics))

    monkeypatch.setattr(learner, "run_epoch", record)
    learner.update(learner.prepare(rollout))
    assert [len(index) for index in seen] == 3 * sizes
    epochs = [torch.cat(seen[n : n + len(sizes)]) for n in (0, len(sizes))]
    for order in epochs:
        rows, weight = learner.layout.rows(order), learner.layout.weight(order)
        kept = rows if weight is None else rows[weight > 0]
        assert kept.sort().values.tolist() == list(range(64))
    assert not torch.equal(*epochs)


@pytest.mark.parametrize(("all_", "rnn"), [(64, {}), (16, {"rnn": "lstm", "rnn_size": 8, "bptt_length": 5})])
def test_accumulated_minibatches_equal_one_large_one(all_: int, rnn: dict[str, Any]) -> None:
    options = {"normalize_advantage": "off", "update_epochs": 1, **rnn}
    large, rollout, _ = make(minibatch_size=all_, **options)
    small, same, _ = make(minibatch_size=all_ // 4, gradient_accumulation=4, **options)
    large.update(large.prepare(rollout))
    small.update(small.prepare(same))
    torch.testing.assert_close(large.state.param, small.state.param, rtol=1e-4, atol=1e-6)


def test_target_kl_ends_the_update() -> None:
    learner, rollout, _ = make(learning_rate=0.05, update_epochs=10, target_kl=0.01)
    assert learner.update(learner.prepare(rollout))["epochs"] < 10


def test_the_adaptive_learning_rate_moves() -> None:
    learner, rollout, _ = make(learning_rate=9e-3, lr_schedule="adaptive", update_epochs=5)
    learner.set_progress(0.5)
    metrics = learner.update(learner.prepare(rollout))
    assert metrics["learning_rate"] < 9e-3


class Reads(TorchDispatchMode):
    """Counts what would make the host wait for a GPU: numbers read one by one, and sizes that depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["gaussian", "discrete"])
def test_an_update_reads_nothing_from_the_device_before_its_metrics(kind: str) -> None:
    """Of recurrent policies only compiled: eagerly, they divide sequences where episodes begin."""
    action, options = KINDS[kind]
    learner, rollout, _ = make(action, lr_schedule="adaptive", update_epochs=3, **options)
    batch = learner.prepare(rollout)
    with Reads() as reads:
        learner.update(batch)
    assert reads.count == 0


def test_a_weight_that_is_infinite_is_named() -> None:
    learner, rollout, _ = make()
    batch = learner.prepare(rollout)
    run_epoch = learner.run_epoch

    def overflow(*args: Any) -> torch.Tensor:
        metrics = run_epoch(*args)
        learner.state.param[3] = torch.inf
        return torch.zeros_like(metrics)

    learner.run_epoch = overflow  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match="made a weight infinite or NaN"):
        learner.update(batch)


def test_advantages_are_recomputed_with_the_current_critic() -> None:
    learner, rollout, _ = make(learning_rate=1e-2, recompute_advantage=True)
    batch = learner.prepare(rollout)
    seen = []
    real = learner.run_epoch

    def watched(rows: Any, order: torch.Tensor) -> torch.Tensor:
        seen.append(rows)
        return real(rows, order)

    learner.run_epoch = watched  # type: ignore[method-assign]
    learner.update(batch)
    first, second = seen
    assert first is batch.rows and not torch.equal(first.advantage, second.advantage)
    assert torch.equal(first.old_log_prob, second.old_log_prob)


def test_advantage_of_a_truncated_step_uses_the_final_observation() -> None:
    learner, rollout, policy = make(normalize_reward=False, normalize_advantage="off")
    batch = learner.prepare(rollout)
    advantage, value = batch.rows.advantage.view(16, 4), batch.rows.old_value.view(16, 4)
    final = policy.value(policy.normalizer({"obs": rollout.bootstrap_obs()["obs"][4:]})).detach()
    expected = rollout.reward[9, 2] + 0.99 * final[0] - value[9, 2]
    torch.testing.assert_close(advantage[9, 2], expected)
    torch.testing.assert_close(advantage[5, 1], rollout.reward[5, 1] - value[5, 1])


def test_batch_normalisation_of_advantages() -> None:
    learner, rollout, _ = make(normalize_advantage="batch")
    advantage = learner.prepare(rollout).rows.advantage
    assert abs(float(advantage.mean())) < 1e-6 and float(advantage.std(correction=0)) == pytest.approx(1.0, abs=1e-4)


def test_the_std_stays_in_its_range() -> None:
    _, _, policy = make(min_std=0.4, max_std=1.2, initial_std=1.0)
    with torch.no_grad():
        policy.action_head.log_std.fill_(-50.0)
    distribution, _ = policy({"obs": torch.zeros(1, 5)})
    assert float(distribution.log_std.exp().min()) == pytest.approx(0.4)
    # And it can come back: the gradient passes through the limit.
    distribution.entropy().sum().backward()
    assert float(policy.action_head.log_std.grad.abs().min()) > 0


@pytest.mark.parametrize("mode", ["learned", "state"])
def test_the_lower_bound_of_the_std_follows_the_progress(mode: str) -> None:
    _, _, policy = make(min_std=[0.5, 0.1], std_mode=mode, initial_std=0.8)
    with torch.no_grad():
        if mode == "learned":
            policy.action_head.log_std.fill_(-50.0)
        else:
            policy.action_head.linear.bias.fill_(-50.0)
    for progress, bound in ((0.0, 0.5), (0.8, 0.5), (0.85, 0.4), (1.0, 0.1), (1.5, 0.1)):
        policy.set_progress(progress)
        std = policy({"obs": torch.zeros(1, 5)})[0].log_std.exp()
        torch.testing.assert_close(std.mean(), torch.tensor(bound))
    # A checkpoint has the bound that its policy acted with.
    policy.set_progress(0.85)
    assert float(policy({"obs": torch.zeros(1, 5)})[0].log_std.exp().mean()) == pytest.approx(0.4)
    copy = make(min_std=[0.5, 0.1], std_mode=mode, initial_std=0.8)[2]
    copy.load_state_dict(policy.state_dict())
    torch.testing.assert_close(copy({"obs": torch.zeros(1, 5)})[0].log_std.exp().mean(), torch.tensor(0.4))


def test_a_nan_loss_is_named() -> None:
    learner, rollout, _ = make(normalize_reward=False)
    batch = learner.prepare(rollout)
    batch.rows.advantage[:] = torch.nan
    with pytest.raises(NonFiniteError, match=r"loss became nan in epoch 1 of the update"):
        learner.update(batch)


def test_state_dict_restores_the_optimizer_and_the_generator() -> None:
    one, rollout, policy = make()
    one.update(one.prepare(rollout))
    state, weights = one.state_dict(), {name: x.clone() for name, x in policy.state_dict().items()}
    one.update(one.prepare(rollout))
    two, _, other = make()
    other.load_state_dict(weights)
    two.load_state_dict(state)
    two.update(two.prepare(rollout))
    assert torch.equal(one.state.param, two.state.param)


# The compiler takes seconds for each; to it, a wider critic is the same.
COMPILED = {kind: case for kind, case in KINDS.items() if "rnn" not in case[1] and kind != "wider critic"} | {
    "two GRUs, padded": (BOX, {"rnn": "gru", "share_trunk": "off", **SEQUENCES, "bptt_length": 3}),
    "lstm, discrete": (DISCRETE, {"rnn": "lstm", "rnn_layers": 2, **SEQUENCES, "bptt_length": 2}),
    "images and more": (DISCRETE, {"obs": IMAGE}),
    "pooled images, gru": (BOX, {"obs": IMAGE, "encoders": POOLED, "rnn": "gru", **SEQUENCES, "bptt_length": 2}),
    "shared": (BOX, {"share_trunk": "on", "minibatch_size": 15}),  # minibatches of two sizes
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMPILED)
def test_compiled_agrees_with_eager(kind: str) -> None:
    action, options = COMPILED[kind]
    eager, rollout, _ = make(action, update_epochs=1, **options)
    compiled, same, _ = make(action, update_epochs=1, compile="on", **options)
    one = eager.update(eager.prepare(rollout))
    two = compiled.update(compiled.prepare(same))
    assert compiled.epochs.compiled, "the compiler did not work"
    torch.testing.assert_close(eager.state.param, compiled.state.param, rtol=1e-3, atol=2e-5)
    assert one["policy_loss"] == pytest.approx(two["policy_loss"], abs=1e-4)


@pytest.mark.slow
def test_a_number_that_changes_between_two_calls_of_a_compiled_step_is_not_frozen() -> None:
    """An option that a callback anneals, or a loss with state of its own."""
    changes = {"entropy_coef": 0.5, "clip_range": 0.01}
    updated = {}
    for compiled in ("off", "on"):
        learner, rollout, _ = make(update_epochs=1, compile=compiled, minibatch_size=64)
        batch = learner.prepare(rollout)
        learner.update(batch)
        for name, value in changes.items():
            setattr(learner.config.ppo, name, value)
        metrics = learner.update(batch)
        assert learner.epochs.compiled == (compiled == "on"), "the compiler did not work"
        updated[compiled] = learner.state.param.clone(), metrics["clip_fraction"]
    torch.testing.assert_close(updated["off"], updated["on"], rtol=1e-3, atol=2e-5)


def test_gradients_are_reduced_before_they_are_clipped() -> None:
    plain, rollout, _ = make(update_epochs=1, max_grad_norm=None)
    halved, same, _ = make(update_epochs=1, max_grad_norm=None)
    halved.limit_gradient = lambda gradient: 0.5 * gradient
    one, two = plain.update(plain.prepare(rollout)), halved.update(halved.prepare(same))
    assert two["gradient_norm"] == pytest.approx(one["gradient_norm"] / 2, rel=0.05)


def test_sequences_that_are_too_long_to_unroll_are_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    options = {"rnn": "gru", "num_steps": 200, "bptt_length": 200, "compile": "on", "minibatch_size": 2}
    config = load_config(None, options)
    policy = ActorCritic(Spec({"obs": ObsSpec((2,), "float32")}, BOX), config.policy, config.normalize)
    assert not PPOLearner(policy, config, device=torch.device("cpu"), seed=0).epochs.compiled
    assert "The learner is not compiled (bptt_length is 200, and above 128" in caplog.text


def test_without_a_compiler_the_run_goes_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_args: Any, **_kwargs: Any) -> Any:
        def raises(*_inner: Any) -> Any:
            raise RuntimeError("no working C++ compiler found\nmore")

        return raises

    monkeypatch.setattr(torch, "compile", broken)
    learner, rollout, _ = make(compile="on")
    learner.update(learner.prepare(rollout))
    assert not learner.epochs.compiled and "no working C++ compiler found" in caplog.text


@pytest.mark.parametrize("kind", ["two RNNs, padded", "lstm, whole rollouts, beta"])
def test_recomputed_advantages_of_a_policy_that_did_not_change_are_the_same(kind: str) -> None:
    action, options = KINDS[kind]
    learner, rollout, _ = make(action, recompute_advantage=True, **options)
    batch = learner.prepare(rollout)
    with torch.no_grad():
        advantage, _ = learner._advantages(rollout, batch.reward, learner._values(batch.rows.inputs))
    torch.testing.assert_close(advantage, batch.rows.advantage, rtol=1e-5, atol=1e-5)


def test_padding_does_not_touch_the_gradient() -> None:
    action, options = KINDS["two RNNs, padded"]
    learner, rollout, _ = make(action, normalize_advantage="minibatch", **options)
    batch = learner.prepare(rollout)
    minibatch = learner.gather(batch.rows, torch.arange(learner.layout.num_sequences))
    state, metrics = learner._step(learner.state, learner.learning_rate, [minibatch])
    assert minibatch.weight is not None
    padding = minibatch.weight == 0
    assert bool(padding.any())
    names = ("advantage", "return_", "old_value", "old_log_prob")
    changed = minibatch._replace(**{name: getattr(minibatch, name) + 0.7 * padding for name in names})
    again, other = learner._step(learner.state, learner.learning_rate, [changed])
    assert torch.equal(state.param, again.param) and torch.equal(metrics, other)
