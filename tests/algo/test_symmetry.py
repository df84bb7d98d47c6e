"""Symmetry: its gradients against ones made by hand, and the recurrent state of the mirrored world."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from proxima.algo.losses import ppo_loss
from proxima.algo.ppo import PPOLearner
from proxima.algo.symmetry import Symmetry
from proxima.config import load_config
from proxima.data.batch import Minibatch
from proxima.data.rollout import Rollout
from proxima.envs.contract import Mirror, Reflection
from proxima.errors import UsageError
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.spec import ActionSpec, ObsSpec, Spec
from tests.algo.test_ppo import BOX, DISCRETE, IMAGE, SEQUENCES, first_metrics, make

OBS, ACTION = Reflection((1, 0, 2, 3, 4), (-1, -1, 1, -1, 1)), Reflection((1, 0), (-1, -1))
COLUMNS = tuple(3 * (12 * row + column) + c for row in range(12) for column in range(11, -1, -1) for c in range(3))
MIRROR = Mirror(
    {"obs": OBS, "image": Reflection(COLUMNS, (1,) * 432), "state": Reflection((3, 1, 2, 0), (1,) * 4)}, ACTION
)
GRU = {"rnn": "gru", **SEQUENCES, "bptt_length": 4}
KINDS: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "tanh": {"distribution": "tanh_gaussian"},
    "beta": {"distribution": "beta"},
    "images": {"obs": IMAGE},
    "images, gru": {"obs": IMAGE, **GRU},
    "gru": GRU,
    "two layers of lstm": {"rnn": "lstm", "rnn_layers": 2, **SEQUENCES, "bptt_length": 16},
    "two RNNs, padded": {"rnn": "gru", "share_trunk": "off", **SEQUENCES, "bptt_length": 5},
}
RECURRENT = [kind for kind, options in KINDS.items() if "rnn" in options]


def mirrored(x: Tensor, reflection: Reflection, axes: int = 1) -> Tensor:
    """`[..., *shape]` with so many axes of the shape, number by number."""
    flat = x.flatten(-axes).clone()
    for i, (j, sign) in enumerate(zip(reflection.index, reflection.sign, strict=True)):
        flat[..., i] = x.flatten(-axes)[..., j] * sign
    return flat.view_as(x)


def mirrored_action(x: Tensor, options: dict[str, Any]) -> Tensor:
    is_beta = options.get("distribution") == "beta"  # raw actions from 0 to 1
    return 0.5 + mirrored(x - 0.5, ACTION) if is_beta else mirrored(x, ACTION)


def mirrored_obs(rollout: Rollout) -> dict[str, Tensor]:
    return {key: mirrored(x, MIRROR.obs[key], x.ndim - 2) for key, x in rollout.step_obs().items()}


def mirrored_states(policy: ActorCritic, rollout: Rollout, state: Tensor | None) -> tuple[list[Tensor], Tensor]:
    """States before every step `[T]`, by acting in the mirrored world, and the one after the last."""
    obs, states = mirrored_obs(rollout), []
    assert state is not None
    for t in range(rollout.num_steps):
        states.append(state)
        state = policy.act({key: x[t] for key, x in obs.items()}, None, state).state
        assert state is not None
        state = torch.where(rollout.ended[t][:, None], torch.zeros_like(state), state)
    return states, state


def prepared(symmetry: str, **options: Any) -> tuple[PPOLearner, Rollout, Minibatch]:
    """A learner whose observation statistics are not symmetric, and all sequences of a rollout as one minibatch."""
    learner, rollout, policy = make(mirror=MIRROR, symmetry=symmetry, **options)
    policy.normalizer.update({key: 2.0 * x + 0.3 for key, x in rollout.step_obs().items()})
    with torch.no_grad():
        policy.action_head.linear.weight.mul_(30.0)  # actions that depend on the observation
    batch = learner.prepare(rollout)
    return learner, rollout, learner.gather(batch.rows, torch.arange(learner.layout.num_sequences))


def evaluated(
    learner: PPOLearner, param: Tensor, minibatch: Minibatch, obs: dict[str, Tensor], state: Tensor | None
) -> Any:
    return learner.apply(learner.flat.views(param), obs, state, minibatch.start)


def image_of(learner: PPOLearner, rollout: Rollout) -> tuple[dict[str, Tensor], Tensor | None]:
    """Inputs of the mirrored sequences, from the raw observations: mirrored first, normalised after."""
    index, policy = torch.arange(learner.layout.num_sequences), learner.policy
    rows = learner.layout.rows(index)
    obs = {key: x.flatten(0, 1)[rows] for key, x in policy.normalizer(mirrored_obs(rollout)).items()}
    if not policy.state_size:
        return obs, None
    assert isinstance(policy, ActorCritic)
    states, _ = mirrored_states(policy, rollout, policy.first_state(4))
    return obs, torch.cat(states[:: learner.layout.length])


@pytest.mark.parametrize("kind", KINDS)
def test_the_augmented_gradient_is_that_of_the_concatenated_batch(kind: str) -> None:
    learner, rollout, minibatch = prepared("augment", **KINDS[kind])
    obs, state = image_of(learner, rollout)
    param = learner.state.param.detach().requires_grad_()
    one, value = evaluated(learner, param, minibatch, minibatch.obs, minibatch.state)
    two, other_value = evaluated(learner, param, minibatch, obs, state)
    log_prob = torch.cat((one.log_prob(minibatch.action), two.log_prob(mirrored_action(minibatch.action, KINDS[kind]))))
    names = ("old_log_prob", "old_value", "advantage", "return_")
    twice = {name: torch.cat([getattr(minibatch, name)] * 2) for name in names}
    weight = None if minibatch.weight is None else torch.cat([minibatch.weight] * 2)
    both = Minibatch({}, None, None, minibatch.action, **twice, weight=weight)
    entropy = torch.cat((one.entropy(), two.entropy()))
    loss = ppo_loss(log_prob, torch.cat((value, other_value)), entropy, both, learner.config.ppo).loss
    by_hand = torch.autograd.grad(loss, param, retain_graph=True)[0]
    torch.testing.assert_close(learner._gradient(learner.state, minibatch)[0], by_hand, rtol=1e-4, atol=1e-6)
    plain = ppo_loss(one.log_prob(minibatch.action), value, one.entropy(), minibatch, learner.config.ppo).loss
    assert not torch.allclose(by_hand, torch.autograd.grad(plain, param)[0], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_symmetry_loss_moves_the_actions_in_mirrored_states_only(kind: str) -> None:
    learner, rollout, minibatch = prepared("loss", symmetry_coef=0.7, **KINDS[kind])
    obs, state = image_of(learner, rollout)
    param = learner.state.param.detach().requires_grad_()
    distribution, value = evaluated(learner, param, minibatch, minibatch.obs, minibatch.state)
    target = mirrored_action(distribution.mode().detach(), KINDS[kind])
    gap = (evaluated(learner, param, minibatch, obs, state)[0].mode() - target).square().mean(1)
    weight = torch.ones_like(gap) if minibatch.weight is None else minibatch.weight
    terms = ppo_loss(
        distribution.log_prob(minibatch.action), value, distribution.entropy(), minibatch, learner.config.ppo
    )
    error = (gap * weight).sum() / weight.sum()
    by_hand = torch.autograd.grad(terms.loss + 0.7 * error, param)[0]
    ours, metrics = learner._gradient(learner.state, minibatch)
    torch.testing.assert_close(ours, by_hand, rtol=1e-4, atol=1e-6)
    found = dict(zip(learner.loss_terms, metrics.tolist(), strict=True))
    assert found["symmetry_loss"] == pytest.approx(error.item(), rel=1e-4) and found["symmetry_loss"] > 3e-4


@pytest.mark.parametrize("kind", KINDS)
def test_both_measure_the_same_symmetry_loss(kind: str) -> None:
    found = []
    for symmetry in ("augment", "loss"):
        learner, _, minibatch = prepared(symmetry, **KINDS[kind])
        found.append(learner._gradient(learner.state, minibatch)[1][-1])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("symmetry", ["augment", "loss"])
def test_the_first_ratio_is_one_as_measured(kind: str, symmetry: str) -> None:
    learner, rollout, _ = make(mirror=MIRROR, symmetry=symmetry, **KINDS[kind])
    metrics = first_metrics(learner, rollout)
    assert abs(metrics["approx_kl"]) < 1e-9 and metrics["clip_fraction"] == 0.0


def matrix(reflection: Reflection) -> Tensor:
    """The reflection as a matrix."""
    return mirrored(torch.eye(len(reflection.index)), reflection).T


@pytest.mark.parametrize("rnn", [{}, {**GRU, "bptt_length": 16, "minibatch_size": 2}])
def test_a_symmetric_policy_has_no_symmetry_loss(rnn: dict[str, Any]) -> None:
    """Linear: W M = M' W. Recurrent: features that a mirror does not change, and actions that it does not change."""
    learner, rollout, policy = make(mirror=MIRROR, **{"symmetry": "loss", **rnn, "hidden_sizes": []})
    with torch.no_grad():
        head = policy.action_head.linear
        head.weight.mul_(30.0)
        head.bias.copy_(matrix(ACTION) @ torch.tensor([0.3, 0.1]) + torch.tensor([0.3, 0.1]))
        if rnn:
            into = policy.actor_trunk.rnn.weight_ih_l0
            into.copy_(0.5 * (into + into @ matrix(OBS)))
            head.weight.copy_(0.5 * (head.weight + matrix(ACTION) @ head.weight))
        else:
            head.weight.copy_(0.5 * (head.weight + matrix(ACTION) @ head.weight @ matrix(OBS)))
    index = torch.arange(learner.layout.num_sequences)
    for uneven in (0.0, 0.5):
        if not uneven:
            learner.update_normalizer(rollout)  # with the statistics of both worlds it stays symmetric
        head.weight.data[0, 0] += uneven
        learner.forget_episodes()
        minibatch = learner.gather(learner.prepare(rollout).rows, index)
        loss = float(learner._gradient(learner.state, minibatch)[1][-1])
        assert loss > 1e-3 if uneven else loss < 1e-12


@pytest.mark.parametrize("kind", RECURRENT)
def test_mirrored_states_are_those_of_acting_in_the_mirrored_world(kind: str) -> None:
    learner, rollout, policy = make(mirror=MIRROR, symmetry="augment", **KINDS[kind])
    state, length = policy.first_state(4), learner.layout.length
    for _ in range(2):  # the second rollout goes on where the first ended
        states, state = mirrored_states(policy, rollout, state)
        found = learner.prepare(rollout).rows.mirrored
        assert found is not None and found.state is not None
        assert torch.equal(found.state, torch.cat(states[::length]))
        assert learner.symmetry is not None and torch.equal(learner.symmetry.state, state)  # type: ignore[arg-type]
    assert float(state.abs().min(1).values.max()) > 0.0


def test_a_step_of_the_mirrored_world_starts_with_the_right_state() -> None:
    """The states above are used: with those of the real world, the outputs would be others."""
    learner, _, minibatch = prepared("loss", **KINDS["gru"])
    assert minibatch.mirrored is not None and minibatch.state is not None
    swapped = minibatch._replace(mirrored=minibatch.mirrored._replace(state=minibatch.state))
    losses = [float(learner._gradient(learner.state, x)[1][-1]) for x in (minibatch, swapped)]
    assert abs(losses[0] - losses[1]) > 1e-6 * losses[0]


def test_stacked_frames_are_rebuilt_for_the_mirrored_world() -> None:
    """Storage of each frame once gives the same states as storage of complete stacks."""
    torch.manual_seed(0)
    config = load_config(None, {"num_envs": 3, "num_steps": 6, "symmetry": "augment", **GRU})
    spec = Spec({"image": ObsSpec((2, 9, 8), "uint8", frames=2)}, BOX)
    policy = ActorCritic(spec, config.policy, config.normalize)
    flipped = tuple(8 * row + column for row in range(18) for column in range(7, -1, -1))
    mirror = Mirror({"image": Reflection(flipped, (1,) * 144)}, ACTION)
    frames = torch.randint(0, 256, (8, 3, 1, 9, 8), dtype=torch.uint8)
    first = {"image": torch.cat((frames[0], frames[1]), 1)}
    states = []
    for stacks in ({"image": 2}, {}):
        rollout = Rollout(
            num_steps=6, num_envs=3, obs=first, action=torch.zeros(3, 2), device=torch.device("cpu"), stacks=stacks
        )
        rollout.truncated[2, 1] = True
        rollout.begin(first)
        for t in range(7):
            older = frames[t].clone()
            if t == 3:  # the first frame of an episode is repeated
                older[1] = frames[4, 1]
            rollout.obs["image"][t] = frames[t + 1] if stacks else torch.cat((older, frames[t + 1]), 1)
        symmetry = Symmetry(mirror, policy, config, num_envs=config.env.num_envs, device=torch.device("cpu"))
        states += [symmetry.prepare(rollout).state, symmetry.state]
    assert torch.equal(states[0], states[2]) and torch.equal(states[1], states[3])
    assert bool(states[1].any())


class NoSynchronisation(TorchDispatchMode):
    """Refuses what would make the host wait for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket not in (
            torch.ops.aten._local_scalar_dense,
            torch.ops.aten.nonzero,
            torch.ops.aten.masked_select,
        ), f"{func} synchronises"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_waits_for_the_device(kind: str) -> None:
    learner, rollout, minibatch = prepared("augment", **KINDS[kind])
    symmetry = learner.symmetry
    assert symmetry is not None
    with NoSynchronisation():
        symmetry.prepare(rollout)
        learner.update_normalizer(rollout)
        augmented = symmetry.augment(symmetry.gather(minibatch))
        symmetry.error(*symmetry.halves(augmented.action), minibatch.weight)
    with pytest.raises(AssertionError, match="synchronises"), NoSynchronisation():
        float(minibatch.advantage.sum())


@pytest.mark.parametrize("kind", ["gaussian", "gru"])
def test_without_symmetry_a_mirror_changes_nothing(kind: str) -> None:
    results = []
    for mirror in (None, MIRROR):
        learner, rollout, policy = make(mirror=mirror, **KINDS[kind])
        metrics = learner.update(learner.prepare(rollout))
        learner.update_normalizer(rollout)
        results.append((learner.state.param, metrics, policy.normalizer.state_dict(), learner.state_dict().keys()))
    one, two = results
    assert torch.equal(one[0], two[0]) and one[1] == two[1] and one[3] == two[3]
    assert all(torch.equal(x, two[2][name]) for name, x in one[2].items())
    assert "symmetry_loss" not in one[1]


def test_statistics_are_those_of_both_worlds() -> None:
    learner, rollout, policy = make(mirror=MIRROR, symmetry="augment")
    rollout.obs["obs"] += torch.arange(5.0)
    learner.update_normalizer(rollout)
    seen = rollout.step_obs()["obs"].flatten(0, 1).double()
    both = torch.cat((seen, mirrored(seen, OBS)))
    moments = policy.normalizer.moments["key_0"]
    torch.testing.assert_close(moments.mean, both.mean(0))
    torch.testing.assert_close(moments.var, both.var(0, correction=0))
    torch.testing.assert_close(moments.mean, mirrored(moments.mean, OBS))


def test_a_state_dict_restores_the_mirrored_state() -> None:
    one, rollout, policy = make(mirror=MIRROR, symmetry="augment", **GRU)
    one.update(one.prepare(rollout))
    state, weights = one.state_dict(), {name: x.clone() for name, x in policy.state_dict().items()}
    one.update(one.prepare(rollout))
    results = []
    for saved in (state, {name: x for name, x in state.items() if name != "mirrored_state"}):
        two, _, other = make(mirror=MIRROR, symmetry="augment", **GRU)
        other.load_state_dict(weights)
        two.load_state_dict(saved)
        two.update(two.prepare(rollout))
        results.append(torch.equal(one.state.param, two.state.param))
    assert results == [True, False]  # without it, it would not be the same
    assert one.symmetry is not None and one.symmetry.state is not None and bool(one.symmetry.state.any())
    one.forget_episodes()
    assert not bool(one.symmetry.state.any())


UNEVEN = ActionSpec("box", (2,), (-1.0, -1.0), (1.0, 2.0))
WRONG: list[tuple[str, dict[str, Any]]] = [
    (r"symmetry is loss, but HalfCheetah-v5 has no mirror", {"mirror": None}),
    (r"actions of kind discrete cannot be mirrored", {"action": DISCRETE}),
    (r"mirror does not have the observation 'obs'", {"mirror": Mirror({}, ACTION)}),
    (r"mirror has 5 numbers for the observation 'obs', which has 3", {"obs": {"obs": ObsSpec((3,), "float32")}}),
    (r"mirror has 5 numbers for the action, which has 2", {"mirror": Mirror({"obs": OBS}, OBS)}),
    (r"changes signs of 'obs', whose bytes have none", {"obs": {"obs": ObsSpec((5,), "uint8")}}),
    (r"bounds of action 0, -1 to 1, are not the mirror image of those of action 1, -1 to 2", {"action": UNEVEN}),
]


@pytest.mark.parametrize(("message", "case"), WRONG)
def test_what_cannot_be_mirrored_is_refused(message: str, case: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=message):
        make(**{"action": BOX, "mirror": MIRROR, "symmetry": "loss", **case})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "symmetry"), [("gaussian", "loss"), ("images", "augment"), ("two RNNs, padded", "augment")]
)
def test_compiled_agrees_with_eager(kind: str, symmetry: str) -> None:
    options = {"mirror": MIRROR, "symmetry": symmetry, "update_epochs": 1, **KINDS[kind]}
    eager, rollout, _ = make(**options)
    compiled, same, _ = make(compile="on", **options)
    one, two = (learner.update(learner.prepare(x)) for learner, x in ((eager, rollout), (compiled, same)))
    assert compiled.epochs.compiled, "the compiler did not work"
    torch.testing.assert_close(eager.state.param, compiled.state.param, rtol=1e-3, atol=2e-5)
    for name in ("policy_loss", "symmetry_loss", "approx_kl"):
        assert one[name] == pytest.approx(two[name], abs=1e-4)
