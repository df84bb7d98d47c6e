"""Held actions through the whole stack: values that are known, schedules, and what looks at a policy afterwards."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from rich.console import Console

from proxima import load_policy, train
from proxima.cli import main
from proxima.config import load_config
from proxima.envs.action_hold import ActionHold, Hold
from proxima.errors import UsageError
from proxima.evaluation.episodes import evaluate
from proxima.evaluation.video import _play
from proxima.runs import checkpoint
from proxima.training.hold_schedule import HoldSchedule
from proxima.training.trainer import Trainer
from tests import probes

GAMMA = 0.8
SMALL = {
    "env": "Hopper-v5",
    "num_envs": 4,
    "num_steps": 16,
    "minibatch_size": 32,
    "update_epochs": 2,
    "tensorboard": False,
    "progress": False,
    "compile": "off",
}


@pytest.fixture(autouse=True)
def probe_envs() -> None:
    probes.register()


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


# ---- what is learned


def learned_values(**options: Any) -> list[float]:
    """V(0) and V(1) of the chain after some fifty iterations."""
    chain = {"gamma": GAMMA, "lr_schedule": "linear", "compile": "off"}
    policy = probes.learn("ProbeChain-v0", options.pop("total_timesteps", 36_000), **(chain | options))
    return policy.value({"obs": torch.tensor([[0.0], [1.0]])}).tolist()


@pytest.mark.slow
def test_a_chain_whose_last_hold_is_cut_short_has_its_true_values() -> None:
    """Three steps of nothing, then two that pay 1: the second hold of three ends after two."""
    found = learned_values(action_hold_seconds=3, env_kwargs={"pay": 2})
    assert found == pytest.approx([GAMMA**3 * (1 + GAMMA), 1 + GAMMA], abs=0.05)


@pytest.mark.slow
def test_without_smdp_the_same_chain_has_the_values_of_another_problem() -> None:
    found = learned_values(action_hold_seconds=3, env_kwargs={"pay": 2}, smdp=False)
    assert found == pytest.approx([GAMMA * 2, 2], abs=0.05)


@pytest.mark.slow
def test_a_time_limit_in_mid_hold_is_bootstrapped_by_the_steps_that_were_taken() -> None:
    """Holds end after steps 3, 6, 9 and, by the limit, 11."""
    assert learned_values(action_hold_seconds=3) == pytest.approx([GAMMA**3 * 5, 5], abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("smdp", "value"), [(True, 1 / (1 - GAMMA)), (False, 2 / (1 - GAMMA))])
def test_random_durations_do_not_change_a_value_that_is_discounted_by_time(smdp: bool, value: float) -> None:
    """Two steps a decision on average: per decision, reward and value are twice what they should be."""
    _, found = learned_values(action_hold_random=[1, 3], env_kwargs={"wait": 0}, max_episode_steps=50, smdp=smdp)
    assert found == pytest.approx(value, rel=0.04)


# ---- exactness


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["batch", "sync"])
def test_a_hold_that_comes_to_one_step_trains_to_the_same_bits(mode: str) -> None:
    options = SMALL | {"env": "HalfCheetah-v5", "vec_env_mode": mode, "total_timesteps": 64 * 4}
    plain = train(**options, name="plain")
    for number, held in enumerate(({"action_hold_seconds": 0.05}, {"action_hold_random": [0.0, 0.06]})):
        result = train(**options, **held, name=f"held{number}")
        for name in ("agent.pt", "optimizer.pt"):
            one, two = checkpoint.read(plain.checkpoint, name), checkpoint.read(result.checkpoint, name)
            assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.slow
def test_every_back_end_trains_to_the_same_bits() -> None:
    held = {"action_hold_start_seconds": 0.06, "action_hold_end_seconds": 0.01, "max_episode_steps": 50}
    results = [
        train(**SMALL, **held, total_timesteps=2000, vec_env_mode=mode, name=mode)
        for mode in ("batch", "sync", "async")
    ]
    first, *others = (checkpoint.read(result.checkpoint, "agent.pt") for result in results)
    assert all(torch.equal(first[key], other[key]) for other in others for key in first)


# ---- the schedule


def schedule(step_seconds: float | None = 0.05, **options: Any) -> HoldSchedule:
    return HoldSchedule(load_config(None, options), step_seconds)


def test_the_hold_goes_down_in_a_line_and_stays_there() -> None:
    held = schedule(action_hold_start_seconds=0.3, action_hold_end_seconds=0.05, action_hold_fraction=0.5)
    assert [held.at(x).low for x in (0.0, 0.1, 0.25, 0.4, 0.5, 1.0)] == [6, 5, 4, 2, 1, 1]
    assert held.seconds(0.25) == (pytest.approx(0.175), pytest.approx(0.175))
    assert held.at(0.0) == Hold(6, 6, 0.99)
    still = schedule(action_hold_start_seconds=0.3, action_hold_end_seconds=0.05, action_hold_anneal=False)
    assert {still.at(x).low for x in (0.0, 0.5, 1.0)} == {6}


def test_smdp_decides_how_rewards_add_up() -> None:
    assert schedule(action_hold_seconds=0.1, gamma=0.9).at(0.0) == Hold(2, 2, 0.9)
    assert schedule(action_hold_seconds=0.1, gamma=0.9, smdp=False).at(0.0) == Hold(2, 2, 1.0)
    assert schedule(action_hold_random=[0.05, 0.2]).at(0.0) == Hold(1, 4, 0.99)


def test_policy_steps_are_estimated_for_whether_compilation_pays() -> None:
    assert schedule().steps_per_action() == 1.0
    assert schedule(action_hold_seconds=0.3).steps_per_action() == pytest.approx(6)
    annealed = schedule(action_hold_start_seconds=0.3, action_hold_end_seconds=0.05).steps_per_action()
    assert annealed == pytest.approx(5 / np.log(6), rel=0.05)  # 1 / mean(1 / k), were k not rounded
    trainer = Trainer(load_config(None, SMALL | {"total_timesteps": 64 * 130, "action_hold_seconds": 0.1}))
    trainer.close()
    assert round(trainer.parts.num_policy_steps / trainer.config.rollout_size) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action_hold_start_seconds": 0.3}, "action_hold_end_seconds is not: give both"),
        ({"action_hold_end_seconds": 0.3}, "action_hold_start_seconds is not: give both"),
        (
            {"action_hold_seconds": 0.1, "action_hold_start_seconds": 0.3, "action_hold_end_seconds": 0.1},
            "action_hold_seconds and action_hold_start_seconds are set, but an action has one hold",
        ),
        (
            {"action_hold_random": [0.1, 0.2], "action_hold_start_seconds": 0.3, "action_hold_end_seconds": 0.1},
            "action_hold_start_seconds and action_hold_random are set",
        ),
        ({"action_hold_seconds": 0.1, "action_hold_fraction": 0.5}, "no start and end of the hold"),
        ({"action_hold_anneal": False}, "no start and end of the hold"),
        ({"action_hold_random": [0.2, 0.1]}, "the shortest and the longest hold in seconds"),
        ({"action_hold_random": 0.2}, "the shortest and the longest hold in seconds"),
    ],
)
def test_contradictions_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        schedule(**options)


def test_an_env_without_time_cannot_hold_for_seconds() -> None:
    with pytest.raises(UsageError, match="ProbeConstant-v0: it does not say how long a step takes"):
        train(**(SMALL | {"env": "ProbeConstant-v0"}), total_timesteps=64, action_hold_seconds=0.1)
    assert not Path("runs").exists()
    assert schedule(None).at(0.5) == Hold(gamma=0.99)


# ---- what is seen


def test_the_log_counts_env_steps_and_decisions(capsys: pytest.CaptureFixture[str]) -> None:
    options = SMALL | {"env": "HalfCheetah-v5", "total_timesteps": 64 * 12}
    held = {"action_hold_start_seconds": 0.3, "action_hold_end_seconds": 0.05}
    console = Console(record=True, width=400)
    result = train(**options, **held, console=console)
    found = rows(result.run_dir)
    assert [row["global_step"] for row in found[:2]] == [64 * 6, 64 * 6 + 64 * 4]  # half way the hold is 0.175 s
    assert [row["decisions"] for row in found] == [64 * (i + 1) for i in range(len(found))]
    assert [row["action_hold_steps"] for row in found[:2]] == [6, 4]
    assert [row["action_hold_seconds"] for row in found[:2]] == pytest.approx([0.3, 0.175])
    assert all(row["decisions_per_second"] > 0 for row in found)
    assert "actions held for 0.3 -> 0.05 s (6 -> 1 env steps)" in console.export_text()
    assert not any("decision" in name or "hold" in name for name in rows(train(**options, name="plain").run_dir)[0])


@pytest.mark.slow
def test_a_policy_is_evaluated_with_the_hold_it_had(capsys: pytest.CaptureFixture[str]) -> None:
    held = {"action_hold_start_seconds": 0.04, "action_hold_end_seconds": 0.024}
    result = train(**SMALL, **held, total_timesteps=64 * 12)
    hold = load_policy(result.run_dir).hold
    assert hold == Hold(3, 3, 0.99) and rows(result.run_dir)[-1]["action_hold_steps"] == 3
    for episode in evaluate(result.run_dir, episodes=5, trace=True).episodes:
        assert episode.trace is not None
        assert set(episode.trace.duration[:-1]) <= {3} and 1 <= episode.trace.duration[-1] <= 3
        assert episode.trace.duration.sum() == episode.length
    assert main(["evaluate", str(result.run_dir), "--episodes", "3", "--analyze-value", "--analyze-policy"]) == 0
    assert "actions held for 3 env steps" in capsys.readouterr().out


@pytest.mark.slow
def test_a_video_shows_every_step_and_asks_for_an_action_at_every_decision() -> None:
    asked: list[int] = []

    def act(obs: dict[str, np.ndarray]) -> int:
        asked.append(frames)
        return 0

    frames = 0
    env = gym.make("CartPole-v1", max_episode_steps=8)
    for _ in _play(env, act, seed=0, length=16, hold=Hold(3, 3)):
        frames += 1
    # One frame a reset, one a step; the hold that the time limit cuts after two steps ends with the episode.
    assert asked == [1, 4, 7, 10, 13, 16]
    assert frames == 16 + 2


def test_flags_reach_the_envs(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env", "Hopper-v5", "--total-timesteps", "128", "--num-envs", "2", "--num-steps", "16"]
    flags += ["--minibatch-size", "16", "--save-checkpoint", "False", "--tensorboard", "off"]
    assert main(["train", *flags, "--action-hold-random", "0.008", "0.04", "--smdp", "False"]) == 0
    assert "actions held for 0.008 to 0.04 s (1 to 5 env steps)" in capsys.readouterr().err


@pytest.mark.slow
def test_bench_counts_env_steps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxima.training.bench._CEILING_SECONDS", 0.05)
    flags = ["--env", "HalfCheetah-v5", "--num-envs", "2", "--num-steps", "16", "--minibatch-size", "16"]
    assert main(["bench", *flags, "--seconds", "0.05", "--compile", "off", "--action-hold-seconds", "0.2"]) == 0
    assert "iterations of 128 steps" in capsys.readouterr().out


@pytest.mark.slow
def test_an_anneal_that_a_longer_run_takes_back_is_told(caplog: pytest.LogCaptureFixture) -> None:
    options = {"env": "Hopper-v5", "num_envs": 2, "num_steps": 16, "minibatch_size": 16, "compile": "off"}
    held = {"action_hold_start_seconds": 0.08, "action_hold_end_seconds": 0.01, "tensorboard": False}
    half = train(**options, **held, total_timesteps=2000)
    train(resume_from=half.run_dir, total_timesteps=8000)
    assert "The hold goes from 1 back to 8 env steps" in caplog.text


@pytest.mark.parametrize("steps", [2.7, True, "x", None, (1, 2, 3), 10**9])
def test_a_hold_that_is_no_number_of_steps_is_refused(steps: Any) -> None:
    with pytest.raises(UsageError):
        ActionHold(gym.make("CartPole-v1"), steps)
