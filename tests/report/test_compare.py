"""Comparisons of runs with known metrics."""

from pathlib import Path

import numpy as np
import pytest

from proxima.cli import main
from proxima.errors import UsageError
from proxima.report.compare import table, write_comparison
from proxima.report.comparison import compare, extra_curves, improvement, probability_of_improvement
from proxima.report.runs import differing, load_groups, load_run
from tests.report.made_runs import write_run


def test_runs_that_differ_in_the_seed_alone_are_one_group(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / "a" / str(seed), returns=[1.0], seed=seed)
        write_run(tmp_path / "b" / str(seed), returns=[1.0], seed=seed, learning_rate=1e-4)
    groups = load_groups([str(tmp_path)])
    assert [(group.label, len(group.runs)) for group in groups] == [("a", 2), ("b", 2)]
    assert differing(groups) == ["learning_rate"]
    (named,) = load_groups([f"mine={tmp_path}"])
    assert (named.label, len(named.runs)) == ("mine", 4)


def test_groups_of_one_name_are_told_apart_by_their_options(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "1", returns=[1.0])
    write_run(tmp_path / "a" / "2", returns=[1.0], learning_rate=1e-4)
    labels = [group.label for group in load_groups([str(tmp_path / "a")])]
    assert labels == ["learning_rate 0.001", "learning_rate 0.0001"]


def test_a_resumed_run_is_one_history_with_its_ancestors(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a" / "1", returns=[1.0, 2.0, 3.0, 4.0])
    checkpoint = str(first / "a-00002-1115_101010")
    write_run(tmp_path / "a" / "2", returns=[30.0, 40.0], first_step=300, lineage=[checkpoint])
    ((run,),) = [group.runs for group in load_groups([str(tmp_path / "a")])]
    assert run.columns["global_step"].tolist() == [100, 200, 300, 400]
    assert run.columns["episode_return"].tolist() == [
        1,
        2,
        30,
        40,
    ]  # without the first run's iterations after the resume
    assert run.columns["wall_time"].tolist() == [1, 2, 3, 4]
    moved = (tmp_path / "a").rename(tmp_path / "elsewhere")
    assert load_run(moved / "2").columns["global_step"].tolist() == [100, 200, 300, 400]


def test_the_numbers_are_what_they_say(tmp_path: Path) -> None:
    rising = [None, *np.linspace(0.0, 18.0, 19)]  # 20 iterations to step 2,000
    write_run(tmp_path / "good" / "1", returns=rising)
    write_run(tmp_path / "good" / "2", returns=[None, *np.linspace(0.0, 36.0, 19)], seed=2)
    write_run(tmp_path / "flat" / "1", returns=[5.0] * 20, learning_rate=1e-4)
    found = compare(load_groups([str(tmp_path / "good"), str(tmp_path / "flat")]), threshold=12.0)
    good, flat = found.results
    # The last tenth of 2,000 steps is 1,800, 1,900 and 2,000.
    assert good.finals["training"] == pytest.approx([17.0, 34.0]) and good.final["training"].iqm == pytest.approx(25.5)
    assert good.area == pytest.approx((9.0 + 18.0) / 2) and flat.area == pytest.approx(5.0)
    assert (good.steps_to_threshold, good.seconds_to_threshold) == (pytest.approx(1100.0), pytest.approx(11.0))
    assert (flat.steps_to_threshold, flat.reached) == (None, 0)
    assert good.steps_per_second == pytest.approx(100.0) and good.seconds == 20.0 and good.success is None
    assert improvement(good, flat, "training") is None  # two seeds and one


def test_half_of_the_seeds_at_the_threshold_are_not_a_median(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "1", returns=[0.0, 9.0])
    write_run(tmp_path / "a" / "2", returns=[0.0, 1.0], seed=2)
    (result,) = compare(load_groups([str(tmp_path / "a")]), threshold=5.0).results
    assert (result.steps_to_threshold, result.reached) == (None, 1)


def test_probability_of_improvement_against_all_pairs() -> None:
    chance, low, high = probability_of_improvement([1.0, 3.0, 5.0], [2.0, 3.0])
    assert chance == pytest.approx((0 + 0 + 1 + 0.5 + 1 + 1) / 6)
    assert low < chance < high
    assert probability_of_improvement([2.0, 2.0], [1.0, 1.0]) == (1.0, 1.0, 1.0)


@pytest.mark.slow
def test_the_command_writes_a_page_that_needs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2, 3):
        write_run(tmp_path / "a" / str(seed), returns=[1.0, 2.0 + seed], seed=seed)
        write_run(tmp_path / "b <i>" / str(seed), returns=[1.0, 1.0], seed=seed, learning_rate=1e-4)
    videos = tmp_path / "a" / "1" / "videos"
    videos.mkdir()
    (videos / "a.mp4").write_bytes(b"mp4")
    out = tmp_path / "out"
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b <i>"), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "a against b <i>, final training return: 4 against 1. 3 seeds: too few for a probability." in printed
    page = (out / "index.html").read_text()
    assert "http" not in page and "<i>" not in page and "learning_rate" in page and "data:video/mp4;base64,bXA0" in page
    assert page.count("data:image/png") == len(list(out.glob("*.png"))) == 4
    assert main(["compare", str(tmp_path / "a"), "--out", str(out), "--markdown"]) == 0
    markdown = capsys.readouterr().out
    assert markdown == (out / "comparison.md").read_text() and "![return-steps](return-steps.png)" in markdown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "contains no run"),
        ("", "is empty: the run has not finished an iteration yet"),
        ("[1, 2]\n", "has no valid row of metrics"),
        ('{"global_step": 1, "wall_time": 1, "episode_return": NaN}\n', "has no finished episode"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(UsageError, match=message):
        compare(load_groups([str(tmp_path)]))


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a" / "1", returns=[1.0, 2.0])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"global_step": 3')
    assert load_run(folder).columns["global_step"].tolist() == [100, 200]


DQN = {"q_loss": 0.5, "q_mean": 2.0, "td_error": 0.1, "epsilon": 0.05, "gradient_norm": 1.0, "learning_rate": 1e-4}


@pytest.mark.slow
def test_runs_of_two_algorithms_are_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        write_run(tmp_path / "mario" / f"old{seed}", returns=[1.0, 2.0], seed=seed)
        write_run(
            tmp_path / "mario" / f"new{seed}", returns=[1.0, 3.0], seed=seed, algorithm="dqn", extra=DQN, health=False
        )
    out = tmp_path / "out"
    assert main(["compare", str(tmp_path / "mario"), "--out", str(out)]) == 0
    assert (
        "DQN against PPO, final training return: 3 against 2. 2 seeds: too few for a probability."
        in capsys.readouterr().out
    )
    page = (out / "index.html").read_text()
    assert page.count("data:image/png") == 4 and "<td>algorithm</td>" in page
    assert "| DQN | 2 |" in (out / "comparison.md").read_text()


def test_labels_say_the_algorithm_where_it_differs(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "1", returns=[1.0])
    write_run(tmp_path / "a" / "2", returns=[1.0], algorithm="ppo", seed=2)  # the default, written out
    write_run(tmp_path / "a" / "3", returns=[1.0], algorithm="dqn", epsilon_end=0.1)
    write_run(tmp_path / "a" / "4", returns=[1.0], algorithm="dqn", epsilon_end=0.2)
    groups = load_groups([str(tmp_path / "a")])
    assert [group.label for group in groups] == ["PPO", "DQN, epsilon_end 0.1", "DQN, epsilon_end 0.2"]
    assert len(groups[0].runs) == 2
    write_run(tmp_path / "my-dqn" / "1", returns=[1.0], algorithm="dqn")
    labels = [group.label for group in load_groups([str(tmp_path / "a" / "1"), str(tmp_path / "my-dqn")])]
    assert labels == ["a (PPO)", "my-dqn"]


def test_the_table_has_success_rates_and_times_but_no_empty_columns(tmp_path: Path) -> None:
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    for seed, rate in ((1, 0.25), (2, 0.75)):
        write_run(tmp_path / "a" / str(seed), returns=[1.0, 2.0], seed=seed, extra={"episode_success": rate})
    write_run(tmp_path / "b" / "1", returns=[1.0] * 120 + [1.5], extra={"episode_success": 1.0}, learning_rate=1e-4)
    head, *body = table(compare(load_groups(paths), threshold=1.5))
    assert "final evaluated return" not in head
    shown = ("final success rate", "time to threshold", "training time")
    assert [[row[head.index(name)] for name in shown] for row in body] == [
        ["50%", "2 s", "2 s"],
        ["100%", *["2 min"] * 2],
    ]
    write_run(tmp_path / "b" / "2", returns=[1.0, 1.0], seed=2, learning_rate=1e-4)  # its env reports no success
    assert "final success rate" not in table(compare(load_groups(paths)))[0]


@pytest.mark.slow
def test_metrics_of_episodes_that_every_run_has_are_drawn(tmp_path: Path) -> None:
    reported = {"episode_success": 0.5, "episode_x_pos": 900.0, "episode_length": 9.0, "episode_return_max": 4.0}
    write_run(tmp_path / "a" / "1", returns=[1.0, 2.0], extra=reported | {"episode_score": 3.0})
    write_run(tmp_path / "b" / "1", returns=[1.0, 2.0], extra=reported | {"episode_score": None}, algorithm="dqn")
    groups = load_groups([str(tmp_path / "a"), str(tmp_path / "b")])
    assert extra_curves(groups) == ["episode_success", "episode_x_pos"]
    _, markdown, _ = write_comparison([str(tmp_path / "a"), str(tmp_path / "b")], out=tmp_path / "out")
    assert "![extras](extras.png)" in markdown and (tmp_path / "out" / "extras.png").is_file()
