"""Networks and policies of users: what they get, what they must return, and what is refused before a run starts."""

from typing import Any

import pytest
import torch
from torch import nn

from proxima.config import config_from_dict, load_config
from proxima.errors import UsageError
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.policy import Policy, make_policy
from proxima.nets.spec import ActionSpec, ObsSpec, Spec
from tests.nets import own_nets

HERE = "tests.nets.own_nets"
BOX, CHOICE = ActionSpec("box", (2,), (-1.0,) * 2, (1.0,) * 2), ActionSpec("discrete", (3,))
LIDAR = {"lidar": ObsSpec((6,), "float32"), "state": ObsSpec((3,), "float32")}
MASKED: dict[str, Any] = {
    "obs": LIDAR | {"action_mask": ObsSpec((7,), "uint8")},
    "action": ActionSpec("multi_discrete", (3, 4), shape=(2,)),
}
MASKED_CHOICE = LIDAR | {"action_mask": ObsSpec((3,), "uint8")}


def make(obs: dict[str, ObsSpec] = LIDAR, action: ActionSpec = BOX, **options: Any) -> Policy:
    config = load_config(None, {"hidden_sizes": [8], "rnn_size": 6, **options})
    torch.manual_seed(0)
    return make_policy(Spec(obs, action), config)


def actor_critic(**options: Any) -> ActorCritic:
    policy = make(**options)
    assert isinstance(policy, ActorCritic)
    return policy


def test_a_class_and_its_name_are_the_same_option() -> None:
    given = load_config(None, {"encoders": {"lidar": {"network": own_nets.Net, "out": 5}}, "policy": own_nets.Shared})
    named = {"encoders": {"lidar": {"network": f"{HERE}:Net", "out": 5}}, "policy_class": f"{HERE}:Shared"}
    assert given == load_config(None, named)
    assert config_from_dict(given.to_dict(), source="") == given
    assert "Net" in given.to_yaml() and "python" not in given.to_yaml()  # no tags: plain text


def test_the_network_is_the_encoder_of_its_key_and_an_mlp_may_follow() -> None:
    policy = actor_critic(encoders={"lidar": {"network": own_nets.Net, "out": 5, "kwargs": {"width": 4}}})
    first, second = policy.actor_trunk.encoders
    assert isinstance(first.network, own_nets.Net) and first.network.shape == (6,)
    assert first.network.memory.out_features == 4 and isinstance(second, nn.Flatten)
    assert policy.actor_trunk.encoders.out_features == 5 + 3
    assert policy.critic_trunk.encoders[0] is not first, "each trunk has its own"
    longer = actor_critic(encoders={"lidar": {"network": own_nets.Net, "out": 5, "widths": [7]}})
    assert longer.actor_trunk.encoders.out_features == 7 + 3
    obs = {key: torch.rand(4, *o.shape) for key, o in LIDAR.items()}
    x = obs["lidar"] * first.network.angles
    torch.testing.assert_close(first(obs["lidar"]), first.network.out(nn.functional.elu(first.network.memory(x))))


@pytest.mark.parametrize(
    ("shape", "dtype", "arrives"),
    [
        ((6,), "float32", (6,)),
        ((2, 3), "uint8", (2, 3)),
        ((3, 10, 12), "uint8", (3, 10, 12)),
        ((10, 12, 3), "uint8", (3, 10, 12)),
        ((10, 12, 1), "float32", (1, 10, 12)),
    ],
)
def test_inputs_are_floats_and_images_have_channels_first(
    shape: tuple[int, ...], dtype: str, arrives: tuple[int, ...]
) -> None:
    size = int(torch.tensor(shape).prod())
    obs = {"x": ObsSpec(shape, dtype)}
    policy = actor_critic(obs=obs, encoders={"x": {"network": own_nets.Seen, "out": size}}, normalize_obs=False)
    encoder = policy.actor_trunk.encoders[0]
    assert encoder.network.shape == arrives
    x = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    is_image = len(shape) == 3
    seen = encoder(x if dtype == "uint8" else x / 255.0).view(2, *arrives)
    expected = x.movedim(-1, 1) if is_image and shape[-1] < shape[0] else x
    torch.testing.assert_close(seen, expected / 255.0 if is_image or dtype != "uint8" else expected.float())


def test_vectors_are_normalised_as_for_ours() -> None:
    obs = {"lidar": ObsSpec((6,), "float32")}
    own = actor_critic(obs=obs, encoders={"lidar": {"network": own_nets.Seen, "out": 6}})
    ours = actor_critic(obs=obs)
    ours.load_state_dict(own.state_dict())
    x = {"lidar": 3.0 + 2.0 * torch.randn(64, 6)}
    for policy in (own, ours):
        policy.normalizer.update(x)
    assert torch.equal(own.act(x).action, ours.act(x).action)


@pytest.mark.parametrize("network", [own_nets.Net, own_nets.ReadsItsWeights])
def test_it_depends_on_the_seed_alone_and_leaves_the_generator_alone_without_storage(network: type[nn.Module]) -> None:
    encoders = {"lidar": {"network": network, "out": 5}}
    one, two = (make(encoders=encoders).state_dict() for _ in range(2))
    assert all(torch.equal(x, two[name]) for name, x in one.items())
    before = torch.get_rng_state()
    config = load_config(None, {"encoders": encoders})
    with torch.device("meta"):
        shapes = make_policy(Spec(LIDAR, BOX), config).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert all(x.device.type == "meta" for x in shapes.values())


def test_sequences_are_what_was_acted_on() -> None:
    policies = [
        make(rnn="gru", encoders={"lidar": {"network": own_nets.Net, "out": 5}}),
        make(rnn="gru", policy=own_nets.WithState),
    ]
    for policy in policies:
        obs = {key: torch.rand(6, *o.shape) for key, o in LIDAR.items()}
        state = policy.first_state(2)
        assert state is not None
        start = torch.zeros(3, 2, dtype=torch.bool)
        start[1, 1] = True
        distribution, value = policy(obs, state, start.flatten())
        for t in range(3):
            now = {key: x.view(3, 2, -1)[t] for key, x in obs.items()}
            acted = policy.act(now, None, state.masked_fill(start[t][:, None], 0.0), with_value=True)
            assert acted.state is not None
            state = acted.state
            torch.testing.assert_close(acted.action, distribution.mode().view(3, 2, 2)[t])
            torch.testing.assert_close(acted.value, value.view(3, 2)[t])


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({"network": f"{HERE}:Wider"}, r"network .*Wider turned \[4, 6\] into \[4, 11\], but with out 5 it must be"),
        ({"network": f"{HERE}:Pair"}, r"Pair returned a tuple, but it must be a tensor \[B, 5\]"),
        ({"network": f"{HERE}:WrongInput"}, r"WrongInput failed for an input of shape \[4, 6\] \(RuntimeError: mat1"),
        ({"network": f"{HERE}:BatchNorm"}, "layer 'norm' is BatchNorm1d.* use LayerNorm or GroupNorm"),
        ({"network": f"{HERE}:Dropout"}, "layer 'inner.0' is Dropout with dropout 0.25"),
        ({"network": f"{HERE}:RandomOutputs"}, "gives other outputs for the same inputs"),
        ({"network": f"{HERE}:OnlyInTraining"}, "gives other outputs in eval mode"),
        ({"network": f"{HERE}:Counts"}, "changes its buffer 'angles' when it is called"),
        ({"network": f"{HERE}:MixesRows"}, "mixes the rows of a batch"),
        ({"network": f"{HERE}:Tied"}, "'out.weight' and 'second.weight' are one parameter in two layers"),
        ({"network": f"{HERE}:Double"}, "parameter 'memory.weight' is torch.float64, but it must be float32"),
        ({"network": f"{HERE}:Nothing"}, f"network is '{HERE}:Nothing': {HERE} has no Nothing"),
        ({"network": "nowhere.at.all:Net"}, "network is 'nowhere.at.all:Net': cannot import nowhere.at.all"),
        ({"network": "Net"}, "it must be written module:attribute"),
        (
            {"network": "os:system"},
            "'os:system', an object of class .* not a subclass of torch.nn.modules.module.Module",
        ),
        ({"network": "subprocess:Popen"}, "'subprocess:Popen', a class that is not a subclass"),
        ({"network": f"{HERE}:Net", "kwargs": {"depth": 3}}, "cannot be made with .*'depth'"),
        ({"network": f"{HERE}:Net", "out": None}, "but out is missing: give its output features"),
        ({"network": None}, "out is for a network of your own: give network, or leave it out"),
        ({"network": f"{HERE}:Net", "out": 0}, "out is 0, but it must be >= 1"),
    ],
)
def test_encoders_that_are_refused(encoder: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        make(encoders={"lidar": {"out": 5} | encoder})
    assert "\n" not in str(error.value) and str(error.value).startswith("encoders: lidar")


def test_convolutions_and_a_network_exclude_each_other() -> None:
    image, encoder = {"image": ObsSpec((3, 12, 12), "uint8")}, {"network": own_nets.Conv, "out": 5}
    assert make(obs=image, encoders={"image": encoder})
    with pytest.raises(UsageError, match="kernels is for our convolutions, and network is in their place"):
        make(obs=image, encoders={"image": encoder | {"kernels": [3]}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": own_nets.ValueOfOneColumn}, r"the value of forward is \[4, 1\] for 4 observations, .* \[4\]"),
        ({"policy": own_nets.WithoutNoise}, "sets no noise_size"),
        ({"policy": own_nets.DroppingOut}, "layer 'drop' is Dropout with dropout 0.1"),
        ({"policy": own_nets.WithState}, "has a recurrent state, but rnn is none"),
        ({"policy": own_nets.ForgetsItsState, "rnn": "gru"}, "has a recurrent state, but no act of its own"),
        ({"policy": own_nets.Net}, "not a subclass of proxima.nets.policy.Policy"),
        (
            {"policy": own_nets.Shared, "policy_kwargs": {"depth": 1}},
            "cannot be made with .*'depth'|unexpected keyword",
        ),
        ({"policy": f"{HERE}:Nothing"}, "policy_class is .* has no Nothing"),
        ({"policy_kwargs": {"width": 1}}, "policy_kwargs are {'width': 1}, but they are for a policy of your own"),
        ({"policy": own_nets.Shared, "algorithm": "DQN"}, "not a subclass of proxima.nets.q_network.QNetwork"),
        ({"policy": own_nets.Shared, "algorithm": "distillation"}, "not a subclass of .*ActorCritic"),
        (MASKED | {"policy": own_nets.WithoutMasks}, "WithoutMasks takes invalid actions: give its head the mask"),
        (
            {"obs": MASKED_CHOICE, "action": CHOICE, "policy": own_nets.DuellingWithoutMasks, "algorithm": "DQN"},
            "DuellingWithoutMasks takes invalid actions",
        ),
    ],
)
def test_policies_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        make(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("action", "options"),
    [
        (BOX, {"policy": own_nets.Shared, "policy_kwargs": {"width": 3}}),
        (CHOICE, {"policy": own_nets.Shared}),
        (BOX, {"policy": own_nets.Doubled, "rnn": "lstm"}),
        (CHOICE, {"policy": own_nets.Duelling, "algorithm": "DQN"}),
    ],
)
def test_policies_that_are_taken(action: ActionSpec, options: dict[str, Any]) -> None:
    assert type(make(action=action, **options)) is options["policy"]


@pytest.mark.parametrize("encoders", [{}, {"action_mask": {"use": "all"}}])
@pytest.mark.parametrize(
    ("obs", "action", "options"),
    [
        (MASKED["obs"], MASKED["action"], {"policy": own_nets.Shared}),
        (MASKED["obs"], MASKED["action"], {"policy": own_nets.WithState, "rnn": "gru"}),
        (MASKED["obs"], MASKED["action"], {"policy": own_nets.Doubled}),
        (MASKED_CHOICE, CHOICE, {"policy": own_nets.Shared}),
        (MASKED_CHOICE, CHOICE, {"policy": own_nets.Duelling, "algorithm": "DQN"}),
    ],
)
def test_policies_of_masked_envs_that_are_taken(
    obs: dict[str, ObsSpec], action: ActionSpec, options: dict[str, Any], encoders: dict[str, Any]
) -> None:
    assert type(make(obs, action, encoders=encoders, **options)) is options["policy"]
