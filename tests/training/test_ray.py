"""Rollout workers on a real Ray: processes and machines (simulated on this one) that die, and runs that are killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxima import Trainer, train
from proxima.envs.games.mario.rom import find_rom
from proxima.errors import UsageError
from proxima.runs import checkpoint
from proxima.training import ray_cluster, remote, worker_pool
from tests.training.fake_cluster import FakeCluster
from tests.training.runs import SMALL, assert_same_end, flags, metrics, same, start, wait_for_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

STEPS = 32 * 4
HOPPER = SMALL | {"env": "Hopper-v5", "total_timesteps": 5 * STEPS, "preset": "none", "rollout_workers": 2}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster of three machines; the workers only fit on the last two."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.last = cluster.add_node(num_cpus=1)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "Cluster", FakeCluster)
    monkeypatch.setattr(FakeCluster, "losses", set())


@pytest.fixture
def whole(without_ray: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The last checkpoint of a run in which nothing happens, with workers in this process."""
    result = train(name="whole", **HOPPER)
    monkeypatch.setattr(remote, "Cluster", ray_cluster.Cluster)
    assert result.checkpoint is not None
    return result.checkpoint


def test_lost_processes_and_machines_change_nothing(
    nodes: Any, whole: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker is killed, then a whole machine: the run ends with the bits of one in which nothing happens."""
    monkeypatch.setattr(worker_pool, "_REPLACEMENT_SECONDS", 3.0)

    def disturb(trainer: Trainer, row: dict[str, float]) -> None:
        if row["iteration"] == 1:
            os.kill(int(trainer.source._pool.workers[0].about["pid"]), signal.SIGKILL)  # type: ignore[attr-defined]
        if row["iteration"] == 3:
            nodes.remove_node(nodes.last)

    result = train(name="disturbed", **HOPPER, ray_address=nodes.address, on_iteration=disturb)
    assert_same_end(whole, result.checkpoint)
    rows = metrics(result.run_dir)
    assert [row["lost_workers"] for row in rows] == [0, 1, 1, 2, 2]
    assert "a new one repeats its part of the rollout" in caplog.text
    assert "No CPU is free for rollout worker" in caplog.text  # the machines that are left have one
    saved = [checkpoint.read_metadata(path)["iteration"] for path in result.run_dir.glob("disturbed-*")]
    assert sorted(saved) == [2, 4, 5]  # after a loss, others may be near


def killed(name: str, sign: signal.Signals, options: dict[str, Any]) -> tuple[Path, subprocess.Popen[str], str]:
    """A run in a process of its own that is given a signal after a checkpoint."""
    process = start("train", "--name", name, "--checkpoint-freq", "1", *flags(options))
    try:
        wait_for_checkpoint(Path("runs") / name, process, name=name)
        process.send_signal(sign)
        text = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    (folder,) = (Path("runs") / name).iterdir()
    return folder, process, text


def test_killed_and_resumed_equals_uninterrupted(without_ray: None) -> None:
    """With Ray on this machine, which ends with the learner; what is left to do is done without Ray."""
    options = HOPPER | {"total_timesteps": 60 * STEPS}
    folder, _, _ = killed("cut", signal.SIGKILL, options)
    assert checkpoint.read_metadata(checkpoint.find(folder))["iteration"] < 60, "it was not killed in the middle"
    resumed = train(resume_from=folder)
    assert_same_end(train(name="whole", **options).checkpoint, resumed.checkpoint)
    deadline = time.monotonic() + 30
    while left := _ray_processes():
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.2)


def _ray_processes() -> list[str]:
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in found if "ray::RolloutWorker" in line]


def test_sigterm_saves(tmp_path: Path) -> None:
    folder, process, text = killed("cut", signal.SIGTERM, HOPPER | {"total_timesteps": 4000 * STEPS})
    assert process.returncode == 143
    assert "stopped by SIGTERM" in text and "continue with: proxima resume" in text
    assert checkpoint.find(folder)


OWN = """
import gymnasium as gym

class Mine(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

def make():
    return Mine()
"""
SCRIPT = """
import sys
import gymnasium as gym
from proxima import train

class Half(gym.RewardWrapper):
    def reward(self, reward):
        return 0.5 * reward

class Third(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

gym.register("Third-v0", Third)
options = dict(total_timesteps=256, num_envs=4, num_steps=32, rollout_workers=2, compile="off", progress=False)
result = train(env=lambda: Half(gym.make("CartPole-v1")), **options)
assert result.global_step == 256 and result.episode_return < 40, result
result = train(env="mine:make", vec_env_mode="async", **options)
assert result.global_step == 256, result
result = train(env="Third-v0", **options)
assert result.global_step == 256, result
print("all three")
"""


def test_envs_of_the_user_are_found_by_workers(tmp_path: Path) -> None:
    """A lambda of the main script; a function of a module in the current folder, in processes of the worker's own; an
    id that the main script registers."""
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "all three" in done.stdout


@pytest.mark.skipif(find_rom() is None, reason="the game file of Super Mario Bros. is not on this machine")
def test_emulators_in_workers() -> None:
    game = {"env": "proxima/SuperMarioBros-1-1-v0", "env_kwargs": "{image_size: 24}", "cnn_features": 8}
    options = SMALL | game | {"num_steps": 8, "minibatch_size": 16, "total_timesteps": 64, "preset": "none"}
    one = train(name="alone", **options)
    two = train(name="remote", **options, rollout_workers=1)
    for name in ("agent.pt", "optimizer.pt"):
        assert same(checkpoint.read(one.checkpoint, name), checkpoint.read(two.checkpoint, name))


def test_an_address_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"no Ray cluster answers at '127.0.0.1:1'.*: check --ray-address"):
        train(**HOPPER, ray_address="127.0.0.1:1")
