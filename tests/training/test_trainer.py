"""The loop as a whole: files, metrics, checkpoints, determinism, resume."""

import gc
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml

from proxima import load_policy, train
from proxima.algorithms import ALGORITHMS
from proxima.config import SECTIONS, Config, all_options, all_presets, load_config
from proxima.envs.games.mario.rom import find_rom
from proxima.envs.make import list_envs
from proxima.errors import EnvFailure, UsageError
from proxima.own_parts import find_part
from proxima.runs import checkpoint
from proxima.training.trainer import Trainer

PRESETS = sorted(all_presets().keys() - {"phase2_distillation"})  # which needs a teacher
TOY_TEXT = {"toy_text": {"env": "FrozenLake-v1"}, "classic": {"env": "CartPole-v1"}}  # those without an env
NAMES = {
    *("iteration", "global_step", "wall_time", "steps_per_second", "collect_seconds", "update_seconds"),
    *("episode_return", "episode_length", "episodes", "policy_loss", "value_loss", "entropy", "approx_kl"),
    *("clip_fraction", "explained_variance", "gradient_norm", "learning_rate"),
}
SMALL = {
    "num_envs": 4,
    "num_steps": 32,
    "minibatch_size": 32,
    "update_epochs": 2,
    "tensorboard": False,
    "progress": False,
    "compile": "off",
}
TIMES = {"wall_time", "steps_per_second", "collect_seconds", "advantage_seconds", "update_seconds"}


def small(**options: Any) -> dict[str, Any]:
    return SMALL | options


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def weights(path: Path) -> dict[str, torch.Tensor]:
    return checkpoint.read(path, "agent.pt")


def equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def test_a_run_on_disk() -> None:
    result = train(env="InvertedPendulum-v5", name="pole", total_timesteps=300, checkpoint_freq=128, **small())
    assert result.run_dir.parent.name == "pole" and result.global_step == 384
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert set(rows[-1]) >= NAMES
    assert yaml.safe_load((result.run_dir / "config.yaml").read_text())["env"]["env"] == "InvertedPendulum-v5"
    folders = checkpoint.list_checkpoints(result.run_dir)
    assert [int(p.name.split("-")[-2]) for p in folders] == [1, 2, 3]
    assert {p.name for p in folders[-1].iterdir()} == {
        "agent.pt", "metadata.yaml", "optimizer.pt", "training_state.pt"
    }  # fmt: skip
    assert checkpoint.find(result.run_dir) == checkpoint.find(result.run_dir.parent) == result.checkpoint


def test_only_the_newest_checkpoints_are_kept_and_the_optimizer_can_be_left_out() -> None:
    options = small(total_timesteps=600, checkpoint_freq=1, keep_checkpoints=2, save_optimizer=False)
    result = train(env="InvertedPendulum-v5", **options)
    folders = checkpoint.list_checkpoints(result.run_dir)
    assert len(folders) == 2 and {p.name for p in folders[-1].iterdir()} == {"agent.pt", "metadata.yaml"}
    with pytest.raises(UsageError, match=r"has no training_state.pt"):
        train(resume_from=result.run_dir, total_timesteps=2000)


def test_all_checkpoints_can_be_kept() -> None:
    result = train(env="InvertedPendulum-v5", **small(total_timesteps=640, checkpoint_freq=1, keep_checkpoints="all"))
    folders = checkpoint.list_checkpoints(result.run_dir)
    assert [checkpoint.Checkpoint(folder).iteration for folder in folders] == [1, 2, 3, 4, 5]


def test_a_config_made_in_python_trains() -> None:
    config = Config()
    config.env.env, config.run.total_timesteps, config.track.tensorboard = "CartPole-v1", 1, False
    assert Trainer(config).run().global_step == config.rollout_size


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_trains_an_iteration(name: str) -> None:
    options = {"compile": "off", "tensorboard": False, "num_steps": 8, "iteration_steps": 64, "total_timesteps": 1}
    config = load_config(name, options | TOY_TEXT.get(name, {}))
    if "Quadruped" in config.env.env:  # made for a GPU
        config.env.num_envs = min(config.env.num_envs, 16)
        config.env.env_kwargs |= {"camera": {"height": 16, "width": 24}} if "camera" in config.env.env_kwargs else {}
    if "Mario" in config.env.env and find_rom() is None:
        pytest.skip("the game file of Super Mario Bros. is not on this machine")
    config.ppo.update_epochs = 1
    config.algorithm.minibatch_size = min(config.algorithm.minibatch_size, 64 if config.env.num_envs > 16 else 4)
    config.dqn.buffer_size, config.dqn.learning_starts = 256, 16
    done = Trainer(config).run()
    assert done.global_step == (64 if config.algorithm.algorithm == "DQN" else config.rollout_size)


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    runs = [train(env="Hopper-v5", total_timesteps=256, seed=seed, **small()) for seed in (5, 5, 6)]
    assert metrics(runs[0].run_dir) == metrics(runs[1].run_dir)
    assert equal(weights(runs[0].checkpoint), weights(runs[1].checkpoint))
    assert not equal(weights(runs[0].checkpoint), weights(runs[2].checkpoint))


@pytest.mark.slow
@pytest.mark.parametrize("rnn", [{}, {"rnn": "gru", "rnn_size": 8, "bptt_length": 8, "minibatch_size": 4}])
def test_all_back_ends_train_the_same_bits(rnn: dict[str, Any]) -> None:
    runs = [
        train(env="Hopper-v5", total_timesteps=256, vec_env_mode=mode, **small(**rnn))
        for mode in ("batch", "sync", "async")
    ]
    batch, *others = [weights(run.checkpoint) for run in runs]
    assert all(equal(batch, other) for other in others)


def test_load_policy_acts_as_the_policy_did() -> None:
    result = train(env="InvertedPendulum-v5", total_timesteps=256, **small())
    policy, obs = load_policy(result.run_dir), np.random.default_rng(0).normal(size=(6, 4))
    expected = result.policy.act({"obs": torch.tensor(obs, dtype=torch.float32)})[1]
    np.testing.assert_allclose(policy.act(obs), expected.numpy(), rtol=1e-5)
    np.testing.assert_allclose(policy.act(obs[2]), policy.act(obs)[2], rtol=1e-5)
    with pytest.raises(UsageError, match=r"has shape \(5,\), but the policy takes \(4,\)"):
        policy.act(np.zeros(5))


def test_a_run_whose_envs_fail_saves_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(load_config(None, small(env="InvertedPendulum-v5", total_timesteps=10_000)))
    good, calls = trainer.source.env.step, iter(range(10**6))

    def step(action: torch.Tensor) -> Any:
        if next(calls) == 70:
            raise EnvFailure("worker 0 died 5 times in a row: boom")
        return good(action)

    monkeypatch.setattr(trainer.source.env, "step", step)
    with pytest.raises(EnvFailure, match="boom"):
        trainer.run()
    (saved,) = checkpoint.list_checkpoints(trainer.run_dir)
    metadata = checkpoint.read_metadata(saved)
    assert (metadata["iteration"], metadata["global_step"]) == (2, 256)
    assert checkpoint.read(saved, "training_state.pt")["collector"]["global_step"] == 256


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        train(env="InvertedPendulum-v5", total_timesteps=128, runs_dir=str(tmp_path / "file"), **small())


INSTALLED = [
    listing.id
    for listing in list_envs()
    if listing.newest and listing.missing is None and str(gym.spec(listing.id).entry_point).startswith("gymnasium.")
]


@pytest.mark.slow
@pytest.mark.parametrize("env_id", INSTALLED)
def test_every_listed_env_trains(env_id: str) -> None:
    options = {"num_envs": 2, "num_steps": 8, "minibatch_size": 8, "update_epochs": 1, "save_checkpoint": False}
    assert train(env=env_id, total_timesteps=16, **small(**options)).global_step == 16


def test_the_host_program_keeps_its_threads_and_its_frozen_objects() -> None:
    torch.set_num_threads(2)
    options = small(env="InvertedPendulum-v5", total_timesteps=256, save_checkpoint=False)
    frozen = gc.get_freeze_count()  # conftest.py
    assert frozen
    train(**options)
    assert torch.get_num_threads() == 2 and gc.get_freeze_count() >= frozen - 1000


def test_garbage_is_frozen_during_runs_and_resumed_ones_and_not_after_them() -> None:
    frozen: list[bool] = []

    def look(trainer: Trainer, metrics: dict[str, float]) -> None:
        frozen.append(gc.get_freeze_count() > 0)

    options = small(env="InvertedPendulum-v5", total_timesteps=512, eval_every=256, eval_episodes=1)
    gc.unfreeze()
    try:
        run = train(**options, on_iteration=look)
        assert gc.get_freeze_count() == 0 and len(frozen) > 1
        train(resume_from=run.checkpoint, total_timesteps=768, on_iteration=look)
        assert gc.get_freeze_count() == 0
    finally:
        gc.collect()
        gc.freeze()
    assert len(frozen) == 4 + 2 and all(frozen)


def test_a_float64_default_is_left_to_its_owner() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        result = train(**SMALL, env="CartPole-v1", total_timesteps=256)
        assert torch.get_default_dtype() is torch.float64
        policy = load_policy(result.run_dir)
        assert policy.act(np.zeros((3, 4), np.float32)).shape == (3,)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(p.dtype is torch.float32 for p in result.policy.parameters())


def test_leaving_the_loop_saves_what_has_been_learned(tmp_path: Path) -> None:
    trainer = Trainer(load_config(None, SMALL | {"env": "CartPole-v1", "total_timesteps": 12_800}))
    seen = []
    for metrics in trainer.iterations():
        seen.append(metrics["iteration"])
        if len(seen) == 3:
            break
    del metrics
    result = trainer.result()
    assert seen == [1, 2, 3] and result.checkpoint is not None
    assert checkpoint.read_metadata(result.checkpoint)["iteration"] == 3
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert train(resume_from=result.run_dir, total_timesteps=512).global_step == 512


def test_a_loop_of_ones_own_trains_the_same_bits_as_train() -> None:
    options = SMALL | {"env": "CartPole-v1", "total_timesteps": 512}
    trainer = Trainer(load_config(None, options))
    for _ in trainer.iterations():
        torch.randn(3)  # the caller's own numbers are not the run's
    expected = train(**options).policy.state_dict()
    assert all(torch.equal(x, expected[name]) for name, x in trainer.result().policy.state_dict().items())


def test_every_algorithm_of_the_table_can_be_chosen_and_has_its_section() -> None:
    assert set(all_options()["algorithm"].choices) == set(ALGORITHMS)
    for entry in ALGORITHMS.values():
        assert entry.section in SECTIONS
        assert find_part(entry.algorithm).__name__ and find_part(entry.policy).__name__
