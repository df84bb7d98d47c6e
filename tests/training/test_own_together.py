"""Parts of the user's own together: masks, networks, losses, wrappers, vector envs, fine-tuning and the loop."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from proxima import Trainer, evaluate, load_config, record, train
from proxima.algo.losses import weighted_mean
from proxima.errors import UsageError
from proxima.runs import checkpoint
from tests.envs.vector_envs import Counting
from tests.evaluation.test_masked_policies import Shown
from tests.masked_envs import ENV, Maze
from tests.nets import own_nets
from tests.training.runs import SMALL, assert_same_end, metrics

RECURRENT = {"rnn": "gru", "rnn_size": 8, "hidden_sizes": [8], "bptt_length": 8, "minibatch_size": 4}
DQN = {"algorithm": "DQN", "learning_starts": 64, "buffer_size": 1000, "iteration_steps": 128, "hidden_sizes": [16]}
ENCODER = {"obs": {"network": own_nets.Net, "out": 6}}
MASKED = SMALL | {"env": ENV, "env_kwargs": {"way": "info", "truncates": True}, "total_timesteps": 256}


@pytest.mark.parametrize(
    "options",
    [
        {"policy": own_nets.Shared, "env_kwargs": {"way": "method", "kind": "multi_discrete"}},
        {"policy": own_nets.WithState, **RECURRENT},
        {"policy": own_nets.Duelling, **DQN},
        {"encoders": ENCODER, "loss": own_nets.growing},
        {"encoders": ENCODER, "loss": own_nets.growing, **DQN},
    ],
    ids=["policy", "recurrent policy", "dqn", "encoder and loss", "encoder and loss, dqn"],
)
def test_own_networks_take_no_invalid_action(options: dict[str, Any]) -> None:
    Maze.invalid_actions = 0
    done = train(**MASKED | options)
    evaluate(done.run_dir, episodes=2)
    assert Maze.invalid_actions == 0
    assert "loss" not in options or metrics(done.run_dir)[-1]["extra_loss"] > 0


def test_a_policy_that_ignores_the_mask_is_refused_before_the_run_starts() -> None:
    with pytest.raises(UsageError, match="takes invalid actions: give its head the mask"):
        train(**MASKED, policy=own_nets.WithoutMasks)


def weighted_value(minibatch: Any, outputs: Any) -> dict[str, Tensor]:
    size = weighted_mean(outputs.value.square(), minibatch.weight)
    return {"loss": size, "share": torch.ones(()) if minibatch.weight is None else minibatch.weight.mean()}


def test_a_weighted_loss_does_not_see_skipped_rows() -> None:
    """16 steps of 3 + 1 and of 4 + 1: 7 of 32 rows only start an episode."""
    options = SMALL | {"num_envs": 2, "num_steps": 16, "update_epochs": 1, "normalize_obs": False}
    trainer = Trainer(load_config(None, options | {"env": Counting(2, mode="NEXT_STEP"), "loss": weighted_value}))
    learner: Any = trainer.algorithm.learner
    rollout = trainer.source.collect()
    minibatch = learner.gather(learner.prepare(rollout).rows, torch.arange(32))
    distribution, value = trainer.policy(minibatch.obs)
    added, (_, share) = learner.extra(minibatch, distribution, value)
    assert share == pytest.approx(25 / 32)
    assert rollout.skipped is not None
    torch.testing.assert_close(added, value[~rollout.skipped.flatten()].square().mean())
    trainer.close()


# Wrappers, masks, evaluation and videos ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("way", ["info", "method", "observation"])
def test_a_masked_env_behind_wrappers_is_evaluated_and_recorded_with_its_mask(way: str) -> None:
    timed = (gym.wrappers.TimeAwareObservation, {"flatten": way != "observation"})
    wrappers = [timed, *([gym.wrappers.FlattenObservation] if way != "observation" else [])]
    Maze.invalid_actions = 0
    options = {"env": Shown, "env_kwargs": {"way": way}, "wrappers": wrappers, "eval_every": 256, "eval_episodes": 2}
    done = train(**MASKED | options, record_every=256, video_length=5, max_episode_steps=20)
    assert "action_mask" in done.policy.spec.obs
    assert sum(np.prod(o.shape) for key, o in done.policy.spec.obs.items() if key != "action_mask") == 4
    assert list(done.run_dir.rglob("*.mp4"))
    evaluate(done.run_dir, episodes=2, deterministic=False)
    record(done.run_dir, length=5)
    assert Maze.invalid_actions == 0


# Fine-tuning and the loop --------------------------------------------------------------------------------------------


def begun(**options: Any) -> Trainer:
    trainer = Trainer(load_config(None, options))
    trainer._fine_tune()
    return trainer


@pytest.mark.parametrize(
    "parts",
    [{"encoders": ENCODER}, {"policy": own_nets.Shared}, {"policy": own_nets.Duelling, **DQN}],
    ids=["encoder", "policy", "dqn"],
)
def test_own_networks_are_fine_tuned_also_on_a_masked_env(parts: dict[str, Any]) -> None:
    source = train(**MASKED | {"env_kwargs": {"way": "none", "all_valid": True}} | parts)
    tuned = begun(**MASKED | parts, init_from=str(source.run_dir), seed=5)
    found, expected = tuned.policy.state_dict(), source.policy.state_dict()
    assert all(
        torch.equal(found[name], x)
        for name, x in expected.items()
        if name not in ("return_scale", "action_head.epsilon")
    )
    assert tuned.notices[-1].endswith("layers of the policy fit.")
    tuned.close()


def test_another_policy_class_starts_with_what_fits() -> None:
    source = train(**MASKED, policy=own_nets.Shared)
    tuned = begun(**MASKED, policy=own_nets.Deeper, init_from=str(source.run_dir))
    assert "3 of 4 layers of the policy fit; fresh: second.weight [8, 8] (not there)" in tuned.notices[-1]
    assert torch.equal(tuned.policy.body.weight, source.policy.body.weight)  # type: ignore[arg-type, union-attr]
    tuned.close()
    with pytest.raises(UsageError, match=r"none of its weights fit this run: .* with PPO and policy_class .*:Shared"):
        begun(**MASKED, hidden_sizes=[7], init_from=str(source.run_dir))


def test_a_learning_rate_set_in_the_loop_of_an_own_algorithm_survives_a_resume() -> None:
    def slower(trainer: Trainer, row: dict[str, float]) -> bool | None:
        assert row["twice"] == 2.0 * trainer.source.global_step
        if row["iteration"] == 1:
            trainer.learning_rate = 1e-4
        return None

    options = SMALL | {"env": "CartPole-v1", "algorithm": own_nets.CountingPPO, "checkpoint_freq": 1}
    whole = train(**options, total_timesteps=384, keep_checkpoints="all", on_iteration=slower)
    assert [row["learning_rate"] for row in metrics(whole.run_dir)][1:] == pytest.approx([1e-4, 1e-4])
    second = checkpoint.list_checkpoints(whole.run_dir)[1]
    assert_same_end(whole.checkpoint, train(resume_from=second, on_iteration=slower).checkpoint)
