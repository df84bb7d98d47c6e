"""DQN's targets with masked next actions, by hand."""

import pytest
import torch
from torch import Tensor, nn

from proxima.algo.dqn import DQNLearner
from proxima.config import load_config
from proxima.data.replay import Replay
from proxima.data.rollout import Rollout
from proxima.nets.q_network import QNetwork
from proxima.nets.spec import ActionSpec, ObsSpec, Spec

CPU = torch.device("cpu")
ONLINE = torch.tensor([[1.0, 2.0, 3.0], [9.0, 5.0, 4.0]])  # Q of two states and three actions
TARGET = torch.tensor([[0.0, 0.0, 0.0], [8.0, 6.0, 7.0]])


class State(nn.Module):
    """The state itself as features: with Q's weights as a table, Q can be read from it."""

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return obs["obs"]


def table(*, double_q: bool) -> tuple[DQNLearner, QNetwork]:
    options = {"algorithm": "DQN", "double_q": double_q, "compile": "off", "normalize_obs": False, "hidden_sizes": [4]}
    config = load_config(None, options | {"gamma": 0.5, "minibatch_size": 1})
    obs = {"obs": ObsSpec((2,), "float32"), "action_mask": ObsSpec((3,), "uint8")}
    policy = QNetwork(Spec(obs, ActionSpec("discrete", (3,))), config.policy, config.normalize)
    policy.actor_trunk = State()  # type: ignore[assignment]
    policy.action_head.linear = nn.Linear(2, 3)
    policy.action_head.linear.weight.data = TARGET.T.clone()
    policy.action_head.linear.bias.data.zero_()
    learner = DQNLearner(policy, config, device=CPU, seed=0)  # the target network is a copy
    learner.state.param[: ONLINE.numel()] = ONLINE.T.flatten()
    return learner, policy


def one_step(*, next_mask: list[int], ends: str = "") -> Rollout:
    """From state 0 by action 0 with reward 1 to state 1, where `next_mask` holds."""
    obs = {"obs": torch.zeros(1, 2), "action_mask": torch.ones(1, 3, dtype=torch.uint8)}
    rollout = Rollout(num_steps=1, num_envs=1, obs=obs, action=torch.zeros(1, dtype=torch.long), device=CPU)
    first, second = torch.eye(2)
    rollout.obs["obs"][:, 0] = torch.stack((first, first if ends else second))
    rollout.obs["action_mask"][:, 0] = torch.tensor([[1, 1, 1], [1, 1, 1] if ends else next_mask])
    rollout.reward[:] = 1.0
    if ends == "truncated":
        rollout.truncated[:] = True
        final = {"obs": second[None], "action_mask": torch.tensor([next_mask], dtype=torch.uint8)}
        rollout.add_final(torch.tensor([0]), torch.tensor([0]), final)
    elif ends:
        rollout.terminated[:] = True
    return rollout


def target(rollout: Rollout, *, double_q: bool) -> float:
    learner, _ = table(double_q=double_q)
    replay = Replay(rollout, buffer_size=4, margin=1, gamma=0.5)
    replay.add(rollout)
    data = learner._prepare(replay.gather(torch.tensor([0])))
    found = learner.complete(learner.flat.views(learner.state.param), data).target
    assert found is not None
    return float(found)


@pytest.mark.parametrize("ends", ["", "truncated"])
@pytest.mark.parametrize(
    ("mask", "plain", "double"),
    [
        ([1, 1, 1], 8.0, 8.0),
        ([0, 1, 1], 7.0, 6.0),  # online prefers action 1 among the valid ones, whose target value is 6
        ([0, 0, 1], 7.0, 7.0),
        ([0, 0, 0], 8.0, 8.0),  # of a last observation: nothing is known to be invalid
    ],
)
def test_targets_use_valid_next_actions(ends: str, mask: list[int], plain: float, double: float) -> None:
    assert target(one_step(next_mask=mask, ends=ends), double_q=False) == 1.0 + 0.5 * plain
    assert target(one_step(next_mask=mask, ends=ends), double_q=True) == 1.0 + 0.5 * double


def test_a_terminated_episode_has_no_next_value() -> None:
    assert target(one_step(next_mask=[0, 0, 0], ends="terminated"), double_q=False) == 1.0


def test_greedy_actions_and_values_are_those_of_valid_actions() -> None:
    _, policy = table(double_q=False)
    policy.epsilon.zero_()
    obs = {"obs": torch.tensor([[0.0, 1.0]]), "action_mask": torch.tensor([[0, 1, 1]], dtype=torch.uint8)}
    acted = policy.act(obs, torch.zeros(1, 2), with_value=True)
    assert acted.action.tolist() == [1] and acted.value is not None and acted.value.tolist() == [5.0]
