"""Learning from stacked frames: each is stored once, and nothing else changes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from proxima import train
from proxima.config import load_config
from proxima.data.rollout import Rollout
from proxima.errors import UsageError
from proxima.evaluation.episodes import evaluate
from proxima.nets import spec
from proxima.runs import checkpoint
from proxima.training import setup
from proxima.training.ppo import PPO
from proxima.training.trainer import Trainer

CATCH: dict[str, Any] = {
    "env": "proxima/PixelCatch-v0",
    "env_kwargs": {"image_size": 16, "drops": 1},
    "cnn_features": 32,
    "hidden_sizes": [],
    "num_envs": 8,
    "num_threads": 1,
    "vec_env_mode": "sync",
    "compile": "off",
    "tensorboard": False,
    "progress": False,
}


def weights(run: Any) -> dict[str, torch.Tensor]:
    return checkpoint.read(run.checkpoint, "agent.pt")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"num_steps": 20, "minibatch_size": 32, "recompute_advantage": True},
        {"num_steps": 20, "minibatch_size": 4, "rnn": "gru", "rnn_size": 8, "bptt_length": 6},
        {"algorithm": "DQN", "learning_starts": 50, "buffer_size": 200, "iteration_steps": 160, "return_steps": 2},
        {"num_steps": 20, "minibatch_size": 32, "action_hold_seconds": 0.2},
        {
            "algorithm": "DQN",
            "learning_starts": 50,
            "buffer_size": 200,
            "iteration_steps": 80,
            "action_hold_seconds": 0.2,
        },
    ],
    ids=["ppo", "ppo recurrent", "dqn", "ppo, held", "dqn, held"],
)
def test_frames_stored_once_train_the_same_bits_as_whole_stacks(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Episodes end by the game and by the limit, within a rollout and at its end.
    settings = CATCH | options | {"total_timesteps": 640, "max_episode_steps": 9, "update_epochs": 2}
    once = train(**settings, name="once")
    whole_obs = spec._obs_spec

    def without_frames(box: Any) -> spec.ObsSpec:
        return spec.ObsSpec(**(vars(whole_obs(box)) | {"frames": 1}))

    monkeypatch.setattr(spec, "_obs_spec", without_frames)
    whole = train(**settings, name="whole")
    one, two = weights(once), weights(whole)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_the_first_ratio_is_exactly_one_on_stacks() -> None:
    trainer = Trainer(load_config(None, CATCH | {"num_steps": 16, "minibatch_size": 128, "update_epochs": 1}))
    metrics = trainer.iterate()
    trainer.close()
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-12) and metrics["clip_fraction"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["off", "on"])
def test_values_stored_while_acting_are_what_the_learner_would_find(compiled: str) -> None:
    options: dict[str, Any] = {"num_steps": 24, "minibatch_size": 96, "max_episode_steps": 9, "compile": compiled}
    options["normalize_reward"] = False  # it would see the rewards twice
    trainer = Trainer(load_config(None, CATCH | options))
    algorithm = trainer.algorithm
    assert isinstance(algorithm, PPO)
    algorithm.learner.epochs.compiled = False  # acting alone is compiled
    for _ in range(2):  # with weights that have changed once
        rollout = algorithm.source.collect()
        stored = algorithm.ppo.prepare(rollout)
        kept, rollout.log_prob = rollout.log_prob, None
        found = algorithm.ppo.prepare(rollout)
        rollout.log_prob = kept
        assert kept is not None and float(kept.abs().min()) > 0.0 and float(stored.rows.old_value.std()) > 0.0
        for name in ("old_log_prob", "old_value", "advantage", "return_"):
            torch.testing.assert_close(getattr(stored.rows, name), getattr(found.rows, name), rtol=1e-4, atol=1e-5)
        algorithm.ppo.update(stored)
    trainer.close()


@pytest.mark.parametrize(
    ("options", "stores"),
    [
        ({}, True),
        ({"share_trunk": "off"}, False),
        ({"rnn": "gru", "rnn_size": 8}, False),
        ({"env": "CartPole-v1", "env_kwargs": {}}, False),
    ],
)
def test_values_are_stored_while_acting_by_a_shared_trunk_of_images(options: dict[str, Any], stores: bool) -> None:
    trainer = Trainer(load_config(None, CATCH | {"num_steps": 16, "minibatch_size": 8} | options))
    trainer.close()
    assert (trainer.source.rollout.log_prob is not None) == stores


def test_a_rollout_of_eight_envs_and_1024_steps_keeps_58_megabytes_of_frames() -> None:
    stack = torch.zeros(8, 4, 84, 84, dtype=torch.uint8)
    rollout = Rollout(
        num_steps=1024,
        num_envs=8,
        obs={"obs": stack},
        action=torch.zeros(8),
        device=torch.device("cpu"),
        stacks={"obs": 4},
    )
    stored = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in vars(rollout)["frames"].values()}
    assert sum(stored.values()) == (1024 + 4) * 8 * 84 * 84
    assert rollout.obs["obs"].untyped_storage().data_ptr() in stored


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "DQN", "learning_rate": 1e-3, "minibatch_size": 64, "buffer_size": 20_000, "return_steps": 3}
        | {"learning_starts": 500, "target_update_every": 500, "exploration_fraction": 0.4, "max_grad_norm": 10.0}
        | {"lr_schedule": "constant"},
        {"num_envs": 16, "num_steps": 32, "minibatch_size": 128, "update_epochs": 4, "learning_rate": 2e-3}
        | {"lr_schedule": "linear", "normalize_reward": False, "clip_range": 0.2},
    ],
    ids=["dqn", "ppo"],
)
def test_the_ball_is_caught(options: dict[str, Any], tmp_path: Path) -> None:
    steps = 10_000 if "algorithm" in options else 30_000
    run = train(**(CATCH | {"gamma": 0.97, "total_timesteps": steps} | options))
    found = evaluate(run.run_dir, episodes=64, seed=1)
    assert found.returns.mean > 0.3, "a random policy gets -0.4"  # of at most 1


def test_a_replay_that_begins_in_mid_episode_holds_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    options = CATCH | {"algorithm": "DQN", "learning_starts": 5000, "buffer_size": 6000, "iteration_steps": 80}
    run = train(**options, total_timesteps=80, name="first")
    trainer = Trainer(load_config(None, options | {"total_timesteps": 160}))
    trainer.restore(run.checkpoint)
    assert any("its replay was not saved" in notice for notice in trainer.notices)
    seen: list[torch.Tensor] = []
    act = trainer.policy.act

    def watched(obs: dict[str, torch.Tensor], *rest: Any, **options: Any) -> Any:
        seen.append(obs["obs"].clone())
        return act(obs, *rest, **options)

    monkeypatch.setattr(trainer.policy, "act", watched)
    trainer.iterate()
    trainer.close()
    replay = trainer.algorithm.replay
    stored = replay.gather(torch.arange(replay.size)).obs["obs"]
    assert torch.equal(stored, torch.cat(seen)[: len(stored)])


def test_a_longer_resume_says_that_exploration_goes_back() -> None:
    options = CATCH | {"algorithm": "DQN", "learning_starts": 50, "buffer_size": 200, "iteration_steps": 80}
    run = train(**options, total_timesteps=160)
    trainer = Trainer(load_config(None, options | {"total_timesteps": 16_000}))
    trainer.restore(run.checkpoint)
    trainer.close()
    assert any("random actions goes from" in notice for notice in trainer.notices)


@pytest.mark.parametrize(
    ("env", "has_bf16", "expected"), [("images", True, "bf16"), ("images", False, "fp32"), ("vectors", True, "fp32")]
)
def test_precision_auto_is_bf16_for_images_where_the_hardware_has_it(
    env: str, has_bf16: bool, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "_has_bf16", lambda device: has_bf16)
    options = CATCH if env == "images" else {**CATCH, "env": "CartPole-v1", "env_kwargs": {}}
    options = {**options, "num_steps": 8, "total_timesteps": 64, "runs_dir": str(tmp_path), "precision": "auto"}
    run = train(**options)
    assert load_config(run.run_dir / "config.yaml", {}).optimizer.precision == expected


def test_a_precision_that_the_machine_lacks_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "_has_bf16", lambda device: False)
    with pytest.raises(UsageError, match="precision is bf16, but this cpu has no bf16 arithmetic: use precision fp32"):
        train(**CATCH, runs_dir=str(tmp_path), precision="bf16")
