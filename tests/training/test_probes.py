"""Learning on environments with known answers, through the whole stack."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from proxima import load_policy, train
from proxima.config import load_config
from proxima.errors import NonFiniteError
from proxima.evaluation.policy import LoadedPolicy
from proxima.runs import checkpoint
from proxima.training.trainer import Trainer
from tests import probes
from tests.probes import learn


@pytest.fixture(autouse=True)
def probe_envs() -> None:
    probes.register()


def value(policy: Any, *obs: float) -> list[float]:
    return policy.value({"obs": torch.tensor(obs)[:, None]}).tolist()


@pytest.mark.slow
def test_value_of_a_constant() -> None:
    assert value(learn("ProbeConstant-v0", 8_000), 0.0) == pytest.approx([1.0], abs=0.02)


@pytest.mark.slow
def test_value_depends_on_the_observation() -> None:
    assert value(learn("ProbeObservation-v0", 12_000), -1.0, 1.0) == pytest.approx([-1.0, 1.0], abs=0.05)


@pytest.mark.slow
def test_value_is_discounted() -> None:
    assert value(learn("ProbeDelayed-v0", 16_000), 0.0, 1.0) == pytest.approx([0.8, 1.0], abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
def test_a_time_limit_is_bootstrapped(recompute: bool) -> None:
    policy = learn("ProbeEndless-v0", 24_000, recompute_advantage=recompute)
    assert value(policy, 0.0) == pytest.approx([1 / (1 - 0.8)], abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["gaussian", "tanh_gaussian", "beta"])
def test_continuous_actions_find_the_target(distribution: str) -> None:
    policy = learn("ProbeAim-v0", 40_000, distribution=distribution, initial_std=0.5, lr_schedule="linear")
    points = np.array([[-0.5], [0.0], [0.5]], np.float32)
    assert LoadedPolicy(policy).act(points).flatten().tolist() == pytest.approx([-0.5, 0.0, 0.5], abs=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "multi_binary"])
def test_discrete_actions_find_the_pattern(kind: str) -> None:
    policy = learn("ProbeMatch-v0", 12_000, env_kwargs={"kind": kind})
    low, high = LoadedPolicy(policy).act(np.array([[-1.0], [1.0]], np.float32))
    assert np.all(low == 0) and np.all(high == 1)


@pytest.mark.slow
def test_images_are_seen() -> None:
    policy = learn("ProbePixels-v0", 8_000, learning_rate=1e-3, cnn_features=32)
    env = probes.Pixels()
    images = np.stack([env.observe(0.0), env.observe(1.0)])
    assert LoadedPolicy(policy).act({"obs": images}).tolist() == [0, 1]


@pytest.mark.slow
def test_q_values_of_a_delay_and_of_a_time_limit() -> None:
    dqn = {"algorithm": "DQN", "learning_starts": 200, "train_freq": 1, "target_update_every": 200, "compile": "off"}
    dqn |= {"env_kwargs": {"actions": 2}, "buffer_size": 2000, "iteration_steps": 500, "exploration_end": 1.0}
    options = dqn | {"learning_rate": 3e-3}
    assert value(learn("ProbeDelayed-v0", 3_000, **options), 0.0, 1.0) == pytest.approx([0.8, 1.0], abs=0.05)
    # Only if the last observation before the limit is bootstrapped, and that with every length of return.
    for steps in (1, 3):
        policy = learn("ProbeEndless-v0", 6_000, return_steps=steps, **options)
        assert value(policy, 0.0) == pytest.approx([1 / (1 - 0.8)], abs=0.15)


@pytest.mark.slow
def test_both_keys_of_a_dict_are_used() -> None:
    policy = LoadedPolicy(
        learn("ProbeTwoKeys-v0", 24_000, entropy_coef=0.05, learning_rate=2e-3, hidden_sizes=[64, 64])
    )
    for left in (-1.0, 1.0):
        for right in (-1.0, 1.0):
            obs = {"left": np.float32([left]), "right": np.float32([right, right])}
            assert int(policy.act(obs)) == int(left * right > 0)


@pytest.mark.parametrize("what", ["reward", "huge reward", "obs", "final obs"])
def test_a_nan_names_env_and_step_and_leaves_the_weights(what: str) -> None:
    options = {"env": "ProbeNan-v0", "env_kwargs": {"what": what}, "num_envs": 2, "num_steps": 8, "minibatch_size": 8}
    trainer = Trainer(load_config(None, options | {"tensorboard": False, "spread_episodes": False}))
    before = trainer.algorithm.learner.state.param.clone()
    with pytest.raises(NonFiniteError, match=r"env 0 gave .*(nan|inf) at global step 10 \(step 5 of that env\)"):
        trainer.run()
    assert torch.equal(before, trainer.algorithm.learner.state.param)
    assert checkpoint.find(trainer.run_dir)  # the last good state is on disk


def test_a_nan_at_the_first_reset_is_found_before_the_run_starts(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="env 0 gave an observation 'obs' with nan"):
        train(env="ProbeNan-v0", env_kwargs={"what": "reset"}, num_steps=64)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=5),
        spaces.Box(-1, 1, (2, 3)),
        spaces.Box(-1, 1, ()),
        spaces.Box(0, 9, (2,), np.int64),
        spaces.Box(-0.1, 0.1, (2,), np.float64),
        spaces.Box(-3.4e38, 3.4e38, (2,)),
        spaces.MultiDiscrete([2, 3], start=[1, -1]),
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.MultiBinary((2, 3)),
    ],
    ids=str,
)
def test_actions_of_every_form_are_the_envs_own(space: spaces.Space) -> None:
    probes.Strict.action_space = space
    options = {"num_envs": 2, "num_steps": 16, "minibatch_size": 16, "tensorboard": False, "save_optimizer": False}
    result = train(env="ProbeStrict-v0", total_timesteps=32, vec_env_mode="sync", **options)
    policy = load_policy(result.run_dir)
    assert policy.act(np.zeros(1)) in space
    assert all(action in space for action in policy.act(np.zeros((4, 1)), deterministic=False))
