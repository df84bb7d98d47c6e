"""Analyses of episodes whose true values are known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxima import train
from proxima.cli import main
from proxima.evaluation.episodes import Episode, Trace
from proxima.evaluation.policy_analysis import PolicyAnalysis
from proxima.evaluation.value_analysis import ValueAnalysis, discounted_returns
from proxima.nets.spec import ActionSpec


def episode(
    reward: list[float],
    value: list[float] | np.ndarray,
    *,
    terminated: bool = True,
    final_value: float = 0.0,
    action: np.ndarray | None = None,
    duration: list[int] | None = None,
) -> Episode:
    size = len(reward)
    trace = Trace(
        obs={"obs": np.zeros((size, 1))},
        action=np.zeros((size, 1)) if action is None else action,
        reward=np.array(reward),
        duration=np.ones(size, int) if duration is None else np.array(duration),
        value=np.array(value),
        entropy=np.ones(size),
        final_value=final_value,
    )
    return Episode(sum(reward), int(trace.duration.sum()), terminated, None, trace)


def test_returns_by_hand() -> None:
    assert discounted_returns(episode([1, 2, 4], [0, 0, 0]), gamma=0.5).tolist() == [3.0, 4.0, 4.0]
    cut = episode([1, 2, 4], [0, 0, 0], terminated=False, final_value=8.0)
    assert discounted_returns(cut, gamma=0.5).tolist() == [4.0, 6.0, 8.0]


def test_returns_of_held_actions_by_hand() -> None:
    held = episode([1, 2, 4], [0, 0, 0], terminated=False, final_value=8.0, duration=[1, 3, 2])
    last = 4 + 0.5**2 * 8
    assert discounted_returns(held, gamma=0.5).tolist() == [1 + 0.5 * (2 + 0.5**3 * last), 2 + 0.5**3 * last, last]
    assert discounted_returns(held, gamma=0.5, smdp=False).tolist() == [4.0, 6.0, 8.0]
    assert ValueAnalysis.of([held], gamma=0.5).to_end.tolist() == [5, 2, 0]


def test_a_perfect_critic_and_one_that_overestimates() -> None:
    reward = [1.0, 0.0, 3.0, 1.0, 2.0]
    truth = discounted_returns(episode(reward, np.zeros(5)), gamma=0.9)
    perfect = ValueAnalysis.of([episode(reward, truth)], gamma=0.9)
    assert perfect.explained_variance == pytest.approx(1.0) and perfect.bias == pytest.approx(0.0)
    assert perfect.calibration == (pytest.approx(1.0), pytest.approx(0.0))
    # Value = 2 * return + 3, so return = 0.5 * value - 1.5.
    hopeful = ValueAnalysis.of([episode(reward, 2 * truth + 3)], gamma=0.9)
    assert hopeful.calibration == (pytest.approx(0.5), pytest.approx(-1.5))
    assert hopeful.bias == pytest.approx(truth.mean() + 3)
    assert "overestimates" in hopeful.lines()[1] and "exaggerates" in hopeful.lines()[3]
    assert len(hopeful.lines()) == 5


def test_errors_are_assigned_to_their_distance_from_the_end() -> None:
    value = np.zeros(100)
    value[-1] = 7.0  # wrong at the very last step only: the return there is 0
    analysis = ValueAnalysis.of([episode([0.0] * 100, value)], gamma=0.99)
    _, mean, rmse = analysis.error_by_time_to_end()
    assert mean[0] > 0 and rmse[0] > 0 and not mean[1:].any() and not rmse[1:].any()
    assert "larger near the end" in analysis.lines()[4]


def test_saturation_and_roughness_by_hand() -> None:
    action = np.array([[1.0, 0.0], [-1.0, 0.1], [1.0, 0.2], [0.0, 0.3]])
    spec = ActionSpec("box", (2,), (-1.0, -1.0), (1.0, 1.0))
    found = PolicyAnalysis.of([episode([0.0] * 4, [0.0] * 4, action=action)], spec)
    assert found.saturation.tolist() == [0.75, 0.0]
    np.testing.assert_allclose(found.roughness, [(1 + 1 + 0.5) / 3, 0.05])


def test_discrete_choices() -> None:
    actions = [np.array([0, 2, 2, 1]), np.array([1, 1])]
    found = PolicyAnalysis.of(
        [episode([0.0] * len(a), [0.0] * len(a), action=a) for a in actions], ActionSpec("discrete", (3,))
    )
    assert found.discrete and found.roughness.tolist() == [0.5]  # two of three, none of one
    assert "It changes action 0 in 50% of its policy steps." in found.lines()


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_the_command_writes_a_page_that_needs_nothing_else(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"num_envs": 2, "num_steps": 64, "minibatch_size": 64, "total_timesteps": 256}
    result = train(env=env, compile="off", tensorboard=False, progress=False, **options)
    arguments = ["evaluate", str(result.run_dir), "--episodes", "3", "--analyze-value", "--analyze-policy"]
    assert main(arguments) == 0
    page = Path(capsys.readouterr().out.splitlines()[-1].removeprefix("report "))
    text = page.read_text()
    figures = {path.stem for path in page.parent.glob("*.png")}
    assert ("value-map" in figures) == (env == "Pendulum-v1")  # an angle and its velocity make a map
    assert figures >= {"value-calibration", "value-episodes", "value-error", "policy-actions", "policy-summary"}
    assert text.count("data:image/png;base64,") == len(figures) and "http" not in text


def test_returns_near_a_time_limit_are_left_out_of_the_error_by_time() -> None:
    # Gamma 0.9 has a horizon of ten steps: the last ten returns before a time limit are mostly the bootstrapped value.
    size = 40
    cut = episode([0.0] * size, [1.0] * size, terminated=False, final_value=1.0)
    analysis = ValueAnalysis.of([cut], gamma=0.9)
    assert analysis.bootstrapped.tolist() == [False] * (size - 10) + [True] * 10
    centre, _, _ = analysis.error_by_time_to_end()
    assert centre.min() >= 10
    ended = ValueAnalysis.of([episode([0.0] * size, [1.0] * size)], gamma=0.9)
    assert not ended.bootstrapped.any() and ended.error_by_time_to_end()[0].min() < 3


def test_words_fit_the_numbers() -> None:
    truth = discounted_returns(episode([1.0, 0.0, 3.0, 1.0, 2.0], np.zeros(5)), gamma=0.9)
    wrong_way = ValueAnalysis.of([episode([1.0, 0.0, 3.0, 1.0, 2.0], -truth)], gamma=0.9)
    assert "does not tell good states from bad ones" in wrong_way.lines()[3]
    steady = ValueAnalysis.of([episode([1.0] * 50, [9.9] * 50, terminated=False, final_value=10.0)], gamma=0.9)
    assert "hardly vary" in steady.lines()[0] and "1 episode," in steady.lines()[0]
    still = PolicyAnalysis.of(
        [episode([1.0] * 9, [1.0] * 9, action=np.ones((9, 1)))], ActionSpec("box", (1,), (-1.0,), (1.0,), shape=(1,))
    )
    assert "stays at its bounds" in still.lines()[2] and not any("least" in line for line in still.lines())
    chosen = np.array([0, 0, 0, 1])
    discrete = PolicyAnalysis.of(
        [episode([1.0] * 4, [1.0] * 4, action=chosen)], ActionSpec("discrete", (3,), start=(5,), dtype="int64")
    )
    assert discrete.action.ravel().tolist() == [5, 5, 5, 6] and (discrete.low[0], discrete.high[0]) == (5, 7)
    assert "Action 0 is 5 in 75%, 6 in 25% of its policy steps." in discrete.lines()


@pytest.mark.slow
def test_numbers_that_differ_by_rounding_alone_can_be_drawn(tmp_path: Path) -> None:
    from proxima.evaluation import plots

    action = np.float32(0.7) + np.spacing(np.float32(0.7)) * np.arange(3, dtype=np.float32)[:, None]
    nearly = episode([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], action=action)
    assert nearly.trace is not None
    nearly.trace.entropy = action[:, 0]
    analysis = PolicyAnalysis.of([nearly], ActionSpec("box", (1,), (-1.0,), (1.0,)))
    assert plots.action_distributions(analysis, tmp_path / "a.png").is_file()
    assert plots.action_summary(analysis, tmp_path / "b.png").is_file()


def test_changes_are_reported_by_dimension_and_not_as_a_mean_of_unlike_ones() -> None:
    # One key changes in 54 % of the policy steps and the other never: a mean of 27 % would describe neither.
    first = np.cumsum([0] + [1] * 54 + [0] * 46) % 2
    action = np.stack([first, np.zeros(101, int)], axis=1)
    found = PolicyAnalysis.of([episode([0.0] * 101, [0.0] * 101, action=action)], ActionSpec("multi_binary", (2,)))
    text = "\n".join(found.lines())
    assert not any("27%" in line for line in found.lines() if "changes" in line)
    assert "It changes action 0 in 54%, action 1 in 0% of its policy steps." in text
    wide = np.concatenate([action] + [np.zeros((101, 1), int)] * 9, axis=1)
    found = PolicyAnalysis.of([episode([0.0] * 101, [0.0] * 101, action=wide)], ActionSpec("multi_binary", (11,)))
    line = next(line for line in found.lines() if "changes" in line)
    assert line.startswith("It changes action 0 in 54%, ") and line.endswith("the other 7 in at most 0%.")


def test_shares_of_the_range_are_of_dimensions_that_have_one() -> None:
    inf = float("inf")
    action = np.stack([np.tile([-1.0, 1.0], 50), np.linspace(0.0, 9.0, 100), np.linspace(0.0, 0.1, 100)], axis=1)
    spec = ActionSpec("box", (3,), (-1.0, -inf, -1.0), (1.0, inf, 1.0))
    text = "\n".join(PolicyAnalysis.of([episode([0.0] * 100, [0.0] * 100, action=action)], spec).lines())
    assert "at a bound: most action 0 (100%), least action 2 (0%)" in text
    assert "a share of the range: most action 0 (100.0%), least action 2 (0.1%)" in text
    assert "rough" in text.lower()
    free = ActionSpec("box", (3,), (-inf,) * 3, (inf,) * 3)
    lines = PolicyAnalysis.of([episode([0.0] * 100, [0.0] * 100, action=action)], free).lines()
    assert not any("at a bound" in line.lower() or "of the range" in line for line in lines)
    assert any("most action 0 (2.0 std)" in line for line in lines)


@pytest.mark.parametrize(
    ("predicted", "said"),
    [
        ([3.0, 3.0, 3.0, 3.0], "The critic explains none of the variance"),
        ([3.001, 3.0, 3.0, 3.0], "The critic explains none of the variance"),
        ([-9.0, 5.0, -7.0, 3.0], "none of the variance of the discounted returns: it is worse than a constant"),
        ([2.0, 4.0, 6.0, 8.0], "The critic explains 100% of the variance"),
    ],
)
def test_explained_variance_is_never_minus_zero(predicted: list[float], said: str) -> None:
    analysis = ValueAnalysis.of([episode([-2.0, -2.0, -2.0, 8.0], predicted)], gamma=1.0)
    text = "\n".join(analysis.lines())
    assert said in text and "-0%" not in text and "-0.00" not in text and "nan" not in text


def test_returns_that_are_all_zero_have_no_variance_to_explain() -> None:
    analysis = ValueAnalysis.of([episode([0.0] * 20, [0.0] * 20)], gamma=0.9)
    text = "\n".join(analysis.lines())
    assert "no variance to explain" in text and "nan" not in text and "overestimates" not in text


def tick_labels(path: Path, monkeypatch: pytest.MonkeyPatch, draw: Any) -> list[str]:
    """All tick labels and offset texts of the figure that `draw(path)` saves."""
    from matplotlib.figure import Figure

    texts: list[str] = []
    save = Figure.savefig

    def spy(figure: Figure, *args: Any, **kwargs: Any) -> None:
        save(figure, *args, **kwargs)
        for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
            texts.extend([axis.get_offset_text().get_text(), *(t.get_text() for t in axis.get_ticklabels())])

    monkeypatch.setattr(Figure, "savefig", spy)
    draw(path)
    return [text for text in texts if text]


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.0, 0.7, 500.0, -1e6])
def test_figures_of_constants_have_readable_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: float) -> None:
    from proxima.evaluation import plots

    noise = np.spacing(level) * np.arange(30)  # constant but for rounding
    constant = episode([0.0] * 30, level + noise, action=(level + noise)[:, None], terminated=False, final_value=level)
    assert constant.trace is not None
    constant.trace.entropy = level + noise
    value = ValueAnalysis.of([constant], gamma=1.0)
    inf = float("inf")
    policy = PolicyAnalysis.of([constant], ActionSpec("box", (1,), (-inf,), (inf,)))
    seen = np.full((30, 2), level) + noise[:, None]
    for name, draw in {
        "actions": lambda path: plots.action_distributions(policy, path),
        "summary": lambda path: plots.action_summary(policy, path),
        "calibration": lambda path: plots.calibration(value, path),
        "episodes": lambda path: plots.along_episodes(value, path),
        "error": lambda path: plots.error_by_time(value, path),
        "map": lambda path: plots.value_map(lambda points: np.full(len(points), level), seen, ("x", "y"), path),
    }.items():
        labels = tick_labels(tmp_path / f"{name}.png", monkeypatch, draw)
        monkeypatch.undo()
        assert labels and not [label for label in labels if "e" in label or len(label) > 10], (name, labels)
