"""Numbers from the env's `info` as metrics: right means on every back end, and nothing else changes."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxima import make_env, train
from proxima.errors import UsageError
from proxima.runs import checkpoint
from tests.training.hill_env import HILL, register
from tests.training.runs import SMALL, TIMES, assert_same_end, same

HILLS = SMALL | {"env": HILL, "vec_env_mode": "sync", "total_timesteps": 512, "spread_episodes": False}
KEYS = ["x_position", "x_velocity", "reward_forward", "reward_ctrl", "reward_survive"]


@pytest.fixture(autouse=True)
def hill() -> None:
    register()


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_a_number_of_every_step_and_one_of_the_last(caplog: pytest.LogCaptureFixture) -> None:
    result = train(**HILLS | {"num_steps": 10, "minibatch_size": 8}, log_info="count,sometimes,note,absent")
    row = rows(result.run_dir)[0]  # two episodes of each env
    assert (row["info_count"], row["info_sometimes"]) == (3.0, 3.0)
    assert (row["episode_count"], row["episode_sometimes"]) == (5.0, 3.0)
    assert row["info_note"] is None and row["info_absent"] is None and row["episode_absent"] is None
    said = "log_info: the info of the first episodes had no number absent and no number note."
    assert [record.message for record in caplog.records].count(said) == 1


def test_a_mean_is_of_one_iteration_and_of_every_held_step() -> None:
    env = make_env(HILL, num_envs=2, mode="sync", log_info=["count"])
    env.hold = type(env.hold)(2, 2)
    env.reset(seed=0)
    env.step(torch.zeros(2, dtype=torch.long))
    assert env.take_info() == {"count": 1.5}
    env.step(torch.zeros(2, dtype=torch.long))
    assert env.take_info() == {"count": 3.5}
    assert math.isnan(env.take_info()["count"])
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["Hopper-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "Swimmer-v5", "Ant-v4"])
@pytest.mark.parametrize("hold", [1, 3])
def test_batch_mode_has_the_numbers_of_gymnasium(env_id: str, hold: int) -> None:
    keys = KEYS[:2] if env_id.endswith("v4") else KEYS[: 4 if env_id in ("HalfCheetah-v5", "Swimmer-v5") else 5]
    keys = [*keys, "reward_contact"] if env_id in ("Ant-v5", "Humanoid-v5") else keys
    envs = [make_env(env_id, num_envs=3, mode=mode, log_info=keys) for mode in ("batch", "sync", "async")]
    for env in envs:
        env.hold = type(env.hold)(hold, hold)
        env.reset(seed=4)
    generator, ended = np.random.default_rng(0), 0
    low, high = envs[0].action_space.low, envs[0].action_space.high
    for _ in range(100):
        action = generator.uniform(low, high, (3, envs[0].action_space.shape[0])).astype(np.float32)
        batch, *others = [env.step(torch.from_numpy(action)) for env in envs]
        for name in keys:
            for row in batch.ended.nonzero().flatten().tolist():
                ended += 1
                expected = [float(other.episodes.info[name][row]) for other in others]
                assert expected == pytest.approx([float(batch.episodes.info[name][row])] * 2, rel=1e-9, abs=1e-12)
    means, *others = [env.take_info() for env in envs]
    assert all(means == pytest.approx(other, rel=1e-9, abs=1e-12) for other in others)
    assert others[0] == others[1] and ended >= (
        0 if env_id in ("HalfCheetah-v5", "Swimmer-v5", "Ant-v4", "Ant-v5") else 1
    )
    for env in envs:
        env.close()


def test_what_is_not_there_is_refused_in_batch_mode() -> None:
    with pytest.raises(UsageError, match=r"log_info is tendon, but in batch mode Hopper-v5 has x_position, x_velocity"):
        make_env("Hopper-v5", log_info=["tendon"])
    with pytest.raises(UsageError, match="has no info: leave it out"):
        make_env("proxima/Recall-v0", log_info=["x"])


@pytest.mark.parametrize(
    "options",
    [HILLS, pytest.param(SMALL | {"env": "Hopper-v5", "total_timesteps": 512}, marks=pytest.mark.slow)],
    ids=["sync", "batch"],
)
def test_it_changes_nothing_and_resumes_to_the_bit(options: dict[str, Any]) -> None:
    key = "count" if options["env"] == HILL else "x_velocity"
    plain = train(**options)
    whole = train(**options, log_info=key, checkpoint_freq=1, keep_checkpoints="all")
    for before, after in zip(rows(plain.run_dir), rows(whole.run_dir), strict=True):
        assert after.keys() - before.keys() == {f"info_{key}", f"episode_{key}"}
        assert all(after[name] == before[name] for name in before.keys() - TIMES)
    assert same(*(checkpoint.read(run.checkpoint, "agent.pt") for run in (plain, whole)))
    resumed = train(resume_from=checkpoint.list_checkpoints(whole.run_dir)[1])
    assert_same_end(whole.checkpoint, resumed.checkpoint)
    again = [row[f"info_{key}"] for row in rows(resumed.run_dir)]
    assert again == [row[f"info_{key}"] for row in rows(whole.run_dir)][2:]
