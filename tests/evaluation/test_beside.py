"""Two policies side by side: the same envs, episode k of both from the same seed."""

import json
from pathlib import Path

import pytest

from proxima.cli import main
from proxima.errors import UsageError
from proxima.evaluation.beside import evaluate_beside
from proxima.evaluation.episodes import MOST_ENVS, evaluate
from tests.envs.hidden_goal import saved, straight, untrained
from tests.resealed import tiny


@pytest.fixture
def student(tmp_path: Path) -> Path:
    """It sees `view`, which the other does not."""
    return saved(tmp_path / "student", *untrained(encoders={"state": {"use": "none"}}))


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return saved(tmp_path / "teacher", *straight())


def test_a_policy_beside_itself_differs_in_nothing(teacher: Path) -> None:
    pair = evaluate_beside(teacher, teacher, episodes=MOST_ENVS + 6, seed=3)
    assert pair.policy.episodes == pair.beside.episodes and len(pair.policy.episodes) == MOST_ENVS + 6
    assert len({episode.return_ for episode in pair.policy.episodes}) == MOST_ENVS + 6


def test_every_episode_starts_from_its_own_seed(student: Path, teacher: Path) -> None:
    pair = evaluate_beside(student, teacher, episodes=MOST_ENVS + 6, seed=3)
    for path, found in ((student, pair.policy), (teacher, pair.beside)):
        for k in (0, 1, MOST_ENVS, MOST_ENVS + 5):
            (alone,) = evaluate(path, episodes=1, seed=3 + k).episodes
            assert found.episodes[k].return_ == pytest.approx(alone.return_, rel=1e-5)
            assert found.episodes[k].length == alone.length


def test_the_table_has_means_and_paired_differences(student: Path, teacher: Path) -> None:
    pair = evaluate_beside(student, teacher, episodes=8)
    head, *paths, columns, return_, length, distance = pair.text().splitlines()
    assert "episode k of both starts from seed 0 + k" in head and str(student) in paths[0] and str(teacher) in paths[1]
    assert columns.split() == ["policy", "beside", "difference", "95%", "interval"]
    name, ours, theirs, difference, low, _, high = return_.split()
    assert name == "return" and float(ours) == pytest.approx(pair.policy.returns.mean, rel=1e-3)
    assert float(difference) == pytest.approx(float(ours) - float(theirs), abs=0.02)
    assert float(low) < float(difference) < float(high) < 0, "the teacher is better"
    assert length.split()[3:] == ["0", "0", "to", "0"] and distance.startswith("distance")
    assert "too few" in evaluate_beside(student, teacher, episodes=2).text()


def test_the_command_compares_in_the_env_of_the_first(
    student: Path, teacher: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", str(student), "--beside", str(teacher), "--episodes", "3", "--seed", "5"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["policy"]["checkpoint"] == str(student) and found["beside"]["checkpoint"] == str(teacher)
    assert len(found["beside"]["returns"]) == 3 and found["beside"]["seed"] == 5
    assert main(command) == 0 and "difference" in capsys.readouterr().out
    assert main([*command, "--analyze-policy"]) != 0
    assert "--beside compares two policies" in capsys.readouterr().err


def test_a_policy_of_another_env_is_refused(student: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not fit the policy: its observation 'obs' is missing"):
        evaluate_beside(student, tiny(tmp_path / "other"))
