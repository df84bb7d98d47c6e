"""A run that starts with another's weights: what fits, what does not, and that it is a new run."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

from proxima import Trainer, load_config, train
from proxima.errors import UsageError
from proxima.runs import checkpoint
from proxima.training.fine_tuning import by_observation_key
from tests.training.runs import SMALL, assert_same_end, killed_run, metrics

HOPPER = SMALL | {"env": "Hopper-v5", "total_timesteps": 512}
CARTPOLE = SMALL | {"env": "CartPole-v1", "total_timesteps": 512}
DQN = CARTPOLE | {"algorithm": "DQN", "learning_starts": 64, "iteration_steps": 128, "buffer_size": 1000}


def weights(path: Path | None) -> dict[str, torch.Tensor]:
    assert path is not None
    return checkpoint.read(path, "agent.pt")


def begun(**options: Any) -> Trainer:
    """A run before its first iteration."""
    trainer = Trainer(load_config(None, options))
    trainer._fine_tune()
    return trainer


def test_weights_and_normalisers_are_the_others_and_the_rest_is_new() -> None:
    source = train(**HOPPER)
    trainer = begun(**HOPPER, init_from=str(source.run_dir), seed=9)
    own, theirs = trainer.policy.state_dict(), weights(source.checkpoint)
    assert all(torch.equal(x, theirs[name]) for name, x in own.items() if name != "return_scale")
    saved = checkpoint.read(source.checkpoint, "training_state.pt")["learner"]["reward_normalizer"]
    moments = trainer.algorithm.learner.reward_normalizer.moments  # type: ignore[attr-defined]
    assert moments.count == saved["moments.count"] > 0 and moments.var == saved["moments.var"]
    assert trainer.iteration == trainer.source.global_step == 0
    assert int(trainer.algorithm.learner.state.steps) == 0 and not trainer.algorithm.learner.state.mean.any()
    (notice,) = trainer.notices[-1:]
    assert notice.endswith("7 of 7 layers of the policy fit.")
    trainer.close()


def test_the_metadata_says_where_a_run_came_from_and_a_resume_keeps_it_without_reading_it() -> None:
    source = train(**HOPPER)
    tuned = train(**HOPPER, init_from=str(source.run_dir))
    found = checkpoint.read_metadata(tuned.checkpoint)
    assert found["init_from"] == str(source.checkpoint.resolve())
    assert found["config"]["run"]["init_from"] == str(source.run_dir) and found["lineage"] == []
    for path in sorted(source.run_dir.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    resumed = train(resume_from=tuned.run_dir, total_timesteps=640)
    assert checkpoint.read_metadata(resumed.checkpoint)["init_from"] == found["init_from"]


@pytest.mark.slow
def test_a_fine_tuned_run_resumes_to_the_bit() -> None:
    source = train(**HOPPER)
    options = HOPPER | {"init_from": str(source.run_dir), "checkpoint_freq": 1, "keep_checkpoints": "all"}
    whole = train(**options)
    second = checkpoint.list_checkpoints(whole.run_dir)[1]
    resumed = train(resume_from=second)
    assert_same_end(whole.checkpoint, resumed.checkpoint)
    assert metrics(resumed.run_dir) == metrics(whole.run_dir)[2:]


@pytest.mark.slow
@pytest.mark.parametrize("options", [HOPPER, DQN | {"save_replay": True}], ids=["PPO", "DQN"])
def test_a_fine_tuned_run_that_is_killed_resumes_to_the_bit(options: dict[str, Any]) -> None:
    source = train(**options)
    options = options | {"init_from": source.run_dir.resolve(), "total_timesteps": 128 * 20, "seed": 3}
    whole = train(name="whole", **options)
    cut = killed_run(**options)
    assert checkpoint.Checkpoint(checkpoint.find(cut)).iteration < 20
    assert_same_end(whole.checkpoint, train(resume_from=cut).checkpoint)


def test_other_actions_start_fresh_and_are_listed() -> None:
    source = train(**HOPPER)
    trainer = begun(**HOPPER | {"env": "Walker2d-v5"}, init_from=str(source.checkpoint))
    notice = trainer.notices[-1]
    assert "action_head.linear.weight [6, 64] (there [3, 64])" in notice
    assert "actor_trunk.mlp" in notice and "statistics of obs" in notice
    own, theirs = trainer.policy.state_dict(), weights(source.checkpoint)
    assert torch.equal(own["value_head.weight"], theirs["value_head.weight"])
    assert not trainer.policy.normalizer.moments["key_0"].count
    trainer.close()


def test_action_bounds_are_those_of_the_new_env() -> None:
    source = train(**HOPPER)
    halved = "tests/HalvedHopper-v0"
    if halved not in gym.registry:
        gym.register(halved, entry_point=lambda: gym.wrappers.RescaleAction(gym.make("Hopper-v5"), -0.5, 0.5))
    trainer = begun(**HOPPER | {"env": halved}, init_from=str(source.run_dir))
    assert trainer.policy.action_head.bounds[1].tolist() == [0.5] * 3  # type: ignore[union-attr]
    assert trainer.notices[-1].endswith("7 of 7 layers of the policy fit.")
    trainer.close()


def test_dqn_starts_with_online_and_target_network() -> None:
    source = train(**DQN)
    trainer = begun(**DQN, init_from=str(source.run_dir), seed=9)
    learner = trainer.algorithm.learner
    assert torch.equal(learner.target, learner.state.param)  # type: ignore[attr-defined]
    theirs = weights(source.checkpoint)
    assert all(torch.equal(x, theirs[name]) for name, x in trainer.policy.named_parameters())
    assert trainer.policy.epsilon == 1.0  # type: ignore[comparison-overlap]
    trainer.close()


def test_a_fixed_std_is_that_of_the_options() -> None:
    source = train(**HOPPER)
    trainer = begun(**HOPPER, init_from=str(source.run_dir), std_mode="fixed", initial_std=0.25)
    assert trainer.policy.metrics()["action_std"] == pytest.approx(0.25)
    trainer.close()


def test_a_checkpoint_without_a_training_state_leaves_the_reward_statistics_fresh() -> None:
    source = train(**HOPPER, save_optimizer=False)
    trainer = begun(**HOPPER, init_from=str(source.run_dir))
    assert trainer.notices[-1].endswith("fresh: statistics of the reward.")
    trainer.close()


def test_encoders_are_found_by_their_observation_key() -> None:
    nets = {"rnn": "gru", "rnn_size": 8, "bptt_length": 8, "minibatch_size": 4, "encoders": "{obs: {widths: [8]}}"}
    trainer = Trainer(load_config(None, CARTPOLE | nets))
    names = by_observation_key(trainer.policy)
    assert "actor_trunk.encoders.obs.1.0.weight" in names and len(names) == len(list(trainer.policy.parameters()))
    trainer.close()


def test_nothing_that_fits_is_an_error() -> None:
    source = train(**HOPPER)
    with pytest.raises(UsageError, match=r"none of its weights fit this run: it was trained on Hopper-v5 with PPO"):
        train(**CARTPOLE, hidden_sizes=[7], init_from=str(source.run_dir))
    with pytest.raises(UsageError, match="nowhere does not exist"):
        train(**CARTPOLE, init_from="nowhere")
