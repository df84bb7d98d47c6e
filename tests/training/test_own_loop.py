"""The loop in a user's hands: what its body can change, and that a resume continues with it to the bit."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxima import Trainer, load_config, train
from proxima.errors import UsageError
from proxima.runs import checkpoint
from tests.training.hill_env import HILL, register
from tests.training.runs import SMALL, assert_same_end, metrics

PPO = SMALL | {"env": "CartPole-v1", "total_timesteps": 768, "checkpoint_freq": 1, "keep_checkpoints": "all"}
DQN = PPO | {
    "algorithm": "DQN",
    "learning_starts": 64,
    "iteration_steps": 128,
    "buffer_size": 1000,
    "save_replay": True,
}
HILLS = PPO | {"env": HILL, "vec_env_mode": "sync"}


@pytest.fixture(autouse=True)
def hill() -> None:
    register()


def trainer_of(**options: Any) -> Trainer:
    return Trainer(load_config(None, PPO | options))


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def lower_the_rate(trainer: Trainer, metrics: dict[str, float]) -> None:
    if metrics["iteration"] == 2:
        trainer.learning_rate = 1e-5


@pytest.mark.parametrize("options", [PPO, pytest.param(DQN, marks=pytest.mark.slow)], ids=["PPO", "DQN"])
def test_a_learning_rate_set_by_hand_survives_a_resume_to_the_bit(options: dict[str, Any]) -> None:
    whole = train(**options, on_iteration=lower_the_rate)
    rates = [row["learning_rate"] for row in rows(whole.run_dir)]
    assert rates[0] > rates[1] > 1e-5 and rates[2:] == [pytest.approx(1e-5)] * 4
    folders = {checkpoint.Checkpoint(path).iteration: path for path in checkpoint.list_checkpoints(whole.run_dir)}
    for iteration in (2, 4):  # the state after a loop's body, and later
        resumed = train(resume_from=folders[iteration])
        assert resumed.checkpoint is not None and whole.checkpoint is not None
        assert_same_end(whole.checkpoint, resumed.checkpoint)


def test_a_resume_with_another_rate_has_a_schedule_again() -> None:
    first = train(**PPO, on_iteration=lambda trainer, row: lower_the_rate(trainer, row) or row["iteration"] < 3)
    resumed = train(resume_from=first.run_dir, learning_rate=1e-3)
    rates = [row["learning_rate"] for row in rows(resumed.run_dir)]
    assert rates == [pytest.approx(1e-3 * (1 - done / 6)) for done in (3, 4, 5)]


def test_an_adaptive_rate_goes_on_from_what_was_set() -> None:
    options = PPO | {"lr_schedule": "adaptive", "update_epochs": 1}
    result = train(**options, on_iteration=lower_the_rate)
    rates = [row["learning_rate"] for row in rows(result.run_dir)]
    assert rates[2] in (pytest.approx(1e-5), pytest.approx(1.5e-5))


@pytest.mark.slow
def test_a_compiled_update_follows_the_rate() -> None:
    trainer, seen = trainer_of(compile="on"), []
    for row in trainer.iterations():
        seen.append(torch.cat([p.detach().flatten() for p in trainer.policy.parameters()]))
        trainer.learning_rate = 1e-30 if row["iteration"] < 3 else 1e-2
    assert not torch.equal(seen[2], seen[3]) and torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("bad", [0.0, -1e-3, math.nan, "fast"])
def test_a_bad_rate_is_refused(bad: Any) -> None:
    trainer = trainer_of()
    with pytest.raises(UsageError, match="learning_rate is"):
        trainer.learning_rate = bad
    trainer.close()


def test_false_stops_and_saves_and_anything_else_goes_on() -> None:
    result = train(**PPO, on_iteration=lambda trainer, row: None if row["iteration"] < 3 else False)
    assert result.global_step == 384 and result.checkpoint is not None
    assert checkpoint.Checkpoint(result.checkpoint).iteration == 3


def test_an_error_of_the_users_function_is_raised_after_a_save(tmp_path: Path) -> None:
    def fail(trainer: Trainer, row: dict[str, float]) -> None:
        if row["iteration"] == 2:
            raise ZeroDivisionError("of the user's")

    with pytest.raises(ZeroDivisionError, match="of the user's"):
        train(**PPO, runs_dir=str(tmp_path), on_iteration=fail)
    assert checkpoint.Checkpoint(checkpoint.find(tmp_path / "CartPole-v1")).iteration == 2


def test_own_numbers_are_in_the_row_of_their_iteration() -> None:
    trainer = trainer_of()
    for row in trainer.iterations():
        row["mine"] = 7.0  # a copy: only `log` writes
        if row["iteration"] == 2:
            trainer.log({"my/number": torch.tensor(2.5), "count": 3})
            break
    first, second = rows(trainer.run_dir)
    assert "my/number" not in first and "mine" not in second
    assert (second["my/number"], second["count"]) == (2.5, 3.0)


def test_own_numbers_must_be_numbers_and_have_names_of_their_own() -> None:
    trainer = trainer_of()
    for _ in trainer.iterations():
        with pytest.raises(UsageError, match="'entropy' is a metric of the run already"):
            trainer.log({"entropy": 1.0})
        with pytest.raises(UsageError, match=r"my/text is 'high', but it must be a number"):
            trainer.log({"my/text": "high"})  # type: ignore[dict-item]
        break


def test_a_save_on_demand_has_what_was_changed_before_and_the_end_what_was_changed_after() -> None:
    trainer = trainer_of(checkpoint_freq=0)
    for row in trainer.iterations():
        if row["iteration"] == 2:
            saved = trainer.save()
            assert checkpoint.Checkpoint(saved).iteration == 2
            assert "schedule" not in checkpoint.read(saved, "training_state.pt")["learner"]
            trainer.learning_rate = 1e-5
            break
    last = trainer.result().checkpoint
    assert last is not None and "schedule" in checkpoint.read(last, "training_state.pt")["learner"]


def test_a_save_outside_the_loop_is_refused() -> None:
    trainer = trainer_of()
    with pytest.raises(UsageError, match="save is for the body of the loop"):
        trainer.save()
    trainer.close()


def make_harder(trainer: Trainer, row: dict[str, float]) -> None:
    if row["iteration"] == 2:
        assert trainer.call_envs("set_difficulty", 0.5) == [0.0] * 4


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_a_method_of_every_env_is_called_and_its_effect_survives_a_resume(mode: str) -> None:
    options = HILLS | {"vec_env_mode": mode, "num_workers": 2}
    whole = train(**options, on_iteration=make_harder)
    returns = [row["episode_return_min"] for row in metrics(whole.run_dir)]
    assert min(returns[:2]) >= 0 and returns[-1] == -2.5  # five steps with the wrong action
    folders = {checkpoint.Checkpoint(path).iteration: path for path in checkpoint.list_checkpoints(whole.run_dir)}
    resumed = train(resume_from=folders[2])
    assert whole.checkpoint is not None and resumed.checkpoint is not None
    assert_same_end(whole.checkpoint, resumed.checkpoint)


def test_an_env_that_is_replayed_says_that_the_change_does_not_survive(caplog: pytest.LogCaptureFixture) -> None:
    first = train(**HILLS, env_kwargs={"opaque": True}, on_iteration=make_harder)
    assert "a resume will start new episodes, and the call has to be made again" in caplog.text
    caplog.clear()
    train(resume_from=first.run_dir, total_timesteps=1024)
    assert "This resume is not exact" in caplog.text


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_a_method_that_is_not_there_or_raises_is_one_line_and_the_envs_go_on(mode: str) -> None:
    trainer = trainer_of(env=HILL, vec_env_mode=mode)
    for row in trainer.iterations():
        if row["iteration"] == 1:
            with pytest.raises(UsageError, match="set_gravity"):
                trainer.call_envs("set_gravity", 1)
            with pytest.raises(UsageError, match=r"set_difficulty of env 'tests/Hill-v0': .*TypeError"):
                trainer.call_envs("set_difficulty")
    assert trainer.result().global_step == 768


def test_a_vector_env_has_its_own_methods() -> None:
    trainer = trainer_of(env="InvertedPendulum-v5")
    with pytest.raises(UsageError, match="MujocoBatchEnv has no method 'set_difficulty'"):
        trainer.call_envs("set_difficulty", 3)
    trainer.source._tape = object()  # type: ignore[assignment]
    assert trainer.call_envs("counters") == {}
    assert trainer.source._tape is None  # a recorded rollout would go on with what the method changed
    trainer.close()


def test_a_trainer_has_one_loop() -> None:
    trainer = Trainer(load_config(None, PPO))
    for _ in trainer.iterations():
        break
    with pytest.raises(UsageError, match="a run has one loop"):
        trainer.iterations()


def test_a_loop_in_a_variable_is_completed_by_close() -> None:
    trainer = Trainer(load_config(None, PPO))
    loop = trainer.iterations()
    next(loop)
    assert trainer.result().checkpoint is None
    trainer.close()
    saved = trainer.result().checkpoint
    assert saved is not None and saved.exists()


def test_a_number_logged_before_the_loop_does_not_hide_a_metric() -> None:
    trainer = Trainer(load_config(None, PPO))
    trainer.log({"global_step": -1.0, "mine": 3.0})
    for _ in trainer.iterations():
        break
    row = json.loads((trainer.run_dir / "metrics.jsonl").read_text().splitlines()[0])
    assert row["global_step"] > 0 and row["mine"] == 3.0


def test_numpys_false_stops_as_well() -> None:
    steps = []
    train(**PPO, on_iteration=lambda trainer, metrics: steps.append(1) or np.bool_(False))
    assert len(steps) == 1
