"""What people see of a run, whatever its algorithm writes."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from proxima.config import TrackOptions
from proxima.track.tracker import Tracker, summary

COMMON = {"iteration": 1.0, "global_step": 100.0, "steps_per_second": 1234.0, "episode_return": 5.0}
PPO = {"approx_kl": 0.0123, "clip_fraction": 0.1, "explained_variance": 0.9}
DQN = {"q_loss": 0.25, "epsilon": 0.1, "q_mean": 3.0}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (PPO, "1,234 steps/s return 5.0 approx_kl 0.0123 clip_fraction 0.10 explained_variance 0.90"),
        (DQN, "1,234 steps/s return 5.0 q_loss 0.25 epsilon 0.100"),
        ({}, "1,234 steps/s return 5.0"),
    ],
)
def test_the_summary_is_of_what_there_is(own: dict[str, float], expected: str) -> None:
    assert summary(COMMON | own) == expected


def test_metrics_without_those_of_ppo_are_written_and_shown(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    options = TrackOptions(tensorboard=False, progress=True, log_every=1)
    tracker = Tracker(tmp_path, options, total_steps=1000, first_step=0, console=console)
    tracker.write(COMMON | DQN | {"episode_x_pos": float("nan")})
    tracker.close(COMMON | DQN)
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["episode_x_pos"] is None
    assert "q_loss" in console.file.getvalue()  # type: ignore[attr-defined]
