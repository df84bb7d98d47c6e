"""Runs with a muscle network: checkpoints, resume, evaluation, first lines. `test_killed_runs.py` kills one."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console

from proxima import train
from proxima.algo.regression import Tuples
from proxima.cli import main
from proxima.config import load_config
from proxima.config.env_file import MUSCLE_ENV, read_env_file
from proxima.config.muscle_settings import parse_settings, to_dict
from proxima.data.rollout import as_stored
from proxima.envs.muscle.env import MUSCLE, MuscleVecEnv
from proxima.errors import UsageError
from proxima.evaluation.episodes import evaluate
from proxima.evaluation.restored import restore_policy
from proxima.nets.muscle_net import MuscleNet
from proxima.runs import checkpoint
from proxima.training.muscle import PPOMuscle
from proxima.training.seeding import stream_seed
from proxima.training.trainer import Trainer, TrainResult
from tests.training.runs import SMALL, flags, metrics

FILE = """model: planar_legs
joints: {hip_r: {curve: hip}, hip_l: {curve: hip, phase: 0.5}}
reward: {pose: 2}
termination: {seconds: 0.5}
hidden_sizes: [8, 8]
"""
OPTIONS = SMALL | {
    "preset": "none",
    "num_envs": 2,
    "hidden_sizes": [8],
    "muscle_batch_size": 32,
    "muscle_num_epochs": 2,
    "lr_schedule": "constant",
}
SAVED = {"agent.pt", "muscle.pt", "metadata.yaml"}
FOR_RESUME = {"optimizer.pt", "muscle.opt.pt", "training_state.pt"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An env file with a small network and short episodes."""
    path = tmp_path / "legs.yaml"
    path.write_text(FILE)
    return path


def trained(file: Path, **options: Any) -> TrainResult:
    result = train(env_file=str(file), **OPTIONS | {"total_timesteps": 64} | options)
    assert result.checkpoint is not None
    return result


def names(folder: Path | None) -> set[str]:
    assert folder is not None
    return {path.name for path in folder.iterdir()}


def networks(result: TrainResult) -> list[Any]:
    return [checkpoint.read(result.checkpoint, name) for name in ("agent.pt", "muscle.pt")]


def test_a_checkpoint_has_both_networks_both_optimizers_and_the_env(file: Path) -> None:
    result = trained(file)
    assert names(result.checkpoint) == SAVED | FOR_RESUME
    metadata = checkpoint.read_metadata(result.checkpoint)
    assert metadata["name"] == "legs" and result.run_dir.parent.name == "legs"
    env = metadata["config"]["env"]
    assert env["env"] == MUSCLE_ENV and env["env_file"] == str(file)
    assert parse_settings(env["env_kwargs"]) == read_env_file(file) and env["env_kwargs"] == to_dict(
        read_env_file(file)
    )
    assert metadata["config"]["algorithm"]["algorithm"] == "PPO+muscle" and metadata["lineage"] == []
    shapes = {name: list(x.shape) for name, x in checkpoint.read(result.checkpoint, "muscle.pt").items()}
    assert shapes["layers.0.weight"] == [8, 24 + 6] and shapes["layers.2.bias"] == [18]


def test_without_optimizers_the_networks_and_the_metadata_are_left(file: Path, tmp_path: Path) -> None:
    arguments = flags(OPTIONS | {"total_timesteps": 64, "hidden_sizes": 8})
    assert main(["train", "--env_file", str(file), *arguments, "--save_optimizer", "False"]) == 0
    assert names(checkpoint.find(tmp_path / "runs" / "legs")) == SAVED


def test_metrics_of_both_learners_are_written(file: Path) -> None:
    rows = metrics(trained(file, total_timesteps=128).run_dir)
    assert [row["iteration"] for row in rows] == [1, 2]
    wanted = {"muscle_loss", "muscle_torque_error", "muscle_torque_floor", "muscle_infeasible", "muscle_improvement"}
    assert all(wanted | {"policy_loss", "value_loss"} <= row.keys() for row in rows)


def test_the_envs_act_with_the_newest_network(file: Path) -> None:
    trainer = Trainer(load_config(None, OPTIONS | {"env_file": str(file), "total_timesteps": 640}))
    env, net = trainer.source.env, trainer.algorithm.networks[MUSCLE]
    assert isinstance(env, MuscleVecEnv) and env.network is not None
    seen = []
    for _ in range(2):
        trainer.iterate()
        assert all(torch.equal(env.network.weights[name], x) for name, x in net.state_dict().items())
        seen.append(net.state_dict()["layers.0.weight"].clone())
    assert not torch.equal(*seen)
    trainer.close()


def test_a_body_that_diverges_costs_an_episode_not_the_run(file: Path) -> None:
    trainer = Trainer(load_config(None, OPTIONS | {"env_file": str(file), "total_timesteps": 640}))
    env = trainer.source.env
    assert isinstance(env, MuscleVecEnv)
    trainer.iterate()
    before = trainer.source.episodes.metrics()["episodes"]
    env.qvel[1] = float("nan")
    metrics = trainer.iterate()
    assert metrics["episodes"] > before and math.isfinite(metrics["muscle_loss"] + metrics["value_loss"])
    trainer.close()


@pytest.mark.slow
def test_the_muscle_networks_update_does_not_change_the_policys(file: Path) -> None:
    """Each learner has its own parameters, optimizer and generator."""
    one, two = trained(file), trained(file, muscle_num_epochs=3)
    (agent, muscle), (other_agent, other_muscle) = networks(one), networks(two)
    assert all(torch.equal(x, other_agent[name]) for name, x in agent.items())
    assert any(not torch.equal(x, other_muscle[name]) for name, x in muscle.items())


@pytest.mark.slow
def test_a_warm_start_learns_from_random_states_before_the_first_iteration(file: Path) -> None:
    options = {"env_file": str(file), "muscle_warm_start": 10, "muscle_learning_rate": 1e-2, "total_timesteps": 640}
    trainer = Trainer(load_config(None, OPTIONS | options))
    algorithm, env = trainer.algorithm, trainer.source.env
    assert isinstance(algorithm, PPOMuscle) and isinstance(env, MuscleVecEnv) and env.network is not None
    world = MuscleVecEnv(num_envs=64, num_threads=1, **trainer.config.env.env_kwargs)
    fresh = Tuples(*world.random_tuples(256, seed=99).values())
    before, obs = algorithm.muscle._errors(fresh), env.get_state()["world"]["obs"]
    algorithm.begin()
    assert algorithm.muscle._errors(fresh) < 0.8 * before
    assert int(algorithm.muscle.state.steps) == 10 * 2 * 2  # rounds, epochs, minibatches
    assert all(torch.equal(env.network.weights[name], x) for name, x in algorithm.muscle_net.state_dict().items())
    assert torch.equal(env.get_state()["world"]["obs"], obs)  # of its own envs
    trainer.close()


@pytest.mark.slow
def test_the_same_seed_is_the_same_run(file: Path) -> None:
    one, two, other = trained(file), trained(file), trained(file, seed=5)
    for a, b, c in zip(networks(one), networks(two), networks(other), strict=True):
        assert all(torch.equal(x, b[name]) for name, x in a.items())
        assert any(not torch.equal(x, c[name]) for name, x in a.items())


def test_a_direct_file_trains_plain_ppo(tmp_path: Path) -> None:
    (tmp_path / "direct.xml").write_text("<env><control mode='direct' torque_limit='200'/></env>")
    result = train(env_file="direct.xml", **OPTIONS | {"total_timesteps": 64})
    assert names(result.checkpoint) == (SAVED | FOR_RESUME) - {"muscle.pt", "muscle.opt.pt"}
    assert result.config.algorithm.algorithm == "PPO"


def test_an_env_without_muscles_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"PPO\+muscle needs an env file and vec_env_mode batch, not InvertedPendulum-v5"
    ):
        train(env="InvertedPendulum-v5", algorithm="PPO+muscle", **OPTIONS)
    with pytest.raises(UsageError, match="has no network 'muscle'"):
        train(env_file="torque_legs", algorithm="PPO+muscle", **OPTIONS)


# Resume --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_resume_goes_on_to_the_same_bits_and_has_a_lineage(file: Path) -> None:
    whole, first = trained(file, total_timesteps=192), trained(file, total_timesteps=64)
    file.unlink()  # the checkpoint has the settings
    second = train(resume_from=first.run_dir, total_timesteps=192)
    assert second.checkpoint is not None and whole.checkpoint is not None
    for name in SAVED | FOR_RESUME - {"training_state.pt"}:
        if name.endswith(".pt"):
            one, two = (checkpoint.read(run.checkpoint, name) for run in (whole, second))
            assert all(torch.equal(x, two[key]) for key, x in one.items()), name
    assert metrics(whole.run_dir)[1:] == metrics(second.run_dir)
    metadata = checkpoint.read_metadata(second.checkpoint)
    assert first.checkpoint is not None and metadata["lineage"] == [str(first.checkpoint.resolve())]
    assert yaml.safe_load((second.run_dir / "lineage.yaml").read_text())["lineage"] == metadata["lineage"]


@pytest.mark.parametrize("how", ["resume_from", "auto_resume"])
def test_a_resume_with_other_reward_weights_says_so(how: str, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = trained(file, auto_resume=True)
    file.write_text(FILE.replace("pose: 2", "pose: 3"))
    if how == "resume_from":
        second = train(resume_from=first.run_dir, env_file=str(file), total_timesteps=128)
    else:
        second = trained(file, auto_resume=True, total_timesteps=128)
    assert "reward.pose 2.0 -> 3.0" in caplog.text and "seconds" not in caplog.text
    assert second.global_step == 128 and [row["iteration"] for row in metrics(second.run_dir)] == [2]
    assert second.checkpoint is not None
    assert checkpoint.read_metadata(second.checkpoint)["config"]["env"]["env_kwargs"]["reward"]["pose"] == 3.0


def test_a_resume_with_another_body_is_refused(file: Path, tmp_path: Path) -> None:
    first = trained(file)
    (tmp_path / "body.xml").write_text("<mujoco/>")
    for old, new in (("planar_legs", "body.xml"), ("planar_legs", "myolegs26")):
        file.write_text(FILE.replace(old, new))
        with pytest.raises(UsageError, match=r"a resume cannot change .*model") as error:
            train(resume_from=first.run_dir, env_file=str(file), total_timesteps=128)
        assert "\n" not in str(error.value)


def test_the_refusal_names_the_difference_alone(file: Path) -> None:
    first = trained(file)
    file.write_text(FILE.replace("planar_legs", "myolegs26"))
    with pytest.raises(UsageError) as error:
        train(resume_from=first.run_dir, env_file=str(file), total_timesteps=128)
    assert "model planar_legs -> myolegs26" in str(error.value) and "action_scale" not in str(error.value)


def test_a_resume_with_another_network_is_refused(file: Path) -> None:
    first = trained(file)
    file.write_text(FILE.replace("[8, 8]", "[8, 9]"))
    with pytest.raises(UsageError, match=r"a resume cannot change .*hidden_sizes"):
        train(resume_from=first.run_dir, env_file=str(file), total_timesteps=128)


# Evaluation ----------------------------------------------------------------------------------------------------------


def by_hand(folder: Path, *, episodes: int, seed: int) -> list[float]:
    """Returns of the first episodes of as many envs, with the two networks of a checkpoint."""
    saved = restore_policy(folder)
    env = MuscleVecEnv(num_envs=episodes, num_threads=1, **saved.config.env.env_kwargs)
    net = MuscleNet(**env.network_shape(MUSCLE))
    net.load_state_dict(checkpoint.read(folder, "muscle.pt"))
    env.set_weights(MUSCLE, net.state_dict())
    total, over = torch.zeros(episodes, dtype=torch.float64), torch.zeros(episodes, dtype=torch.bool)
    obs = env.reset(seed)
    while not over.all():
        with torch.no_grad():
            step = env.step(saved.policy.act(as_stored(obs)).env_action)
        total += step.reward * ~over
        over |= step.ended
        obs = step.obs
    return total.tolist()


@pytest.mark.slow
def test_evaluation_uses_the_muscle_network_of_the_checkpoint(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = trained(file, muscle_warm_start=5)
    assert result.checkpoint is not None
    found = evaluate(result.checkpoint, episodes=3, seed=7)
    returns = [episode.return_ for episode in found.episodes]
    assert returns == pytest.approx(by_hand(result.checkpoint, episodes=3, seed=7), rel=1e-12)
    monkeypatch.setattr("proxima.evaluation.restored.Restored.hand_networks", lambda self, env: None)
    with pytest.raises(UsageError, match="the muscles have no network yet"):
        evaluate(result.checkpoint, episodes=3, seed=7)


@pytest.mark.slow
def test_evaluation_during_training_does_too_and_changes_nothing(file: Path) -> None:
    plain = trained(file, muscle_warm_start=5)
    result = trained(file, muscle_warm_start=5, eval_every=64, eval_episodes=3)
    for a, b in zip(networks(plain), networks(result), strict=True):
        assert all(torch.equal(x, b[name]) for name, x in a.items())
    seed = stream_seed(result.config.run.seed, "evaluation") % 2**31
    assert result.checkpoint is not None
    mean = sum(by_hand(result.checkpoint, episodes=3, seed=seed)) / 3
    assert metrics(result.run_dir)[-1]["eval_return"] == pytest.approx(mean, rel=1e-6)


def test_a_checkpoint_with_a_network_of_another_size_is_refused(file: Path) -> None:
    result = trained(file)
    with pytest.raises(UsageError, match="are not those of a muscle network"):
        evaluate(result.checkpoint, episodes=1, env_kwargs={"hidden_sizes": [4]})  # type: ignore[arg-type]


# First lines ---------------------------------------------------------------------------------------------------------


def test_the_first_lines_say_samples_and_updates(file: Path) -> None:
    console = Console(record=True, width=400)
    trained(file, total_timesteps=128, console=console)
    text = console.export_text()
    assert "128 steps are 2 updates of 64 samples, or 1 update of 8,192 samples" in text
    assert text.index("updates of") < text.index("parameters")


def test_ten_million_steps_are_1221_updates_of_8192(file: Path) -> None:
    config = load_config(None, {"env_file": str(file), "compile": "off", "num_threads": 1, "save_checkpoint": False})
    assert (config.run.preset, config.run.total_timesteps) == ("ppo_small_pc", 10_000_000)
    trainer = Trainer(config)
    text = trainer.algorithm.text()
    trainer.close()
    assert text.startswith("10,000,000 steps are 1,221 updates of 8,192 samples, or 306 updates of 32,768 samples")
    assert "16 workers x 512 steps collect 8,192 samples" in text
