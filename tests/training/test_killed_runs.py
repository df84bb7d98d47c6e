"""A run that is killed and resumed ends with the same bits as one that never stopped."""

import random
import time
from pathlib import Path
from typing import Any

import pytest

from proxima import train
from proxima.envs.games.mario.rom import find_rom
from proxima.runs import checkpoint
from tests import probes
from tests.masked_envs import ENV
from tests.training.runs import SMALL, assert_same_end, fork, killed_run, metrics

pytestmark = pytest.mark.slow

RECURRENT = {"rnn": "gru", "rnn_size": 8, "hidden_sizes": [8], "bptt_length": 8, "minibatch_size": 4}
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
MASKED = {"env": ENV, "env_kwargs": "{kind: multi_discrete, truncates: true}"}
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
    "rnn, batch": {"env": "Hopper-v5", **RECURRENT},
    "rnn, padded, sync": {"env": "CartPole-v1", **RECURRENT, "rnn": "lstm", "bptt_length": 5, "num_steps": 33},
    "rnn, async": {"env": "Hopper-v5", **RECURRENT, "vec_env_mode": "async", "share_trunk": "off"},
    "rnn, compiled": {"env": "Hopper-v5", **RECURRENT, "bptt_length": 2, "num_steps": 32, "compile": "on"},
    "rnn, held": {"env": "Hopper-v5", **RECURRENT, "action_hold_seconds": 0.03},
    "masked, rnn, held": {**MASKED, **RECURRENT, "action_hold_random": "0.1 0.3", "total_timesteps": 128 * 40},
    "masked, dqn": {"env": ENV, "env_kwargs": "{way: method, truncates: true}", **DQN, "vec_env_mode": "async"},
    "quadruped": {"env": "proxima/Quadruped-v0", "env_kwargs": "{ground: {levels: 2, columns: 2}}", **RECURRENT},
    "muscles": {  # two learners, and a network that is part of the envs
        "env_file": "base_lonly",
        "env_kwargs": "{hidden_sizes: [16, 16]}",
        "num_envs": 2,
        "hidden_sizes": [16],
        "muscle_batch_size": 32,
        "muscle_num_epochs": 2,
        "muscle_warm_start": 2,
        "preset": "none",
    },
    "numbers of info, batch": {"env": "Hopper-v5", "log_info": "x_velocity,reward_ctrl"},
    "numbers of info, async": {"env": "Hopper-v5", "vec_env_mode": "async", "log_info": "x_velocity,absent"},
    "all normalised, adaptive": {"env": "Walker2d-v5", "lr_schedule": "adaptive", "recompute_advantage": True},
    "falling std": {"env": "Hopper-v5", "min_std": "1.0 0.1"},
}
BY_COMMAND = {"batch", "async", "replayed", "dqn"}  # in fresh processes, which share nothing with the other two runs


@pytest.fixture(autouse=True)
def probe_envs() -> None:
    probes.register()


@pytest.mark.parametrize("case", CASES)
def test_killed_in_mid_iteration_and_resumed_equals_uninterrupted(case: str, caplog: pytest.LogCaptureFixture) -> None:
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
    cut = killed_run(by_command=case in BY_COMMAND, **options)
    done = checkpoint.read_metadata(checkpoint.find(cut))["iteration"]
    assert done < 20, "the process had already finished: it was not killed in the middle"
    resumed = train(resume_from=cut)
    assert_same_end(whole.checkpoint, resumed.checkpoint)
    assert metrics(whole.run_dir)[done:] == metrics(resumed.run_dir)


def newest_iteration(folder: Path) -> int:
    return max((int(file.parent.name.split("-")[1]) for file in folder.glob("*/cut-*/metadata.yaml")), default=0)


def test_killed_at_twenty_random_moments(tmp_path: Path) -> None:
    options = SMALL | {"env": "Hopper-v5", "total_timesteps": 128 * 300}
    whole = train(name="whole", **options)
    moments = random.Random(0)
    options |= {"name": "cut", "auto_resume": True}
    cut, enough = tmp_path / "runs" / "cut", 0.0  # seconds to the first checkpoint, however busy the machine is
    for number in range(20):  # anywhere: in the restore, in a rollout, in an update, in a save
        started, before = time.monotonic(), newest_iteration(cut)
        process = fork(**options, checkpoint_freq=1)
        if number % 2 == 0:  # every other time after a checkpoint, so that the run makes progress
            while newest_iteration(cut) == before and process.is_alive():
                time.sleep(0.005)
            enough = enough or time.monotonic() - started
        moment = time.monotonic() + moments.uniform(0.0, enough)
        # However fast the machine becomes after the first checkpoint, the run lasts for twenty kills.
        while time.monotonic() < moment and newest_iteration(cut) < 14 * (number + 1):
            time.sleep(0.005)
        assert process.is_alive(), "the run was over before it could be killed: make it longer"
        process.kill()
        process.join()
    last = train(**options)
    assert last.global_step == 128 * 300
    assert_same_end(whole.checkpoint, last.checkpoint)
    assert len(checkpoint.read_metadata(last.checkpoint)["lineage"]) > 3
