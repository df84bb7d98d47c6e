"""Rollouts of workers are those of one process: the same bits with one worker, to rounding with several.

Ray itself is replaced here by calls in this process; `test_ray.py` has the real one.
"""

import logging
import math
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from proxima import Trainer, load_config, train
from proxima.errors import EnvFailure, NonFiniteError, UsageError
from proxima.runs import checkpoint
from proxima.track.progress import summary
from proxima.training import ray_cluster, remote, rollout_worker, worker_pool
from proxima.training.source import Share
from tests import probes
from tests.envs import toy_envs  # noqa: F401 - registers them
from tests.envs.hidden_goal import HIDDEN_GOAL, saved, straight
from tests.masked_envs import ENV as MASKED
from tests.training.fake_cluster import FakeCluster
from tests.training.runs import SMALL, TIMES, metrics, same

STEPS = 32 * 4
OPTIONS = SMALL | {"total_timesteps": 3 * STEPS, "preset": "none"}
ONLY_REMOTE = {"rollout_workers", "worker_steps_per_second", "learner_wait", "lost_workers", "policy_lag"}
RECURRENT = {"rnn": "gru", "rnn_size": 8, "hidden_sizes": [8], "bptt_length": 5, "minibatch_size": 8}
CASES: dict[str, dict[str, Any]] = {
    "batch": {"env": "Hopper-v5"},
    "sync, discrete": {"env": "CartPole-v1"},
    "recurrent": {"env": "Hopper-v5", **RECURRENT},
    "held at random": {"env": "Hopper-v5", "action_hold_random": "0.008 0.05"},
    "images": {"env": "ProbePixels-v0"},
    "stacked frames": {"env": "proxima/PixelCatch-v0", "env_kwargs": "{image_size: 16, drops: 1}", "cnn_features": 8},
    "dict": {"env": "ProbeTwoKeys-v0"},
    "masks, held": {"env": MASKED, "env_kwargs": "{truncates: true}", "action_hold_random": "0.1 0.3"},
    "tensors": {"env": "proxima/Recall-v0"},
    "skips": {"env": "tests.envs.vector_envs:Counting", "env_kwargs": "{mode: NEXT_STEP}"},
    "info": {"env": "Hopper-v5", "log_info": "x_velocity"},
    "muscles": {
        "env_file": "base_lonly",
        "env_kwargs": "{hidden_sizes: [16, 16]}",
        "hidden_sizes": [16],
        "muscle_batch_size": 32,
        "muscle_num_epochs": 2,
    },
    "quadruped": {"env": "proxima/Quadruped-v0", "env_kwargs": "{ground: {levels: 2, columns: 2}}", **RECURRENT},
}


@pytest.fixture(autouse=True)
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    probes.register()
    monkeypatch.setattr(remote, "Cluster", FakeCluster)
    monkeypatch.setattr(FakeCluster, "losses", set())


def trained(name: str, **options: Any) -> tuple[Path, list[dict[str, Any]]]:
    """The last checkpoint, and the metrics without what only runs with workers have."""
    result = train(name=name, **(OPTIONS | options))
    rows = [{k: v for k, v in row.items() if k not in ONLY_REMOTE | TIMES} for row in metrics(result.run_dir)]
    assert result.checkpoint is not None
    return result.checkpoint, rows


def assert_same_weights(one: Path, two: Path) -> None:
    for name in ("agent.pt", "optimizer.pt"):
        assert same(checkpoint.read(one, name), checkpoint.read(two, name)), f"{name} differs"


@pytest.mark.parametrize("case", CASES)
def test_one_worker_has_the_bits_of_no_worker(case: str) -> None:
    options = CASES[case] | {"total_timesteps": 2 * STEPS}
    one, own = trained("alone", **options)
    two, others = trained("remote", rollout_workers=1, **options)
    assert_same_weights(one, two)
    assert own == others
    states = [checkpoint.read(path, "training_state.pt") for path in (one, two)]
    assert same(states[0]["collector"], states[1]["collector"])
    if states[0]["env"] is not None and case != "muscles":  # a resume hands the network over
        assert same(states[1]["env"], {"parts": [states[0]["env"]], "counts": [4]})


def test_a_student_learns_from_what_workers_collect(tmp_path: Path) -> None:
    """Distillation, whose behaviour policy is made of student and teacher, is sent to the workers too."""
    teacher = str(saved(tmp_path / "teacher", *straight()))
    options = {"env": HIDDEN_GOAL, "algorithm": "distillation", "teacher": teacher, "teacher_share": [0.5]}
    one, own = trained("alone", **options)
    two, others = trained("remote", rollout_workers=1, **options)
    assert_same_weights(one, two)
    assert own == others


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("case", [case for case in CASES if case != "skips"])
def test_several_workers_see_the_trajectories_of_one(case: str, workers: int) -> None:
    """Up to the rounding of the policy's products, which differ with the number of rows.

    Actions, observations and rewards of a first rollout differ by no more than that; who ended when is the same.
    """
    rollouts = []
    for count in (1, workers):
        options = OPTIONS | CASES[case] | {"rollout_workers": count}
        trainer = Trainer(load_config(None, options))
        trainer.algorithm.begin()
        rollouts.append(trainer.source.collect())
        trainer.close()
    one, many = rollouts
    for name in ("terminated", "truncated"):
        assert torch.equal(getattr(one, name), getattr(many, name))
    if one.duration is not None:
        assert torch.equal(one.duration, many.duration)
    tolerance = {"rtol": 1e-3, "atol": 1e-3} if case in ("quadruped", "muscles") else {"rtol": 1e-4, "atol": 1e-4}
    for name in ("action", "reward"):
        torch.testing.assert_close(getattr(one, name), getattr(many, name), **tolerance)
    for key, x in one.obs.items():
        torch.testing.assert_close(x, many.obs[key], **tolerance)
    places = [sorted(zip(x.final_time.tolist(), x.final_env.tolist(), strict=True)) for x in rollouts]
    assert places[0] == places[1]


def test_episodes_are_counted_in_the_order_in_which_they_ended() -> None:
    """So that the window of the last hundred has the same ones, whichever worker answers first."""
    trainers = [
        Trainer(load_config(None, OPTIONS | {"env": "CartPole-v1", "rollout_workers": count})) for count in (0, 2)
    ]
    for _ in range(3):
        for trainer in trainers:
            trainer.source.collect()
    one, two = (trainer.source for trainer in trainers)
    assert one.episodes.returns == two.episodes.returns and len(one.episodes.returns) > 10
    assert (one.global_step, one.policy_steps) == (two.global_step, two.policy_steps)


@pytest.mark.parametrize("case", ["batch", "sync, discrete", "recurrent", "held at random", "muscles"])
def test_lost_workers_change_nothing(case: str, caplog: pytest.LogCaptureFixture) -> None:
    options = CASES[case] | {"rollout_workers": 2, "total_timesteps": (12 if "held" in case else 3) * STEPS}
    one, own = trained("whole", **options)
    FakeCluster.losses = {1, 4, 5}  # in the first rollout; twice in a row
    two, others = trained("lossy", **options)
    assert_same_weights(one, two)
    assert own == others
    assert same(*(checkpoint.read(path, "training_state.pt") for path in (one, two)))
    said = {record.getMessage() for record in caplog.records}
    lost = f"Rollout worker {{}} on {platform.node().lower()} ({{}}) was lost (the test ended it): "
    lost += "a new one repeats its part of the rollout."
    assert said >= {lost.format("0", "envs 0 to 1"), lost.format("1", "envs 2 to 3")}
    assert metrics(two.parent)[-1]["lost_workers"] == 3


def test_a_worker_without_a_state_starts_new_episodes(caplog: pytest.LogCaptureFixture) -> None:
    FakeCluster.losses = {4}  # the second worker, in the second rollout
    trainer = Trainer(load_config(None, OPTIONS | CASES["skips"] | {"rollout_workers": 2}))
    trainer.iterate()
    assert trainer.source.restarted == []
    carry = trainer.algorithm.learner.reward_normalizer.carry
    carry.fill_(0.5)
    forgotten: list[Any] = []
    trainer.algorithm.learner.forget_episodes = forgotten.append  # type: ignore[method-assign]
    trainer.iterate()
    trainer.close()
    assert "a new one starts new episodes" in caplog.text
    assert forgotten == [slice(2, 4)] == trainer.source.restarted  # of the worker that was lost


def test_the_learner_forgets_the_episodes_of_envs_that_start_anew() -> None:
    trainer = Trainer(load_config(None, OPTIONS | CASES["batch"]))
    carry = trainer.algorithm.learner.reward_normalizer.carry.fill_(0.5)
    trainer.algorithm.learner.forget_episodes(slice(1, 3))
    trainer.close()
    assert carry.tolist() == [0.5, 0.0, 0.0, 0.5]


def test_a_new_worker_that_cannot_make_its_envs_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(load_config(None, OPTIONS | CASES["batch"] | {"rollout_workers": 2}))
    trainer.iterate()

    def broken(*_: Any, **__: Any) -> Any:
        raise UsageError("the simulator is not installed here")

    monkeypatch.setattr(rollout_worker, "make_run_envs", broken)
    FakeCluster.losses = {3}
    with pytest.raises(UsageError, match="the simulator is not installed here"):
        trainer.iterate()
    trainer.close()


def test_a_worker_that_has_started_is_not_replaced_for_being_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one that waits for a CPU is started without."""
    monkeypatch.setattr(worker_pool, "_REPLACEMENT_SECONDS", 0.0)
    launched: list[float] = []
    worker = worker_pool.Worker(0, Share(0, 4, 4), b"")
    monkeypatch.setattr(worker, "launch", lambda cluster, cpus: launched.append(cpus))
    monkeypatch.setattr(worker, "collect", lambda order: "again")
    worker.built = worker.placed = object()
    cluster = FakeCluster(None, cpus=1, rollout_bytes=1)
    pool = worker_pool.WorkerPool(cluster, [worker], cpus=1.0, seed=0)
    running: dict[Any, Any] = {"first": worker}
    pool._make_do(running, None)  # it has started: the fake says that every answer is there
    assert not launched and list(running) == ["first"]
    monkeypatch.setattr(cluster, "wait", lambda references, timeout: [])
    pool._make_do(running, None)
    assert launched == [0.0] and list(running) == ["again"]


def test_a_worker_that_is_lost_again_and_again_ends_the_run() -> None:
    FakeCluster.losses = set(range(3, 100))
    with pytest.raises(EnvFailure, match=r"rollout worker . on .* \(envs . to .\) was lost 5 times in a row"):
        trained("hopeless", env="Hopper-v5", rollout_workers=2)
    (folder,) = Path("runs/hopeless").iterdir()
    assert checkpoint.read_metadata(checkpoint.find(folder))["iteration"] == 1


@pytest.mark.parametrize("case", ["batch", "recurrent", "sync, discrete", "quadruped", "muscles"])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_resume_is_exact(case: str, overlap: bool) -> None:
    options = CASES[case] | {"rollout_workers": 2, "overlap": overlap}
    whole, _ = trained("whole", **options)
    cut, _ = trained("half", **options, on_iteration=lambda trainer, row: row["iteration"] < 1)
    assert checkpoint.read_metadata(cut)["iteration"] == 1
    resumed = train(resume_from=cut)
    assert_same_weights(whole, resumed.checkpoint)
    assert same(*(checkpoint.read(path, "training_state.pt") for path in (whole, resumed.checkpoint)))


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 3), (3, 1)])
@pytest.mark.parametrize("case", ["batch", "sync, discrete", "recurrent", "held at random", "muscles"])
def test_a_resume_may_have_another_number_of_workers(
    case: str, before: int, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It continues the same episodes: the next rollout is that of the run with as many workers as before."""
    options = OPTIONS | CASES[case]
    cut, _ = trained("cut", **options | {"rollout_workers": before}, on_iteration=lambda trainer, row: False)
    rollouts = []
    for workers in (before, after):
        config = load_config(None, {"rollout_workers": workers}, base=checkpoint.Checkpoint(cut).config)
        trainer = Trainer(config)
        trainer.restore(cut)
        assert not any("not exact" in notice for notice in trainer.notices)
        is_told = any("the same episodes go on, but rounding differs" in notice for notice in trainer.notices)
        assert is_told == (max(1, workers) != max(1, before))
        rollouts.append(trainer.source.collect())
        trainer.close()
    for name in ("action", "reward"):
        torch.testing.assert_close(*(getattr(rollout, name) for rollout in rollouts), rtol=1e-3, atol=1e-3)
    assert torch.equal(rollouts[0].ended, rollouts[1].ended)


def test_overlap_learns_from_the_policy_before_the_update() -> None:
    trainer = Trainer(
        load_config(None, OPTIONS | CASES["batch"] | {"rollout_workers": 2, "overlap": True, "total_timesteps": 9999})
    )
    seen = []
    for row in trainer.iterations():
        rollout = trainer.source.rollout
        with torch.no_grad():
            inputs = {key: x.flatten(0, 1) for key, x in trainer.policy.normalizer(rollout.step_obs()).items()}
            now = trainer.policy(inputs)[0].log_prob(rollout.action.flatten(0, 1))
        seen.append((row["policy_lag"], row["approx_kl"]))
        assert rollout.log_prob is not None and not torch.allclose(rollout.log_prob.flatten(), now, atol=1e-4)
        if row["iteration"] == 4:
            break
    assert [lag for lag, _ in seen] == [0, 1, 1, 1]
    assert all(math.isfinite(kl) for _, kl in seen)


def test_the_first_ratio_is_one_without_overlap() -> None:
    trainer = Trainer(load_config(None, OPTIONS | CASES["batch"] | {"rollout_workers": 2}))
    learner = trainer.algorithm.learner
    for _ in range(3):
        batch = learner.prepare(trainer.source.collect())
        order = torch.arange(learner.layout.num_sequences).view(1, -1)
        minibatch = learner.gather(batch.rows, order[0])
        distribution, _ = trainer.policy(minibatch.obs)
        assert torch.equal(distribution.log_prob(minibatch.action), minibatch.old_log_prob)
        learner.update(batch)
        learner.update_normalizer(trainer.source.rollout)
    trainer.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_errors_of_workers_name_the_env_and_its_step(overlap: bool) -> None:
    trainer = Trainer(load_config(None, OPTIONS | CASES["batch"] | {"rollout_workers": 2, "overlap": overlap}))
    trainer.source.collect()
    env = trainer.source._pool.workers[1].actor._worker._collector.env
    step, calls = env.step, iter(range(99))

    def unwell(action: torch.Tensor) -> Any:
        found = step(action)
        if next(calls) == 6:
            found.reward[1] = math.nan
        return found

    env.step = unwell
    ahead = STEPS // 4 if overlap else 0  # the second rollout was collected already
    where = rf"global step {STEPS + 28 + 4 * ahead} \(step {39 + ahead} of"
    with pytest.raises(NonFiniteError, match=rf"env 3 gave a reward of nan at {where}"):
        for _ in range(2):
            trainer.source.collect()
    trainer.close()


def test_what_does_not_work_with_workers_is_said() -> None:
    for text, options in {
        "rollout_workers is 5, but there are 4 envs": {"rollout_workers": 5},
        "overlap is set, but the envs are in this process": {"overlap": True},
        "rollout_workers is 2, but DQN learns after every few steps": {
            "env": "CartPole-v1",
            "algorithm": "DQN",
            "rollout_workers": 2,
        },
    }.items():
        with pytest.raises(UsageError, match=text):
            Trainer(load_config(None, OPTIONS | options))


def test_nothing_is_sent_per_step() -> None:
    """A rollout is one call per worker, with weights that are stored once for all of them."""
    trainer = Trainer(load_config(None, OPTIONS | CASES["batch"] | {"rollout_workers": 3}))
    FakeCluster.calls = []
    for _ in range(2):
        trainer.iterate()
    trainer.close()
    assert FakeCluster.calls == ["put", *["collect"] * 3] * 2


def test_without_ray_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "Cluster", ray_cluster.Cluster)
    monkeypatch.setattr(ray_cluster.importlib.util, "find_spec", lambda name: None)
    text = r'^rollout_workers need Ray, which is not installed: pip install "proxima-rl\[ray\]".$'
    with pytest.raises(UsageError, match=text):
        Trainer(load_config(None, OPTIONS | {"env": "CartPole-v1", "rollout_workers": 2}))


def test_the_progress_line_shows_the_workers() -> None:
    metrics = {"steps_per_second": 1000.0, "episode_return": 1.0, "rollout_workers": 8}
    line = summary(metrics | {"worker_steps_per_second": 41_000.0, "learner_wait": 0.62})
    assert line.endswith("8 workers 41,000 steps/s, learner waits 62%")


def test_calls_reach_the_envs_of_all_workers() -> None:
    trainer = Trainer(load_config(None, OPTIONS | {"env": "CartPole-v1", "rollout_workers": 2}))
    trainer.source.collect()
    assert len(trainer.call_envs("get_wrapper_attr", "spec")) == 4
    assert all(worker.state is not None for worker in trainer.source._pool.workers)  # for one that is lost
    trainer.source.collect()
    trainer.close()


def test_workers_may_be_lost_between_rollouts() -> None:
    trainer = Trainer(load_config(None, OPTIONS | CASES["batch"] | {"rollout_workers": 2}))
    one, two = trainer.source._pool.workers
    one.actor.is_lost = True  # before it was ever asked for its state
    state = trainer.source.get_state()
    first = trainer.source.collect().reward.clone()
    two.actor.is_lost = True
    trainer.source.set_state(state, new_episodes_seed=1)
    assert torch.equal(trainer.source.collect().reward, first) and trainer.source._pool.lost == 2
    trainer.close()


def test_envs_are_divided_evenly_and_in_order() -> None:
    parts = Share(4, 11, 20).split(3)
    assert [(part.first, part.count, part.total) for part in parts] == [(4, 4, 20), (8, 4, 20), (12, 3, 20)]


def test_workers_say_what_they_log(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("proxima")
    trainer = Trainer(load_config(None, OPTIONS | CASES["batch"] | {"rollout_workers": 1}))
    collector = trainer.source._pool.workers[0].actor._worker._collector
    step = collector.env.step

    def warn(action: torch.Tensor) -> Any:
        log.warning("an env is unwell")
        collector.env.step = step
        return step(action)

    collector.env.step = warn
    trainer.source.collect()
    trainer.close()
    assert "Rollout worker 0: an env is unwell" in caplog.text
