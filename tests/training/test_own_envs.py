"""Runs on a user's own envs: trained, resumed, evaluated, recorded and exported like any other."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from proxima import load_policy, train
from proxima.errors import UsageError
from proxima.evaluation.episodes import evaluate
from proxima.runs import checkpoint
from tests.envs.vector_envs import Counting, Mission, make_cart_pole
from tests.training.runs import SMALL

ROOT = Path(__file__).parents[2]
STEPS = 4 * 32 * 2  # two iterations
WRAPPED = [(gym.wrappers.TimeAwareObservation, {"flatten": True}), gym.wrappers.FlattenObservation]


def run(env: Any, steps: int = STEPS, **options: Any) -> Any:
    return train(env=env, total_timesteps=steps, **{**SMALL, **options})


def same_weights(one: Any, two: Any) -> bool:
    states = [result.policy.state_dict() for result in (one, two)]
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.slow
@pytest.mark.parametrize("wrappers", [[], WRAPPED])
def test_a_function_is_trained_to_the_bits_of_its_env_and_resumed_exactly(wrappers: list[Any]) -> None:
    whole = run(make_cart_pole, 2 * STEPS, wrappers=wrappers, lr_schedule="constant")
    half = run(make_cart_pole, STEPS, wrappers=wrappers, lr_schedule="constant")
    resumed = train(resume_from=half.run_dir, total_timesteps=2 * STEPS)
    assert same_weights(whole, resumed)
    registered = run("CartPole-v1", 2 * STEPS, wrappers=wrappers, lr_schedule="constant", vec_env_mode="sync")
    assert same_weights(whole, registered)


@pytest.mark.slow
def test_evaluation_sees_the_env_through_the_wrappers() -> None:
    done = run(make_cart_pole, wrappers=WRAPPED, eval_every=STEPS, eval_episodes=2)
    assert done.policy.spec.obs["obs"].shape == (5,)
    assert evaluate(done.run_dir, episodes=3).lengths.mean > 1
    metrics = (done.run_dir / "metrics.jsonl").read_text().splitlines()[-1]
    assert '"eval_return": NaN' not in metrics and '"eval_return"' in metrics


def test_an_object_gives_num_envs_and_a_contradiction_is_an_error() -> None:
    options = {key: value for key, value in SMALL.items() if key != "num_envs"}
    done = train(env=Counting(3), total_timesteps=96, **options)
    assert done.config.env.num_envs == 3
    with pytest.raises(UsageError, match=r"num_envs is 4, but env .* has 3 envs"):
        train(env=Counting(3), total_timesteps=96, num_envs=4, **options)


@pytest.mark.slow
def test_a_vector_env_says_that_its_resume_is_not_exact(caplog: pytest.LogCaptureFixture) -> None:
    done = run(Counting, env_kwargs={"mode": "NEXT_STEP"})
    assert "the state of a Gymnasium vector env cannot be saved" in caplog.text
    resumed = train(resume_from=done.run_dir, total_timesteps=3 * STEPS)
    assert resumed.global_step >= 3 * STEPS
    assert evaluate(done.run_dir, episodes=4, env_kwargs={"mode": "SAME_STEP"}).returns.max == 6.0  # env 3


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_evaluated_episodes_are_complete_in_every_mode(mode: str) -> None:
    done = run(Counting, env_kwargs={"mode": mode}, rnn="gru", rnn_size=4, minibatch_size=4)
    found = evaluate(done.run_dir, episodes=128, trace=True)  # two in each of 64 envs
    assert [episode.length for episode in found.episodes] == 2 * list(range(3, 67))
    assert all(len(episode.trace.reward) == episode.length for episode in found.episodes if episode.trace)
    assert all(episode.trace.reward.sum() == episode.length for episode in found.episodes if episode.trace)


@pytest.mark.slow
def test_an_object_that_is_gone_asks_for_env_again(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(lambda: gym.make("CartPole-v1"))
    monkeypatch.setattr("proxima.own_parts._given", {})  # as in another process
    assert load_policy(done.run_dir).act(np.zeros(4)).shape == ()
    for use in (lambda: evaluate(done.run_dir), lambda: train(resume_from=done.run_dir, total_timesteps=3 * STEPS)):
        with pytest.raises(UsageError, match="pass it again as env="):
            use()
    assert evaluate(done.run_dir, env=make_cart_pole, episodes=2).lengths.mean > 1
    resumed = train(resume_from=done.run_dir, total_timesteps=2 * STEPS, env=make_cart_pole)
    assert resumed.global_step == 2 * STEPS


def test_a_key_that_is_left_out_stays_out() -> None:
    done = run(Mission, encoders={"mission": {"use": "none"}})
    assert list(done.policy.spec.obs) == ["image"]
    assert evaluate(done.run_dir, episodes=2).lengths.mean == 5
    with pytest.raises(UsageError, match=r"encoders names 'misson', but the observation has image, mission. Did you"):
        run(Mission, encoders={"mission": {"use": "none"}, "misson": {"use": "none"}})


@pytest.mark.slow
def test_an_own_env_is_recorded_if_it_takes_a_render_mode() -> None:
    from proxima.evaluation.video import record_checkpoint

    pytest.importorskip("pygame")
    done = run(make_cart_pole)
    video = record_checkpoint(done.run_dir, length=3)
    assert video is not None and video.stat().st_size > 0
    with pytest.raises(UsageError, match="keyword render_mode"):
        record_checkpoint(done.run_dir, length=3, env=lambda: gym.make("CartPole-v1"))
    with pytest.raises(UsageError, match="is a vector env"):
        record_checkpoint(done.run_dir, env=Counting)


MODULE = """
import gymnasium as gym
class Halved(gym.RewardWrapper):
    def __init__(self, env, by=2.0):
        super().__init__(env)
        self.by = by
    def reward(self, reward):
        return reward / self.by
def make():
    return gym.make("CartPole-v1")
gym.register("Mine-v0", make)
"""
# Like the installed command: the folder of the script, not the current one, is the first on the path.
COMMAND = "import sys; from proxima.__main__ import main; sys.exit(main())"


@pytest.mark.slow
def test_the_command_imports_from_the_current_folder_in_workers_too(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "command.py").write_text(COMMAND)
    (tmp_path / "mine.py").write_text(MODULE)

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, str(tmp_path / "bin" / "command.py"), *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    small = ["--total-timesteps", "64", "--num-envs", "2", "--num-steps", "32", "--minibatch-size", "32"]
    small += ["--quiet", "--no-tensorboard"]
    wrapped = ["--wrapper", "{mine:Halved: {by: 4.0}}", "--wrapper", "mine:Halved"]
    command("train", "--env", "mine:make", *wrapped, "--vec-env-mode", "async", "--num-workers", "1", *small)
    found = command("evaluate", "runs/mine-make", "--episodes", "2")
    assert "mine:make, 2 episodes" in found
    row = next(line.split() for line in found.splitlines() if line.startswith("return"))
    length = next(line.split() for line in found.splitlines() if line.startswith("length"))
    assert float(row[1]) == pytest.approx(float(length[1]) / 8, rel=1e-2)
    command("train", "--env", "mine:Mine-v0", *small)
    config = checkpoint.Checkpoint(checkpoint.find("runs/mine-make")).config
    assert config.env.wrappers == [{"mine:Halved": {"by": 4.0}}, "mine:Halved"]
