"""A run that is killed and resumed ends with the same bits as one that never stopped."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from proxima import checkpoint, train
from proxima.config import load_config
from proxima.envs.mario.rom import find_rom
from proxima.errors import ProximaError, UsageError
from proxima.track.tracker import Tracker
from proxima.training.trainer import Trainer
from tests import probes
from tests.envs import toy_envs  # noqa: F401 - registers them

SMALL = {
    "num_envs": 4,
    "num_threads": 1,  # tests run side by side
    "num_steps": 32,
    "minibatch_size": 32,
    "update_epochs": 2,
    "lr_schedule": "linear",
    "tensorboard": False,
    "progress": False,
    "compile": "off",
}
TIMES = {
    "wall_time",
    "steps_per_second",
    "decisions_per_second",
    "collect_seconds",
    "advantage_seconds",
    "store_seconds",
    "update_seconds",
}
# A process that trains as the command does, with the test's own envs registered.
SCRIPT = "import sys; from tests import probes; probes.register(); from proxima.cli import main; sys.exit(main())"
ROOT = Path(__file__).parents[2]
FILES = ("agent.pt", "optimizer.pt", "training_state.pt")
METADATA = {"config": {}, "spec": {}, "iteration": 0, "global_step": 0, "lineage": []}
MEMORY = {"memory": "gru", "memory_size": 8, "hidden_sizes": [8], "bptt_length": 8, "minibatch_size": 4}
DQN = {
    "algorithm": "DQN",
    "save_replay": True,
    "iteration_steps": 128,
    "buffer_size": 600,  # so that it is full, and written over, when the run is killed
    "learning_starts": 100,
    "target_update_every": 300,
    "return_steps": 3,
}
CATCH = {"env": "proxima/PixelCatch-v0", "env_kwargs": "{image_size: 16, drops: 1}", "cnn_features": 8}
GAME = {"env_kwargs": "{image_size: 24}", "cnn_features": 8, "num_steps": 8, "minibatch_size": 16}
CASES: dict[str, dict[str, Any]] = {
    "batch": {"env": "Hopper-v5"},
    "batch, contact forces": {"env": "Ant-v5"},
    "compiled": {"env": "Hopper-v5", "compile": "on"},
    "sync": {"env": "Hopper-v5", "vec_env_mode": "sync"},
    "async": {"env": "HalfCheetah-v5", "vec_env_mode": "async"},
    "replayed": {"env": "LunarLander-v3"},
    "cnn": {"env": "ProbePixels-v0"},
    "stacked frames, async": {**CATCH, "vec_env_mode": "async"},
    "mario": {"env": "proxima/SuperMarioBros-1-1-v0", **GAME},
    "atari": {"env": "ALE/Pong-v5", **GAME, "vec_env_mode": "sync"},
    "dqn": {"env": "CartPole-v1", **DQN},
    "dqn, compiled": {"env": "CartPole-v1", **DQN, "compile": "on"},
    "dqn, stacked frames, async": {**CATCH, **DQN, "max_episode_steps": 9, "vec_env_mode": "async"},
    "dqn, held": {"env": "CartPole-v1", **DQN, "action_hold_seconds": 0.06, "total_timesteps": 128 * 50},
    "dict": {"env": "ProbeTwoKeys-v0"},
    "held, annealed": {
        "env": "Hopper-v5",
        "action_hold_start_seconds": 0.08,
        "action_hold_end_seconds": 0.01,
        "total_timesteps": 128 * 60,
    },
    "held, annealed, async": {
        "env": "HalfCheetah-v5",
        "vec_env_mode": "async",
        "action_hold_start_seconds": 0.3,
        "action_hold_end_seconds": 0.05,
        "action_hold_fraction": 0.8,
        "total_timesteps": 128 * 50,
    },
    "held at random": {"env": "Walker2d-v5", "action_hold_random": "0.008 0.05"},
    "held at random, sync": {"env": "Hopper-v5", "vec_env_mode": "sync", "action_hold_random": "0.008 0.05"},
    "memory, batch": {"env": "Hopper-v5", **MEMORY},
    "memory, padded, sync": {"env": "CartPole-v1", **MEMORY, "memory": "lstm", "bptt_length": 5, "num_steps": 33},
    "memory, async": {"env": "Hopper-v5", **MEMORY, "vec_env_mode": "async", "share_trunk": "off"},
    "memory, compiled": {"env": "Hopper-v5", **MEMORY, "bptt_length": 2, "num_steps": 32, "compile": "on"},
    "memory, held": {"env": "Hopper-v5", **MEMORY, "action_hold_seconds": 0.03},
    "memory, tensors": {"env": "proxima/SyntheticQuadruped-v0", **MEMORY},
    "all normalised, adaptive": {"env": "Walker2d-v5", "lr_schedule": "adaptive", "recompute_advantage": True},
}


@pytest.fixture(autouse=True)
def probe_envs() -> None:
    probes.register()


def flags(options: dict[str, Any]) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def same(one: Any, two: Any) -> bool:
    """Equality of states, bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return bool(one == two)


def assert_same_end(one: Path, two: Path) -> None:
    names = {path.name for path in one.glob("*.pt")}
    assert names == {path.name for path in two.glob("*.pt")} and names >= set(FILES)
    for name in names:
        assert same(checkpoint.read(one, name), checkpoint.read(two, name)), f"{name} differs"


def wait_for_checkpoint(folder: Path, process: subprocess.Popen[str], count: int = 1) -> None:
    deadline = time.monotonic() + 240
    while len(list(folder.glob("*/cut-*/metadata.yaml"))) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.01)


@pytest.mark.parametrize("case", CASES)
def test_killed_in_mid_iteration_and_resumed_equals_uninterrupted(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if case == "mario" and find_rom() is None:
        pytest.skip("the game file of Super Mario Bros. is not on this machine")
    options = SMALL | CASES[case]
    options = (
        {"total_timesteps": options["num_envs"] * options["num_steps"] * 20}
        | CASES[case]
        | {name: value for name, value in options.items() if name != "total_timesteps"}
    )
    whole = train(name="whole", **options)
    assert "not compiled" not in caplog.text
    process = start("train", "--name", "cut", "--checkpoint-freq", "1", *flags(options))
    wait_for_checkpoint(tmp_path / "runs" / "cut", process)
    process.kill()
    process.communicate()
    (cut,) = (tmp_path / "runs" / "cut").iterdir()
    done = checkpoint.read_metadata(checkpoint.find(cut))["iteration"]
    assert done < 20, "the process had already finished: it was not killed in the middle"
    resumed = train(resume_from=cut)
    assert_same_end(whole.checkpoint, resumed.checkpoint)
    assert metrics(whole.run_dir)[done:] == metrics(resumed.run_dir)


def test_killed_at_twenty_random_moments(tmp_path: Path) -> None:
    options = SMALL | {"env": "Hopper-v5", "total_timesteps": 128 * 300}
    whole = train(name="whole", **options)
    moments, fork = random.Random(0), multiprocessing.get_context("fork")  # forked: no time is lost in imports
    options |= {"name": "cut", "auto_resume": True}
    enough = 0.0  # seconds to the first checkpoint, however busy the machine is
    for number in range(20):  # anywhere: in the restore, in a rollout, in an update, in a save
        process = fork.Process(target=train, kwargs=options | {"checkpoint_freq": 1})
        started = time.monotonic()
        process.start()
        if number == 0:
            while not list((tmp_path / "runs" / "cut").glob("*/cut-*/metadata.yaml")):
                time.sleep(0.01)
            enough = time.monotonic() - started
        else:
            time.sleep(moments.uniform(0.0, 2.5 * enough))
        assert process.is_alive(), "the run was over before it could be killed: make it longer"
        process.kill()
        process.join()
    last = train(**options)
    assert last.global_step == 128 * 300
    assert_same_end(whole.checkpoint, last.checkpoint)
    assert len(checkpoint.read_metadata(last.checkpoint)["lineage"]) > 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("mode", ["batch", "async"])
def test_a_signal_saves_the_last_boundary_and_says_how_to_go_on(
    number: signal.Signals, code: int, mode: str, tmp_path: Path
) -> None:
    options = SMALL | {"env": "Hopper-v5", "vec_env_mode": mode}
    process = start("train", "--name", "cut", "--total-timesteps", "1M", "--checkpoint-freq", "128", *flags(options))
    wait_for_checkpoint(tmp_path / "runs" / "cut", process)
    time.sleep(0.2)
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    (run,) = (tmp_path / "runs" / "cut").iterdir()
    assert process.returncode == code, error
    assert f"stopped by {number.name}" in error and f"proxima resume {run.relative_to(tmp_path)}" in error
    rows = metrics(run)
    assert checkpoint.read_metadata(checkpoint.find(run))["iteration"] == rows[-1]["iteration"]
    resumed = train(resume_from=run, total_timesteps=rows[-1]["global_step"] + 256)
    assert metrics(resumed.run_dir)[0]["iteration"] == rows[-1]["iteration"] + 1


def test_a_signal_before_the_first_iteration_is_over_saves_the_start(tmp_path: Path) -> None:
    options = SMALL | {"env": "Hopper-v5", "num_steps": 100_000}
    process = start("train", "--name", "cut", "--total-timesteps", "10M", *flags(options))
    while not list((tmp_path / "runs").glob("cut/*/metrics.jsonl")):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert checkpoint.read_metadata(checkpoint.find(tmp_path / "runs" / "cut"))["iteration"] == 0


@pytest.mark.parametrize(("schedule", "told"), [("linear", True), ("cosine", True), ("constant", False)])
def test_a_longer_resume_says_that_the_learning_rate_goes_back(schedule: str, told: bool) -> None:
    options = SMALL | {"env": "InvertedPendulum-v5", "learning_rate": 1e-3, "lr_schedule": schedule}
    run = train(**options, total_timesteps=512)
    notices = {}
    for total, rate in ((1024, 1e-3), (600, 1e-3), (1024, 5e-4)):
        changed = {"total_timesteps": total, "learning_rate": rate}
        trainer = Trainer(load_config(None, options | changed))
        trainer.restore(run.checkpoint)
        trainer.env.close()
        notices[total, rate] = [notice for notice in trainer.notices if "learning rate goes" in notice]
    assert bool(notices[1024, 1e-3]) == told
    if schedule == "linear":  # 0.25e-3 in the last of four iterations, half of the new run is over
        (notice,) = notices[1024, 1e-3]
        assert "from 0.00025 to 0.0005" in notice and "--learning-rate 0.0005 " in notice
        assert not notices[600, 1e-3] and not notices[1024, 5e-4]


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    options = SMALL | {"env": "Hopper-v5", "num_steps": 100_000}
    process = start("train", "--name", "cut", "--total-timesteps", "10M", *flags(options))
    while not list((tmp_path / "runs").glob("cut/*/metrics.jsonl")):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143


def test_a_signal_while_the_run_starts_saves_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(load_config(None, SMALL | {"env": "InvertedPendulum-v5", "total_timesteps": 128}))
    real = Tracker.__init__

    def signalled(*args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        real(*args, **kwargs)

    monkeypatch.setattr(Tracker, "__init__", signalled)
    with pytest.raises(ProximaError, match="stopped by SIGTERM; iteration 0 is saved") as stop:
        trainer.run()
    assert stop.value.exit_code == 143


@pytest.mark.parametrize("where", ["save", "tracker", "env"])
def test_a_signal_at_the_very_end_loses_nothing(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the last save, and while the tracker and the envs are being closed."""
    trainer = Trainer(load_config(None, SMALL | {"env": "InvertedPendulum-v5", "total_timesteps": 128}))

    def signalled(function: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return function(*args, **kwargs)

        return wrapped

    owner = {"save": checkpoint, "tracker": Tracker, "env": trainer.env}[where]
    name = "save" if where == "save" else "close"
    monkeypatch.setattr(owner, name, signalled(getattr(owner, name)))
    if where == "save":
        with pytest.raises(ProximaError, match="stopped by SIGTERM; iteration 1 is saved"):
            trainer.run()
    else:
        trainer.run()
    assert checkpoint.read_metadata(checkpoint.find(trainer.run_dir))["iteration"] == 1


def test_any_error_leaves_the_last_boundary_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(load_config(None, SMALL | {"env": "InvertedPendulum-v5", "total_timesteps": 12_800}))
    good, calls = trainer.algorithm.learner.update, iter(range(100))

    def update(*args: Any) -> Any:
        if next(calls) == 3:
            raise RuntimeError("out of memory, say")
        return good(*args)

    monkeypatch.setattr(trainer.algorithm.learner, "update", update)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.run()
    assert checkpoint.read_metadata(checkpoint.find(trainer.run_dir))["iteration"] == 3


def test_a_worker_that_dies_between_rollouts_costs_an_episode_not_the_run(caplog: pytest.LogCaptureFixture) -> None:
    options = SMALL | {"env": "CartPole-v1", "vec_env_mode": "async", "num_workers": 2, "total_timesteps": 512}
    trainer = Trainer(load_config(None, options))
    good, calls = trainer.algorithm.learner.update, iter(range(100))

    def update(*args: Any) -> Any:
        if next(calls) == 1:
            os.kill(trainer.env._workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
        return good(*args)

    trainer.algorithm.learner.update = update  # type: ignore[method-assign]
    result = trainer.run()
    assert result.global_step == 512 and metrics(result.run_dir)[-1]["worker_restarts"] == 1
    assert "was killed by SIGKILL" in caplog.text


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
        f"format_version: {checkpoint.FORMAT_VERSION}\n",
    ):
        (newest / "metadata.yaml").write_text(broken)
        assert checkpoint.find(result.run_dir) == older
        with pytest.raises(UsageError, match=r"damaged|not whole|not the metadata"):
            train(resume_from=newest, total_timesteps=512)


def test_a_foreign_state_is_refused_in_one_line() -> None:
    first = train(env="InvertedPendulum-v5", total_timesteps=128, **SMALL)
    other = train(env="InvertedDoublePendulum-v5", total_timesteps=128, **SMALL)
    boundary = {name: checkpoint.read(other.checkpoint, name) for name in FILES}
    metadata = {key: checkpoint.read_metadata(first.checkpoint)[key] for key in METADATA}
    mixed = checkpoint.save(first.run_dir, name="mixed", iteration=9, files=boundary, metadata=metadata)
    with pytest.raises(UsageError, match=rf"cannot be restored \(RuntimeError: .*\): use {first.checkpoint}"):
        train(resume_from=mixed, total_timesteps=512)


def test_new_episodes_of_inexact_resumes_differ() -> None:
    first = train(env="BipedalWalker-v3", total_timesteps=128, **SMALL)
    trainer = Trainer(load_config(None, SMALL | {"env": "BipedalWalker-v3", "total_timesteps": 999}))
    start_of_the_run = trainer.collector.get_state()["obs"]["obs"]
    trainer.restore(checkpoint.find(first.run_dir))
    assert not torch.equal(start_of_the_run, trainer.collector.get_state()["obs"]["obs"])


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


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("what", ["iterator", "object"])
def test_an_env_that_becomes_impossible_to_capture_is_told_and_trained_on(
    what: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = SMALL | {"env": "tests.envs.late_env:Late-v0", "env_kwargs": {"what": what}, "vec_env_mode": mode}
    first = train(total_timesteps=128 * 12, name="late", **options)
    resumed = train(resume_from=first.run_dir, total_timesteps=128 * 14)
    assert resumed.global_step == 128 * 14
    assert "can no longer be kept" in caplog.text or "cannot be put back" in caplog.text
    assert "This resume is not exact" in caplog.text


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
