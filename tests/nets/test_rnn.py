"""The fast pass over sequences against one step after another, and a recurrent policy against acting step by step."""

from typing import Any

import pytest
import torch
from torch import Tensor

from proxima.config import load_config
from proxima.errors import UsageError
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.rnn import RNN
from proxima.nets.spec import ActionSpec, ObsSpec, Spec

KINDS = [("gru", 1), ("gru", 2), ("lstm", 1), ("lstm", 2)]
LENGTH, BATCH = 24, 3


def make(kind: str, layers: int, *, orthogonal: bool = True) -> RNN:
    torch.manual_seed(0)
    rnn = RNN(5, kind=kind, size=6, layers=layers, orthogonal=orthogonal).double()
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return rnn


def loop(rnn: RNN, x: Tensor, state: Tensor, start: Tensor) -> Tensor:
    """What a sequence means."""
    outputs = []
    for now, begins in zip(x.unflatten(0, (-1, len(state))), start.unflatten(0, (-1, len(state))), strict=True):
        out, state = rnn.step(now, torch.where(begins[:, None], 0.0, state))
        outputs.append(out)
    return torch.cat(outputs)


def inputs(rnn: RNN, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(length * BATCH, 5, generator=generator, dtype=torch.float64)
    return x, torch.randn(BATCH, rnn.state_size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("kind", "layers"), KINDS)
def test_a_step_is_pytorchs_own(kind: str, layers: int) -> None:
    rnn = make(kind, layers)
    theirs = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[kind](5, 6, layers).double()
    theirs.load_state_dict(rnn.state_dict())
    x, state = inputs(rnn)
    parts = state.view(BATCH, rnn.parts, layers, 6).permute(1, 2, 0, 3).contiguous()
    expected, _ = theirs(x.view(LENGTH, BATCH, 5), tuple(parts) if kind == "lstm" else parts[0])
    found = loop(rnn, x, state, torch.zeros(LENGTH * BATCH, dtype=torch.bool))
    torch.testing.assert_close(found, expected.flatten(0, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "layers"), KINDS)
@pytest.mark.parametrize("way", ["_by_episodes", "_unrolled"])
def test_a_sequence_equals_the_loop_with_a_reset_at_every_position(kind: str, layers: int, way: str) -> None:
    rnn = make(kind, layers)
    x, state = inputs(rnn)
    starts = [torch.zeros(LENGTH, BATCH, dtype=torch.bool)]
    starts += [starts[0].clone().index_fill_(0, torch.tensor(t), True) for t in range(LENGTH)]  # all envs at once
    one = torch.eye(LENGTH, dtype=torch.bool)[:, :, None] & torch.tensor([False, True, False])
    starts += list(one)  # one env of three
    starts.append(torch.ones(LENGTH, BATCH, dtype=torch.bool))
    starts.append(torch.rand(LENGTH, BATCH, generator=torch.Generator().manual_seed(2)) < 0.2)
    for start in starts:
        expected = loop(rnn, x, state, start.flatten())
        found = getattr(rnn, way)(x.view(LENGTH, BATCH, 5), state, start).flatten(0, 1)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "layers"), KINDS)
@pytest.mark.parametrize("way", ["_by_episodes", "_unrolled"])
def test_the_gradient_of_24_steps_is_autograds_through_the_loop(kind: str, layers: int, way: str) -> None:
    rnn = make(kind, layers)
    x, state = (tensor.requires_grad_() for tensor in inputs(rnn))
    start = torch.rand(LENGTH, BATCH, generator=torch.Generator().manual_seed(2)) < 0.1
    assert start[1:].any()
    weight = torch.randn(LENGTH * BATCH, 6, dtype=torch.float64)
    outputs = loop(rnn, x, state, start.flatten()), getattr(rnn, way)(x.view(LENGTH, BATCH, 5), state, start)
    wanted = [x, state, *rnn.parameters()]
    expected, found = (torch.autograd.grad((out.view_as(weight) * weight).sum(), wanted) for out in outputs)
    for one, two in zip(expected, found, strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=1e-11)
        assert bool((one != 0).any())


@pytest.mark.parametrize("orthogonal", [True, False])
def test_new_recurrent_layers_start_near_their_past(orthogonal: bool) -> None:
    rnn = RNN(5, kind="gru", size=64, layers=1, orthogonal=orthogonal)
    for gate in rnn.weight_hh_l0.split(64) if orthogonal else ():
        torch.testing.assert_close(gate @ gate.t(), torch.eye(64), rtol=0, atol=1e-4)
    assert all(bool(torch.isfinite(p).all()) for p in rnn.parameters())


# Policies ------------------------------------------------------------------------------------------------------------

OBS = {
    "scan": ObsSpec((11,), "float32"),
    "body": ObsSpec((4,), "float32"),
    "mass": ObsSpec((2,), "float32"),
    "camera": ObsSpec((12, 12, 3), "uint8"),
}
ENCODERS: dict[str, Any] = {
    "scan": {"widths": [16, 8]},
    "mass": {"use": "critic", "widths": [4]},
    "camera": {"use": "none"},
}


def policy(**options: Any) -> ActorCritic:
    torch.manual_seed(0)
    config = load_config(None, {"encoders": ENCODERS, "hidden_sizes": [8], "rnn_size": 6, **options})
    return ActorCritic(Spec(OBS, ActionSpec("box", (2,), (-1.0,) * 2, (1.0,) * 2)), config.policy, config.normalize)


def observe(count: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {key: torch.randn(count, *o.shape, generator=generator) for key, o in OBS.items() if o.dtype != "uint8"}


@pytest.mark.parametrize("rnn", ["none", "gru", "lstm"])
@pytest.mark.parametrize("share", ["on", "off"])
def test_a_key_for_the_critic_alone_reaches_only_the_critic(rnn: str, share: str) -> None:
    agent = policy(rnn=rnn, share_trunk=share)
    assert agent.keys == ["scan", "body", "mass"] and agent.actor_keys == ["scan", "body"]
    obs, state = observe(3), agent.first_state(3)
    changed = obs | {"mass": obs["mass"] + 1.0}
    (one, value), (two, other) = agent(obs, state), agent(changed, state)
    assert torch.equal(one.mean, two.mean) and not torch.allclose(value, other)
    torch.testing.assert_close(value, agent.value(obs, state))
    # And it need not be there to act.
    seen = {key: obs[key] for key in agent.actor_keys}
    after = agent.act(seen)[2]
    assert torch.equal(agent.act(seen)[0], agent.act(obs, None, state)[0])
    assert after is None if rnn == "none" else after.shape == (3, agent.actor_state_size)


@pytest.mark.parametrize("share", ["on", "off"])
@pytest.mark.parametrize("rnn", ["gru", "lstm"])
def test_acting_step_by_step_is_what_the_learner_sees(rnn: str, share: str) -> None:
    agent = policy(rnn=rnn, share_trunk=share, rnn_layers=2)
    steps, envs = 7, 3
    obs, state = observe(steps * envs), torch.randn(envs, agent.state_size)
    start = torch.zeros(steps, envs, dtype=torch.bool)
    start[2, 1] = start[5] = True
    distribution, value = agent(obs, state, start.flatten())
    for t in range(steps):
        now = {key: x.view(steps, envs, -1)[t] for key, x in obs.items()}
        state = state.masked_fill(start[t][:, None], 0.0)
        torch.testing.assert_close(agent.value(now, state), value.view(steps, envs)[t], rtol=1e-5, atol=1e-6)
        action, _, state, *_ = agent.act(now, None, state)
        torch.testing.assert_close(action, distribution.mean.view(steps, envs, 2)[t], rtol=1e-5, atol=1e-6)


def test_a_state_of_none_is_the_beginning_of_an_episode() -> None:
    agent = policy(rnn="gru")
    obs = observe(3)
    assert torch.equal(agent(obs)[1], agent(obs, agent.first_state(3))[1])
    assert policy().first_state(3) is None


@pytest.mark.parametrize(
    ("encoders", "message"),
    [
        ({"scna": {}}, "encoders names 'scna', but the observation has scan, body, mass, camera. Did you mean scan"),
        ({"scan": [64]}, r"encoders: scan is \[64\], but it must be a mapping"),
        ({"scan": {"width": [64]}}, "there is no option 'width'. Did you mean widths"),
        ({"scan": {"widths": [0]}}, "widths is 0, but it must be >= 1"),
        ({"scan": {"use": "actor"}}, "use is 'actor', but it must be one of all, critic, none"),
        ({key: {"use": "critic"} for key in OBS}, "leave the actor nothing to see"),
    ],
)
def test_bad_encoders_are_named(encoders: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        policy(encoders=encoders)
    assert "\n" not in str(error.value)
