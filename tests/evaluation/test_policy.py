"""A loaded policy on observations of every kind of space, nested, flat and in batches."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from proxima.config import load_config
from proxima.envs.gymnasium.spaces import ObservationLayout
from proxima.errors import UsageError
from proxima.evaluation.policy import LoadedPolicy
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.spec import ActionSpec, Spec

SPACES = {
    "scalar": spaces.Box(-1, 1, (), np.float32),
    "discrete": spaces.Discrete(5, start=2),
    "one choice": spaces.Discrete(1),
    "multi discrete": spaces.MultiDiscrete([3, 2], start=[1, 0]),
    "matrix of choices": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "multi binary": spaces.MultiBinary((2, 3)),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float64))),
    "nested": spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(4)}), "c": spaces.Box(0, 255, (2, 2), np.uint8)}),
}


def loaded(space: spaces.Space) -> LoadedPolicy:
    options = load_config(None, {"hidden_sizes": [8]})
    spec = Spec.from_spaces(ObservationLayout(space).space, spaces.Box(-1, 1, (2,), np.float32))
    spec = Spec.from_dict(spec.to_dict())  # as it comes out of a checkpoint
    torch.manual_seed(0)
    policy = ActorCritic(spec, options.policy, options.normalize)
    torch.nn.init.normal_(policy.action_head.linear.weight)
    return LoadedPolicy(policy)


def batch_of(obs: list[Any]) -> Any:
    if isinstance(obs[0], dict):
        return {key: batch_of([one[key] for one in obs]) for key in obs[0]}
    if isinstance(obs[0], tuple):
        return tuple(batch_of([one[i] for one in obs]) for i in range(len(obs[0])))
    return np.stack(obs)


@pytest.mark.parametrize("name", SPACES)
def test_an_observation_as_the_env_gives_it_acts_like_the_flat_one(name: str) -> None:
    space = SPACES[name]
    layout, policy = ObservationLayout(space), loaded(space)
    space.seed(3)
    own = [space.sample() for _ in range(6)]
    arrays = [np.zeros((6, *leaf.box.shape), leaf.box.dtype) for leaf in layout.leaves]
    for row, obs in enumerate(own):
        layout.write(obs, arrays, row)
    flat = {leaf.key: array for leaf, array in zip(layout.leaves, arrays, strict=True)}
    expected = policy.act(flat)
    assert len(np.unique(expected, axis=0)) > 1 or name == "one choice"
    np.testing.assert_allclose(policy.act(batch_of(own)), expected, atol=1e-6)
    for row, obs in enumerate(own):
        np.testing.assert_allclose(policy.act(obs), expected[row], atol=1e-6)
        one = {key: x[row] for key, x in flat.items()}
        np.testing.assert_allclose(policy.act(one), expected[row], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "obs", "message"),
    [
        ("discrete", 1, "is 1, but its space has the whole numbers from 2 to 6"),
        ("discrete", np.array([3, 7]), "is 7, but"),
        ("discrete", 2.5, "is 2.5, but"),
        ("multi discrete", np.zeros(3), r"shape \(3,\), but the policy takes \(5,\) \(or \(2,\), as the env has it\)"),
        ("nested", {"a": {}, "c": np.zeros((2, 2))}, "lacks 'a/b'"),
        ("tuple", (1,), "lacks '1'"),
        (
            "tuple",
            (np.array([1, 2]), np.zeros((3, 2))),
            "batch sizes differ between observation keys: {'0': 2, '1': 3}",
        ),
        ("tuple", (1, np.zeros((1, 2))), "batch sizes differ"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused(name: str, obs: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        loaded(SPACES[name]).act(obs)


def test_integer_actions_are_clipped_before_they_are_cast() -> None:
    limits = np.iinfo(np.int32)
    spec = ActionSpec("box", (1,), (float(limits.min),), (float(limits.max),), shape=(1,), dtype="int32")
    action = spec.to_env(np.array([[limits.max]], np.float32))  # 2**31 once it is a float32
    assert action.tolist() == [[limits.max]]


@pytest.mark.slow
def test_loading_a_policy_imports_neither_trainer_nor_envs() -> None:
    program = "import sys, proxima; proxima.load_policy; print(*sys.modules)"
    loaded_modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    unwanted = (
        "proxima.training",
        "proxima.envs.make",
        "proxima.envs.contract",
        "proxima.track",
        "mujoco",
        "matplotlib",
        "tensorboard",
        "rich",
    )
    assert not [name for name in loaded_modules.split() if name.split(".")[0] in unwanted or name in unwanted]
