"""The commands as functions: they return numbers, print nothing, and their results are one line."""

import subprocess
import sys
from pathlib import Path

import pytest

import proxima
import proxima.runs.checkpoint
from proxima.errors import UsageError
from tests.training.runs import SMALL

OPTIONS = SMALL | {"env": "CartPole-v1", "total_timesteps": 256, "quiet": True}


def test_train_evaluate_and_compare_return_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    result = proxima.train(**OPTIONS)
    other = proxima.train(**OPTIONS, seed=2)
    found = proxima.evaluate(result.run_dir, episodes=3, seed=1)
    assert len(found.episodes) == 3 and found.returns.mean == sum(e.return_ for e in found.episodes) / 3
    both = proxima.compare(f"one={result.run_dir}", f"two={other.run_dir}")
    assert [one.group.label for one in both.results] == ["one", "two"]
    assert not any(capsys.readouterr()) and not Path("comparison").exists()
    for text in map(repr, (result, found, both)):
        assert "\n" not in text and len(text) < 300
    assert repr(result).startswith("TrainResult(CartPole-v1, 256 steps, return ")
    assert repr(found).startswith("Evaluation(CartPole-v1, 3 episodes, return ")
    assert repr(both).startswith("Comparison(final training return: one ")


def test_the_best_checkpoint_can_be_asked_for() -> None:
    result = proxima.train(**OPTIONS | {"total_timesteps": 640}, checkpoint_freq=1, keep_checkpoints="all")
    folders = proxima.runs.checkpoint.list_checkpoints(result.run_dir)
    best = max(folders, key=lambda path: proxima.runs.checkpoint.Checkpoint(path).episode_return)
    assert proxima.evaluate(result.run_dir, episodes=1, best=True).checkpoint == str(best)


@pytest.mark.slow
def test_compare_writes_a_page_only_if_asked(tmp_path: Path) -> None:
    result = proxima.train(**OPTIONS)
    proxima.compare(result.run_dir, out=tmp_path / "page")
    assert (tmp_path / "page" / "index.html").exists()
    with pytest.raises(UsageError, match="at least one run"):
        proxima.compare()


@pytest.mark.slow
def test_record_returns_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = proxima.train(**OPTIONS)
    assert proxima.record(result.run_dir, out=tmp_path / "a.mp4", length=5) == tmp_path / "a.mp4"
    default = proxima.record(result.run_dir, length=5)
    assert default.parent == result.run_dir / "videos" and default.stat().st_size > 0
    assert not any(capsys.readouterr())


@pytest.mark.slow
@pytest.mark.parametrize("first", ["import proxima.evaluation.policy", "from proxima import evaluate"])
def test_evaluate_is_callable_before_and_after_the_import_of_the_package_of_its_name(first: str) -> None:
    code = (
        f"{first}\nimport proxima, proxima.evaluation.video\nfrom proxima import evaluate, record, compare, Trainer\n"
        "try: evaluate('nowhere')\nexcept proxima.errors.UsageError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "nowhere does not exist" in done.stdout
