"""The table of metrics against what runs write and what the documentation says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from proxima import train
from proxima.envs.contract import Mirror, Reflection
from proxima.envs.mujoco.env import MujocoBatchEnv
from proxima.runs.layout import METRICS
from proxima.runs.metrics import TABLES, all_metrics, find_metric, tag, with_tables
from proxima.training import remote
from tests.envs.hidden_goal import HIDDEN_GOAL, saved, straight
from tests.training.fake_cluster import FakeCluster

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SMALL = {"num_envs": 2, "num_threads": 1, "compile": "off", "tensorboard": False, "quiet": True, "hidden_sizes": [8]}
PPO = SMALL | {"num_steps": 32, "minibatch_size": 16, "update_epochs": 1, "total_timesteps": 128}
DQN = SMALL | {"algorithm": "DQN", "learning_starts": 8, "iteration_steps": 64, "total_timesteps": 128}


def small_actions(minibatch: Any, outputs: Any) -> Any:
    """A term of the loss."""
    return outputs.distribution.mode().square().mean()


RUNS: dict[str, dict[str, Any]] = {
    "PPO": PPO | {"env": "CartPole-v1"},
    "DQN": DQN | {"env": "CartPole-v1"},
    "held": PPO | {"env": "InvertedPendulum-v5", "action_hold_seconds": 0.08},
    "recurrent": PPO | {"env": "CartPole-v1", "rnn": "gru", "rnn_size": 8, "bptt_length": 8, "minibatch_size": 4},
    "evaluated": PPO
    | {"env": "proxima/PixelCatch-v0", "env_kwargs": {"drops": 1, "image_size": 36}, "cnn_features": 8}
    | {"eval_every": 64, "eval_episodes": 2},
    "distillation": PPO | {"env": HIDDEN_GOAL, "algorithm": "distillation"},
    "symmetric": PPO | {"env": "InvertedPendulum-v5", "symmetry": "loss"},
    "quadruped": PPO | {"env": "proxima/Quadruped-v0", "env_kwargs": {"ground": {"kind": "plane"}}},
    "own": PPO | {"env": "Hopper-v5", "log_info": ["x_velocity"], "extra_loss": small_actions},
    "muscles": PPO | {"env_file": "base_lonly", "env_kwargs": {"hidden_sizes": [4]}, "muscle_batch_size": 16},
    "workers": PPO | {"env": "CartPole-v1", "rollout_workers": 2, "overlap": True},
}
TABLES_OF = {
    "PPO": {"progress", "speed", "learning", "PPO"},
    "DQN": {"progress", "speed", "learning", "DQN"},
    "held": {"progress", "speed", "learning", "PPO", "held actions"},
    "recurrent": {"progress", "speed", "learning", "PPO"},
    "evaluated": {"progress", "speed", "learning", "PPO", "evaluation"},
    "distillation": {"progress", "speed", "learning", "distillation"},
    "symmetric": {"progress", "speed", "learning", "PPO"},
    "quadruped": {"progress", "speed", "learning", "PPO"},
    "own": {"progress", "speed", "learning", "PPO"},
    "muscles": {"progress", "speed", "learning", "PPO", "muscles"},
    "workers": {"progress", "speed", "learning", "PPO", "rollout workers"},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Names of the metrics that each run wrote."""
    folder = tmp_path_factory.mktemp("runs")
    found = {}
    teacher = {"distillation": {"teacher": str(saved(folder / "teacher", *straight()))}}
    pendulum = Mirror({"obs": Reflection((0, 1, 2, 3), (-1,) * 4)}, action=Reflection((0,), (-1,)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MujocoBatchEnv, "mirror", pendulum)
        patch.setattr(remote, "Cluster", FakeCluster)
        for kind, own in RUNS.items():
            options = own | teacher.get(kind, {})
            rows = (train(runs_dir=folder, name=kind, **options).run_dir / METRICS).read_text().splitlines()
            found[kind] = {name for row in rows for name in json.loads(row)}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_every_metric_of_a_run_is_in_the_table(written: dict[str, set[str]], kind: str) -> None:
    allowed = [metric for table in TABLES_OF[kind] for metric in TABLES[table]]
    assert not {name for name in written[kind] if find_metric(name) not in allowed}


@pytest.mark.slow
def test_every_metric_of_the_table_is_written_by_some_run(written: dict[str, set[str]]) -> None:
    names = set().union(*written.values())
    names.add("contact_overflows")  # of MuJoCo Warp, which takes a minute to start: tests/envs/physics has it
    assert set(all_metrics()) == {find_metric(name) for name in names}


def test_the_tables_of_the_page_are_those_of_the_package() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_tables(text) == text, "write it again: python -m proxima.runs.metrics docs/metrics.md"
    assert re.findall("<!-- table: (.+?) -->", text) == list(TABLES)


def test_a_name_of_its_own_comes_before_a_family() -> None:
    names = [metric.name for metric in all_metrics()]
    assert len(names) == len(set(names))
    for name in ("episode_success", "eval_return_std", "episode_return_min"):
        assert find_metric(name).name == name  # type: ignore[union-attr]
    assert find_metric("episode_x_pos").name == "episode_<name>"  # type: ignore[union-attr]
    assert find_metric("episode_") is None and find_metric("my_loss") is None


def test_the_axis_has_no_tag_and_a_foreign_metric_has_one() -> None:
    assert (tag("iteration"), tag("global_step"), tag("my_loss")) == (None, None, "update/my_loss")
