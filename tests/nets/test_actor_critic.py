"""Actor and critic: widths of their hidden layers, and what is refused."""

from typing import Any

import pytest
import torch
from torch import nn

from proxima.config import load_config
from proxima.errors import UsageError
from proxima.nets.policy import Policy, make_policy
from proxima.nets.spec import ActionSpec, ObsSpec, Spec

OBS = {"obs": ObsSpec((3,), "float32")}
BOX, CHOICE = ActionSpec("box", (2,), (-1.0,) * 2, (1.0,) * 2), ActionSpec("discrete", (4,))
WIDER = {"hidden_sizes": [8, 7], "critic_hidden_sizes": [16, 15, 14]}


def make(action: ActionSpec = BOX, obs: dict[str, ObsSpec] = OBS, **options: Any) -> Policy:
    config = load_config(None, {"hidden_sizes": [8, 7], "rnn_size": 6, **options})
    torch.manual_seed(0)
    return make_policy(Spec(obs, action), config)


def widths(policy: Policy, *names: str) -> list[int]:
    """Outputs of the linear layers of these modules, in order."""
    found = [module for name in names for module in policy.get_submodule(name).modules()]
    return [module.out_features for module in found if isinstance(module, nn.Linear)]


@pytest.mark.parametrize("action", [BOX, CHOICE])
def test_the_critic_has_widths_of_its_own(action: ActionSpec) -> None:
    policy = make(action, **WIDER)
    assert widths(policy, "actor_trunk", "action_mlp") == [8, 7]
    assert widths(policy, "critic_trunk", "value_mlp", "value_head") == [16, 15, 14, 1]
    distribution, value = policy(policy.normalizer({"obs": torch.randn(5, 3)}))
    assert distribution.mode().shape[0] == 5 and value.shape == (5,)


@pytest.mark.parametrize("share", ["on", "off"])
def test_in_a_recurrent_policy_they_are_those_of_the_value_mlp(share: str) -> None:
    policy = make(rnn="gru", share_trunk=share, **WIDER)
    assert widths(policy, "action_mlp") == [8, 7]
    assert widths(policy, "value_mlp", "value_head") == [16, 15, 14, 1]


def test_without_hidden_layers_the_critic_is_linear() -> None:
    policy = make(critic_hidden_sizes=[])
    assert widths(policy, "critic_trunk", "value_mlp", "value_head") == [1]
    assert widths(policy, "actor_trunk", "action_mlp") == [8, 7]


@pytest.mark.parametrize("options", [{}, {"rnn": "lstm"}, {"rnn": "lstm", "share_trunk": "off"}])
def test_the_default_is_that_of_the_actor_to_the_bit(options: dict[str, Any]) -> None:
    default, given = make(**options), make(critic_hidden_sizes=[8, 7], **options)
    assert default.state_dict().keys() == given.state_dict().keys()
    assert all(torch.equal(x, given.state_dict()[name]) for name, x in default.state_dict().items())


def test_a_wider_critic_leaves_the_actor_as_it_was() -> None:
    wider, plain = (make(critic_hidden_sizes=sizes).get_submodule("actor_trunk").state_dict() for sizes in ([32], None))
    assert all(torch.equal(x, plain[name]) for name, x in wider.items())


@pytest.mark.parametrize("obs", [OBS, {"image": ObsSpec((12, 12, 3), "uint8")}])
def test_a_shared_trunk_ends_at_the_encoders(obs: dict[str, ObsSpec]) -> None:
    policy = make(obs=obs, share_trunk="on", **WIDER)
    assert policy.get_submodule("critic_trunk") is policy.get_submodule("actor_trunk")
    assert widths(policy, "action_mlp") == [8, 7]
    assert widths(policy, "value_mlp", "value_head") == [16, 15, 14, 1]


@pytest.mark.parametrize("rnn", ["none", "gru"])
def test_keys_for_the_critic_alone_pass_by_a_shared_trunk(rnn: str) -> None:
    obs = OBS | {"mass": ObsSpec((2,), "float32")}
    policy = make(obs=obs, share_trunk="on", rnn=rnn, encoders={"mass": {"use": "critic"}}, **WIDER)
    first = policy.get_submodule("value_mlp")[0]
    assert first.in_features == (6 if rnn == "gru" else 3) + 2 and first.out_features == 16


def test_dqn_has_no_critic() -> None:
    with pytest.raises(UsageError, match=r"critic_hidden_sizes is \[16\], but DQN has no critic"):
        make(CHOICE, critic_hidden_sizes=[16], algorithm="DQN")
