"""Evaluation and videos during training, which must not change it."""

import json
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import pytest
import torch

from proxima import train
from proxima.evaluation import episodes as episodes_module
from proxima.evaluation.episodes import Episode, evaluate
from proxima.evaluation.policy import LoadedPolicy
from proxima.runs import checkpoint
from proxima.training import examiner as examiner_module
from proxima.training import setup as run_setup
from proxima.training.setup import Threads

SMALL = {
    "env": "Hopper-v5",
    "num_envs": 4,
    "num_steps": 32,
    "minibatch_size": 32,
    "update_epochs": 2,
    "total_timesteps": 128 * 8,
    "tensorboard": False,
    "progress": False,
    "compile": "off",
}


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_training_is_the_same_to_the_bit_with_and_without() -> None:
    plain = train(**SMALL)
    examined = train(**SMALL, eval_every=256, eval_episodes=3, name="examined")
    for name in ("agent.pt", "optimizer.pt"):
        one, two = checkpoint.read(plain.checkpoint, name), checkpoint.read(examined.checkpoint, name)
        assert all(torch.equal(one[key], two[key]) for key in one)
    found = [row["eval_return"] for row in rows(examined.run_dir)]
    assert found[0] is None and found[1] is not None  # 128 steps an iteration, an evaluation after 256
    assert "eval_return" not in rows(plain.run_dir)[0]


@pytest.mark.slow
@pytest.mark.parametrize("hold", [{}, {"action_hold_start_seconds": 0.08, "action_hold_end_seconds": 0.01}])
def test_the_best_evaluated_checkpoint_is_kept_and_evaluates_the_same(
    hold: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examiner_module, "stream_seed", lambda *_: 7)
    result = train(**SMALL, **hold, eval_every=128, eval_episodes=3, keep_checkpoints=1)
    kept = checkpoint.list_checkpoints(result.run_dir)
    best = max(row["eval_return"] for row in rows(result.run_dir))
    told = {path: checkpoint.read_metadata(path)["eval_return"] for path in kept}
    assert max(told.values()) == best and len(kept) <= 2
    path = max(told, key=lambda path: told[path])
    assert evaluate(path, episodes=3, seed=7).returns.mean == pytest.approx(best)


def script(monkeypatch: pytest.MonkeyPatch, returns: list[float]) -> None:
    """Evaluations that give these returns, one after another."""
    left = iter(returns)
    monkeypatch.setattr(examiner_module, "run_episodes", lambda *_, **__: [Episode(next(left), 10, True, None)])


@pytest.mark.slow
def test_only_what_was_evaluated_counts_as_best(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, [1.0, 9.0, 5.0, 3.0])
    # Eight iterations of 128 steps, every second one evaluated, all of them saved.
    result = train(**SMALL, eval_every=256, checkpoint_freq=128, keep_checkpoints=1)
    assert [row["eval_return"] for row in rows(result.run_dir)] == [None, 1.0, None, 9.0, None, 5.0, None, 3.0]
    told = [checkpoint.read_metadata(path) for path in checkpoint.list_checkpoints(result.run_dir)]
    assert [(one["iteration"], one["eval_return"]) for one in told] == [(4, 9.0), (8, 3.0)]
    best, newest = checkpoint.list_checkpoints(result.run_dir)
    assert checkpoint.find(result.run_dir, best=True) == best and checkpoint.find(result.run_dir) == newest


def test_the_best_is_saved_when_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, [1.0, 9.0, 5.0, 3.0])
    result = train(**SMALL, eval_every=256, keep_checkpoints=1)
    told = [checkpoint.read_metadata(path) for path in checkpoint.list_checkpoints(result.run_dir)]
    assert [one["iteration"] for one in told] == [4, 8]


@pytest.mark.slow
def test_a_resume_goes_on_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, [1.0, 9.0, 5.0, 3.0])
    half = train(**(SMALL | {"total_timesteps": 128 * 5}), eval_every=256, name="half")
    rest = train(resume_from=half.run_dir, total_timesteps=SMALL["total_timesteps"], keep_checkpoints=5)
    assert [row["eval_return"] for row in rows(rest.run_dir)] == [5.0, None, 3.0]
    assert len(checkpoint.list_checkpoints(rest.run_dir)) == 1  # neither 5 nor 3 is a new best


def test_an_evaluation_that_cannot_be_made_does_not_stop_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(episodes_module, "LONGEST_EPISODE", 3)
    result = train(**SMALL, eval_every=256)
    assert result.global_step == SMALL["total_timesteps"]
    assert caplog.text.count("No evaluation: an episode has not ended after 3 policy steps") == 1


@pytest.mark.slow
def test_videos_are_recorded_and_change_nothing() -> None:
    plain = train(**(SMALL | {"env": "CartPole-v1"}), name="plain")
    result = train(**(SMALL | {"env": "CartPole-v1"}), record_every=512, video_length=20)
    one, two = (checkpoint.read(run.checkpoint, "agent.pt") for run in (plain, result))
    assert all(torch.equal(one[key], two[key]) for key in one)
    videos = sorted((result.run_dir / "videos").iterdir())
    assert [video.name for video in videos] == ["CartPole-v1-step1024.mp4", "CartPole-v1-step512.mp4"]
    assert len(iio.imread(videos[0])) >= 20


def test_a_video_that_cannot_be_made_does_not_stop_the_run(caplog: pytest.LogCaptureFixture) -> None:
    from tests import probes

    probes.register()
    result = train(**(SMALL | {"env": "ProbeTwoKeys-v0"}), record_every=256)
    assert result.global_step == SMALL["total_timesteps"]
    assert caplog.text.count("No videos: ") == 1


def test_a_training_video_forgets_between_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[bool] = []
    monkeypatch.setattr(LoadedPolicy, "reset", lambda self, ended=None: forgotten.append(True))
    train(**(SMALL | {"env": "CartPole-v1", "max_episode_steps": 10}), record_every=1024, video_length=20)
    assert len(forgotten) >= 2


def test_success_and_the_envs_own_numbers_are_metrics_too(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [
        [Episode(1.0, 10, True, True, info={"x_pos": 30.0}), Episode(3.0, 20, True, False, info={"x_pos": 10.0})],
        [Episode(1.0, 10, True, None)],
    ]
    left = iter(told)
    monkeypatch.setattr(examiner_module, "run_episodes", lambda *_, **__: next(left))
    result = train(**(SMALL | {"total_timesteps": 128 * 4}), eval_every=256)
    found = rows(result.run_dir)
    assert "eval_x_pos" not in found[0]
    assert (found[1]["eval_return"], found[1]["eval_length"]) == (2.0, 15.0)
    assert (found[1]["eval_success"], found[1]["eval_x_pos"]) == (0.5, 20.0)
    assert found[2]["eval_x_pos"] is None and found[2]["eval_success"] is None
    assert found[3]["eval_return"] == 1.0 and found[3]["eval_x_pos"] is None  # not told this time


def test_evaluations_have_threads_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are on the CPU, also in a run on a GPU, whose other work needs one thread."""
    used, run_episodes = [], examiner_module.run_episodes

    def watched(*arguments: Any, **options: Any) -> list[Episode]:
        used.append(torch.get_num_threads())
        return run_episodes(*arguments, **options)

    monkeypatch.setattr(examiner_module, "run_episodes", watched)
    monkeypatch.setattr(run_setup, "choose_threads", lambda *_, **__: Threads(act=1, learn=1, evaluate=2))
    train(**SMALL | {"total_timesteps": 256}, eval_every=256, eval_episodes=1)
    assert used == [2] and torch.get_num_threads() == 1
