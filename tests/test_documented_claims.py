"""Claims of the documentation that have been wrong before, against what is true."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from proxima import train
from proxima.config.presets import preset_for
from proxima.evaluation.statistics import Summary

ROOT = Path(__file__).parent.parent


def test_only_rows_with_an_evaluation_have_its_numbers() -> None:
    small = {"num_envs": 2, "num_steps": 16, "minibatch_size": 16, "total_timesteps": 96, "update_epochs": 1}
    result = train(
        env="CartPole-v1", compile="off", tensorboard=False, progress=False, eval_every=64, eval_episodes=2, **small
    )
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["eval_return"] is not None for row in rows] == [False, True, False]
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert "of the latest evaluation" not in text and "`null` in all other rows" in text


@pytest.mark.slow
def test_load_policy_imports_what_the_documentation_says() -> None:
    small = {"num_envs": 2, "num_steps": 16, "minibatch_size": 16, "total_timesteps": 32, "update_epochs": 1}
    result = train(env="CartPole-v1", compile="off", tensorboard=False, progress=False, **small)
    code = f"import sys; from proxima import load_policy; load_policy({str(result.run_dir)!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.startswith("proxima.envs.")} == {"proxima.envs.action_hold"}
    assert not any(name.startswith(("proxima.training", "mujoco", "tensorboard")) for name in loaded)
    assert {"torch", "numpy", "gymnasium", "yaml"} <= loaded
    text = (ROOT / "docs" / "evaluate.md").read_text()
    assert "imports nothing of the trainer or the envs" not in text and "`proxima.envs.action_hold`" in text


def test_the_speed_in_the_readme_is_against_the_best_of_sb3() -> None:
    rows = re.findall(r"2x256 \|.*SB3.*\*\*([\d.]+)\*\*", (ROOT / "benchmarks" / "throughput.md").read_text())
    least = min(map(float, rows))
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"{least:.1f} times with 2x256" in text and "nearly three times" not in text


def test_presets_reach_what_the_records_say() -> None:
    groups: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in (ROOT / "benchmarks" / "returns").glob("*.json"):
        record = json.loads(path.read_text())
        if "evaluated_success" not in record and "ALE/" not in record["command"]:
            groups[record["task"]].append(record)
    for task, records in groups.items():
        env, steps = task.rsplit("-", 1)
        preset = preset_for(env, "PPO")
        assert preset is not None
        claims = re.findall(r"(?:(\w+) )?(-?[\d,.]+) at (\w+)(?: steps)? \((-?[\d,.]+)", preset.reaches)
        (claim,) = (c for c in claims if c[2] == steps and (not c[0] or env.startswith(c[0])))
        for written, kind in ((claim[1], "final_return"), (claim[3], "evaluated_return")):
            digits = len(written.partition(".")[2])
            reached = Summary.of([r[kind] for r in records]).iqm
            assert float(written.replace(",", "")) == pytest.approx(reached, abs=0.51 * 10**-digits), (task, kind)
