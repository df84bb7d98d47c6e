"""What a resume goes on with, what it may change, and what it says."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from proxima import train
from proxima.config import load_config
from proxima.errors import ProximaError, UsageError
from proxima.runs import checkpoint
from proxima.runs.files import FORMAT_VERSION
from proxima.training.resume import resumed_config
from proxima.training.trainer import Trainer
from tests import probes
from tests.envs import toy_envs  # noqa: F401 - registers them
from tests.resealed import reseal, tiny
from tests.training.runs import FILES, SMALL, TIMES, metrics

METADATA = {"config": {}, "spec": {}, "iteration": 0, "global_step": 0, "lineage": []}


@pytest.fixture(autouse=True)
def probe_envs() -> None:
    probes.register()


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "told"), [("linear", True), ("cosine", True), ("constant", False)])
def test_a_longer_resume_says_that_the_learning_rate_goes_back(schedule: str, told: bool) -> None:
    options = SMALL | {"env": "InvertedPendulum-v5", "learning_rate": 1e-3, "lr_schedule": schedule}
    run = train(**options, total_timesteps=512)
    notices = {}
    for total, rate in ((1024, 1e-3), (600, 1e-3), (1024, 5e-4)):
        changed = {"total_timesteps": total, "learning_rate": rate}
        trainer = Trainer(load_config(None, options | changed))
        trainer.restore(run.checkpoint)
        trainer.close()
        notices[total, rate] = [notice for notice in trainer.notices if "learning rate goes" in notice]
    assert bool(notices[1024, 1e-3]) == told
    if schedule == "linear":  # 0.25e-3 in the last of four iterations, half of the new run is over
        (notice,) = notices[1024, 1e-3]
        assert "from 0.00025 to 0.0005" in notice and "learning_rate 0.0005 " in notice
        assert not notices[600, 1e-3] and not notices[1024, 5e-4]


@pytest.mark.parametrize("mode", ["learned", "state"])
def test_a_longer_resume_says_that_the_bound_of_the_std_goes_back(mode: str) -> None:
    options = SMALL | {"env": "InvertedPendulum-v5", "min_std": [0.6, 0.1], "std_mode": mode, "lr_schedule": "constant"}
    run = train(**options, total_timesteps=1024)  # the last of eight iterations begins at 7/8 of the run
    notices = {}
    for total in (1152, 1200, 2048):
        trainer = Trainer(load_config(None, options | {"total_timesteps": total}))
        trainer.restore(run.checkpoint)
        trainer.close()
        notices[total] = [notice for notice in trainer.notices if "std goes" in notice]
    assert not notices[1152]
    assert "from 0.412 back to 0.467:" in notices[1200][0] and "from 0.412 back to 0.6:" in notices[2048][0]


@pytest.mark.slow
def test_a_worker_that_dies_between_rollouts_costs_an_episode_not_the_run(caplog: pytest.LogCaptureFixture) -> None:
    options = SMALL | {"env": "CartPole-v1", "vec_env_mode": "async", "num_workers": 2, "total_timesteps": 512}
    trainer = Trainer(load_config(None, options))
    good, calls = trainer.algorithm.learner.update, iter(range(100))

    def update(*args: Any) -> Any:
        if next(calls) == 1:
            os.kill(trainer.source.env._group.workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
        return good(*args)

    trainer.algorithm.learner.update = update  # type: ignore[method-assign]
    result = trainer.run()
    assert result.global_step == 512 and metrics(result.run_dir)[-1]["worker_restarts"] == 1
    assert "was killed by SIGKILL" in caplog.text


@pytest.mark.slow
def test_a_changed_time_limit_is_followed_by_every_back_end() -> None:
    for mode in ("batch", "sync"):
        options = SMALL | {"env": "HalfCheetah-v5", "vec_env_mode": mode, "spread_episodes": False}
        first = train(total_timesteps=128 * 4, **options)
        second = train(resume_from=first.run_dir, total_timesteps=128 * 12, max_episode_steps=140)
        rows = metrics(second.run_dir)
        assert rows[-1]["episodes"] > 0 and rows[-1]["episode_length_max"] == 140


def test_a_changed_learning_rate_is_followed_by_the_adaptive_schedule() -> None:
    first = train(env="InvertedPendulum-v5", total_timesteps=128, **SMALL | {"lr_schedule": "adaptive"})
    second = train(resume_from=first.run_dir, total_timesteps=256, learning_rate=1e-4, desired_kl=1e-9)
    assert metrics(second.run_dir)[0]["learning_rate"] < 1e-4


def test_a_cut_or_edited_metadata_is_damage() -> None:
    result = train(env="InvertedPendulum-v5", total_timesteps=256, checkpoint_freq=128, **SMALL)
    older, newest = checkpoint.list_checkpoints(result.run_dir)
    text = (newest / "metadata.yaml").read_text()
    for broken in (
        text[:900],
        text.replace("gamma: 0.99", "gamma: 0.5"),
        f"format_version: {FORMAT_VERSION}\n",
    ):
        (newest / "metadata.yaml").write_text(broken)
        assert checkpoint.find(result.run_dir) == older
        with pytest.raises(UsageError, match=r"damaged|incomplete|not the metadata"):
            train(resume_from=newest, total_timesteps=512)


def test_a_foreign_state_is_refused_in_one_line() -> None:
    first = train(env="InvertedPendulum-v5", total_timesteps=128, **SMALL)
    other = train(env="InvertedDoublePendulum-v5", total_timesteps=128, **SMALL)
    boundary = {name: checkpoint.read(other.checkpoint, name) for name in FILES}
    metadata = {key: checkpoint.read_metadata(first.checkpoint)[key] for key in METADATA}
    mixed = checkpoint.save(first.run_dir, name="mixed", iteration=9, files=boundary, metadata=metadata)
    with pytest.raises(UsageError, match=rf"cannot be restored \(ValueError: .*\): use {first.checkpoint}"):
        train(resume_from=mixed, total_timesteps=512)


def test_new_episodes_of_inexact_resumes_differ() -> None:
    first = train(env="BipedalWalker-v3", total_timesteps=128, **SMALL)
    trainer = Trainer(load_config(None, SMALL | {"env": "BipedalWalker-v3", "total_timesteps": 999}))
    start_of_the_run = trainer.source.get_state()["collector"]["obs"]["obs"]
    trainer.restore(checkpoint.find(first.run_dir))
    assert not torch.equal(start_of_the_run, trainer.source.get_state()["collector"]["obs"]["obs"])


def test_lineage_leads_to_the_first_run() -> None:
    first = train(env="InvertedPendulum-v5", total_timesteps=128, **SMALL)
    second = train(resume_from=first.run_dir, total_timesteps=256)
    third = train(resume_from=second.run_dir, total_timesteps=384)
    metadata = checkpoint.read_metadata(third.checkpoint)
    assert metadata["lineage"] == [str(first.checkpoint.resolve()), str(second.checkpoint.resolve())]
    assert metadata["resumed_from"] == str(second.checkpoint.resolve())
    assert yaml.safe_load((third.run_dir / "lineage.yaml").read_text())["lineage"] == metadata["lineage"]
    assert len({first.run_dir, second.run_dir, third.run_dir}) == 3


def test_changed_options_are_told_and_impossible_ones_refused(caplog: pytest.LogCaptureFixture) -> None:
    result = train(env="InvertedPendulum-v5", total_timesteps=128, **SMALL)
    train(resume_from=result.run_dir, total_timesteps=256, learning_rate=1e-3, update_epochs=1)
    assert "update_epochs 2 -> 1, learning_rate 0.0003 -> 0.001" in caplog.text
    with pytest.raises(UsageError, match=r"cannot change num_envs 4 -> 8, hidden_sizes \[64, 64\] -> \[8\]"):
        train(resume_from=result.run_dir, total_timesteps=512, num_envs=8, hidden_sizes=[8])
    with pytest.raises(UsageError, match="raise --total-timesteps"):
        train(resume_from=result.run_dir)


def test_a_resume_takes_a_config_file(tmp_path: Path) -> None:
    result = train(env="InvertedPendulum-v5", total_timesteps=128, **SMALL)
    (tmp_path / "more.yaml").write_text("run: {total_timesteps: 256}\nppo: {clip_range: 0.1}\n")
    resumed = train(tmp_path / "more.yaml", resume_from=result.run_dir)
    assert resumed.global_step == 256


def test_auto_resume_starts_goes_on_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    options = SMALL | {"env": "InvertedPendulum-v5", "name": "job", "auto_resume": True}
    first = train(total_timesteps=256, **options)
    second = train(total_timesteps=512, **options)
    assert [row["iteration"] for row in metrics(second.run_dir)] == [3, 4]
    third = train(total_timesteps=512, **options)
    assert third.run_dir == second.run_dir and "nothing to do" in caplog.text
    assert first.run_dir != second.run_dir


@pytest.mark.slow
def test_an_inexact_env_is_named_at_the_start_and_at_the_resume(caplog: pytest.LogCaptureFixture) -> None:
    result = train(env="BipedalWalker-v3", total_timesteps=128, **SMALL)
    assert "will start new episodes, and so not be exact: BipedalWalker-v3: its Box2D world" in caplog.text
    caplog.clear()
    train(resume_from=result.run_dir, total_timesteps=256)
    assert "This resume is not exact" in caplog.text


def test_a_damaged_newest_checkpoint_is_passed_over_and_named() -> None:
    result = train(env="InvertedPendulum-v5", total_timesteps=256, checkpoint_freq=128, **SMALL)
    older, newest = checkpoint.list_checkpoints(result.run_dir)
    path = newest / "optimizer.pt"
    path.write_bytes(path.read_bytes()[:-100])
    assert checkpoint.find(result.run_dir) == older
    with pytest.raises(UsageError, match=rf"{path} is damaged .*: use {older}\."):
        train(resume_from=newest, total_timesteps=512)
    (newest / "agent.pt").unlink()
    with pytest.raises(UsageError, match=rf"agent.pt is missing: use {older}\."):
        checkpoint.read(newest, "agent.pt")


def test_the_best_checkpoint_outlives_the_newest(tmp_path: Path) -> None:
    for iteration, value in enumerate([1.0, 9.0, 2.0, float("nan"), 3.0, 4.0]):
        metadata = METADATA | {"episode_return": value}
        checkpoint.save(tmp_path, name="run", iteration=iteration, files={}, metadata=metadata)
        checkpoint.prune(tmp_path, keep=2)
    assert [int(p.name.split("-")[1]) for p in checkpoint.list_checkpoints(tmp_path)] == [1, 4, 5]


@pytest.mark.slow
def test_a_disk_that_fails_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ProximaError, match="trained to the end, but the end could not be saved"):
        train(env="InvertedPendulum-v5", total_timesteps=256, checkpoint_freq=128, **SMALL)
    assert "No checkpoint of iteration 1" in caplog.text and "No space left on device" in caplog.text
    (run_dir,) = Path("runs/InvertedPendulum-v5").iterdir()
    assert not list(run_dir.glob(".*")) and len(metrics(run_dir)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("what", ["iterator", "object"])
def test_an_env_that_becomes_impossible_to_capture_is_told_and_trained_on(
    what: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = SMALL | {"env": "tests.envs.late_env:Late-v0", "env_kwargs": {"what": what}, "vec_env_mode": mode}
    first = train(total_timesteps=128 * 12, name="late", **options)
    resumed = train(resume_from=first.run_dir, total_timesteps=128 * 14)
    assert resumed.global_step == 128 * 14
    assert "can no longer be saved" in caplog.text or "cannot be restored" in caplog.text
    assert "This resume is not exact" in caplog.text


@pytest.mark.slow
def test_windows_of_the_envs_own_numbers_go_on() -> None:
    options = SMALL | {"env": "toy/Scorer-v0", "env_kwargs": {"success": True}, "total_timesteps": 512}
    options |= {"lr_schedule": "constant", "eval_every": 256, "eval_episodes": 2}
    whole = train(**options, name="whole")
    half = train(**(options | {"total_timesteps": 256}), name="half")
    rest = train(resume_from=half.run_dir, total_timesteps=512)
    expected, found = metrics(whole.run_dir)[2:], metrics(rest.run_dir)
    assert [set(row) for row in found] == [set(row) for row in expected]
    # The toy counts episodes over the life of an env, and each run makes its own envs to evaluate on.
    same = {name for name in expected[0] if not name.startswith("eval_")} - TIMES
    for row, other in zip(expected, found, strict=True):
        assert {name: row[name] for name in same} == {name: other[name] for name in same}
    assert found[-1]["episode_x_pos"] > 0 and 0 < found[-1]["episode_success"] < 1 and found[-1]["episode_note"] is None


def test_a_checkpoint_from_when_rom_was_an_option_resumes_with_another_path(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "run")
    metadata = checkpoint.read_metadata(folder)
    metadata["config"]["env"]["rom"] = "old.nes"
    reseal(folder, metadata)
    assert resumed_config(folder, None, {}).env.env_kwargs == {"rom": "old.nes"}
    assert resumed_config(folder, None, {"rom": "new.nes"}).env.env_kwargs == {"rom": "new.nes"}
    with pytest.raises(UsageError, match="cannot change env_kwargs"):
        resumed_config(folder, None, {"env_kwargs": {"world": 2}})
