"""The Q-network as a policy: what it does with noise, what it refuses, and that others can use it."""

import io
from typing import Any

import pytest
import torch

from proxima.algo.adam import FlatParameters
from proxima.config import load_config
from proxima.errors import UsageError
from proxima.evaluation.export import DeterministicPolicy
from proxima.evaluation.policy import LoadedPolicy
from proxima.nets.q_network import QNetwork
from proxima.nets.spec import ActionSpec, ObsSpec, Spec
from proxima.training.actor import Actor, compile_actor

CHOICES = ActionSpec("discrete", (5,), dtype="int64")
OBS = {"image": ObsSpec((12, 12, 3), "uint8"), "state": ObsSpec((4,), "float32")}


def make(action: ActionSpec = CHOICES, obs: dict[str, ObsSpec] | None = None, **options: Any) -> QNetwork:
    config = load_config(None, {"hidden_sizes": [8]} | options)
    torch.manual_seed(0)
    return QNetwork(Spec(obs or {"state": ObsSpec((4,), "float32")}, action), config.policy, config.normalize)


def test_without_noise_it_is_greedy_whatever_epsilon_is() -> None:
    policy = make()
    obs = {"state": torch.randn(64, 4)}
    action, env_action, state, *_ = policy.act(obs)
    assert float(policy.epsilon) == 1.0 and state is None
    assert torch.equal(action, policy(policy.normalizer(obs))[0].q.argmax(-1)) and torch.equal(action, env_action)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_actions_are_as_frequent_as_their_probability(epsilon: float) -> None:
    policy = make()
    policy.epsilon.fill_(epsilon)
    count = 100_000
    obs = {"state": torch.randn(1, 4).expand(count, -1)}
    noise = torch.randn(count, policy.noise_size, generator=torch.Generator().manual_seed(1))
    share = policy.act(obs, noise)[0].bincount(minlength=5) / count
    expected = torch.full((5,), epsilon / 5)
    expected[policy.act(obs)[0][0]] += 1 - epsilon
    torch.testing.assert_close(share, expected, atol=0.005, rtol=0.0)
    distribution, value = policy(obs)
    every = torch.stack([distribution.log_prob(torch.full((count,), i))[0] for i in range(5)])
    torch.testing.assert_close(every.exp(), expected)
    torch.testing.assert_close(distribution.entropy()[0], torch.special.entr(expected).sum())
    assert torch.equal(value, distribution.q.max(-1).values)


def test_epsilon_and_statistics_are_saved_with_the_weights() -> None:
    one, two = make(), make()
    one.epsilon.fill_(0.125)
    one.normalizer.update({"state": torch.randn(50, 4) * 3 + 1})
    two.load_state_dict(one.state_dict())
    obs = {"state": torch.randn(6, 4)}
    assert float(two.epsilon) == 0.125 and torch.equal(one.value(obs), two.value(obs))


@pytest.mark.parametrize(
    ("action", "options", "told"),
    [
        (ActionSpec("box", (2,), (-1.0,) * 2, (1.0,) * 2, (2,)), {}, r"Discrete action space, but .* box \[2\]"),
        (ActionSpec("multi_discrete", (2, 3)), {}, r"multi_discrete \[2, 3\]"),
        (CHOICES, {"rnn": "gru"}, "DQN has no recurrent policy"),
        (CHOICES, {"distribution": "beta"}, "distribution at auto"),
        (CHOICES, {"encoders": {"state": {"use": "critic"}}}, "encoders"),
    ],
)
def test_what_it_cannot_do_is_refused(action: ActionSpec, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        make(action, OBS, **options)


def test_images_and_bytes() -> None:
    policy = make(obs=OBS)
    obs = {"image": torch.randint(0, 256, (7, 12, 12, 3), dtype=torch.uint8), "state": torch.randn(7, 4)}
    assert policy(obs)[0].q.shape == (7, 5) and policy.value(policy.normalizer(obs)).shape == (7,)


def test_an_exported_policy_acts_the_same() -> None:
    policy = make()
    exported = DeterministicPolicy(policy)  # type: ignore[arg-type]
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(exported, tuple(exported.example().values()), check_trace=False), file)
    file.seek(0)
    obs = {"state": torch.randn(9, 4)}
    assert torch.equal(torch.jit.load(file)(obs), policy.act(obs)[0])


def test_a_loaded_policy_acts_on_arrays() -> None:
    policy = LoadedPolicy(make())  # type: ignore[arg-type]
    assert policy.act({"state": torch.zeros(4).numpy()}).shape == ()
    assert policy.act({"state": torch.zeros(3, 4).numpy()}, deterministic=False).shape == (3,)


@pytest.mark.slow
def test_a_compiled_actor_follows_epsilon() -> None:
    policy = make()
    flat, actor = FlatParameters(policy), Actor(policy, torch.device("cpu"))  # type: ignore[arg-type]
    seen, noise = (torch.randn(64, 4),), torch.randn(64, 2)
    stored, action = (torch.zeros(64, 4),), torch.zeros(64, dtype=torch.long)
    record = compile_actor(actor, flat, seen, noise, stored, action, ())
    for epsilon in (1.0, 0.5, 0.0):
        policy.epsilon.fill_(epsilon)
        assert torch.equal(record(seen, noise, stored, action, ()), policy.act({"state": seen[0]}, noise)[0])
        assert torch.equal(stored[0], seen[0])
