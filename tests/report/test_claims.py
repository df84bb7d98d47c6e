"""What a comparison claims, depending on the number of seeds, envs and evaluations."""

from pathlib import Path

import pytest

from proxima.cli import main
from proxima.report.compare import HEAD, rows, sentences, write_comparison
from proxima.report.comparison import band, compare, improvement
from proxima.report.runs import load_groups
from tests.report.made_runs import write_run


def write_groups(folder: Path, *, seeds: int, **finals: list[float]) -> list[str]:
    """A group of runs per name, with these final returns."""
    for place, (name, values) in enumerate(finals.items()):
        for seed, value in enumerate(values[:seeds], start=1):
            path = folder / name / str(seed)
            write_run(
                path, returns=[0.0, value], seed=seed, learning_rate=0.1 + place, extra={"eval_return": 2 * value}
            )
    return [str(folder / name) for name in finals]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_a_few_seeds_have_neither_probability_nor_interval(
    tmp_path: Path, seeds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = write_groups(tmp_path, seeds=seeds, a=[0.946, 0.95, 0.97, 0.98], b=[0.1, 0.2, 0.3, 0.4])
    assert main(["compare", *paths, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    page, markdown = ((tmp_path / "out" / name).read_text() for name in ("index.html", "comparison.md"))
    for text in (printed, page, markdown):
        assert f"{seeds} seed{'s' * (seeds > 1)}: too few for a probability" in text
        assert "with probability" not in text and "95 %:" not in text and "1.00" not in text
        assert ("one seed" if seeds == 1 else f"min to max: 0.946 to {[0.95, 0, 0.98][seeds // 2 - 1]}") in text
    assert "probability that" not in page
    assert improvement(*compare(load_groups(paths)).results, "training") is None


@pytest.mark.slow
def test_five_seeds_have_a_probability_and_an_interval(tmp_path: Path) -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    paths = write_groups(tmp_path, seeds=5, a=[2.5 + x for x in values], b=values, c=[10 + x for x in values])
    _, markdown, found = write_comparison(paths, out=tmp_path / "out")
    said = sentences(found)
    assert "a against b, final training return: 5.5 against 3; higher with probability 0.88 (95 % interval " in said[0]
    # A bootstrap of seeds that do not overlap is 1.00 (1.00 to 1.00) whatever their number: no interval is claimed.
    certain = "every run of c (5 seeds) ends above every run of a (5 seeds)."
    assert said[2] == f"c against a, final training return: 13 against 5.5; {certain}"
    assert "95 %:" in rows(found)[0][HEAD.index("spread over seeds")] and "95 %:" in markdown
    assert "probability that" in (tmp_path / "out" / "index.html").read_text()


def test_one_group_with_few_seeds_is_enough_to_leave_the_probability_out(tmp_path: Path) -> None:
    paths = write_groups(tmp_path, seeds=9, a=[5.0, 6.0], b=[1.0, 2.0, 3.0, 4.0, 5.0])
    assert sentences(compare(load_groups(paths)))[0].endswith("2 seeds: too few for a probability.")


def test_runs_of_one_seed_are_not_independent(tmp_path: Path) -> None:
    for number in range(5):
        write_run(tmp_path / "a" / str(number), returns=[1.0, 2.0], seed=1)
        write_run(tmp_path / "b" / str(number), returns=[1.0, 3.0], seed=number, learning_rate=0.1)
    found = compare(load_groups([str(tmp_path / "a"), str(tmp_path / "b")]))
    assert sentences(found)[0].endswith("1 seed: too few for a probability.")
    assert rows(found)[0][1] == "1 (5 runs)" and improvement(*found.results, "training") is None


def test_the_band_of_a_few_seeds_is_from_least_to_greatest(tmp_path: Path) -> None:
    (few,) = load_groups(write_groups(tmp_path / "few", seeds=3, a=[3.0, 6.0, 9.0]))
    (many,) = load_groups(write_groups(tmp_path / "many", seeds=9, a=[1.0, 1.0, 1.0, 1.0, 9.0]))
    found = band(few, "episode_return")
    assert found is not None and not found.is_interval
    assert (found.low[-1], found.mean[-1], found.high[-1]) == pytest.approx((3.0, 6.0, 9.0))
    found = band(many, "episode_return")
    assert found is not None and found.is_interval and found.high[-1] < 9.0


@pytest.mark.slow
def test_different_envs_are_said_and_never_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(5):
        write_run(tmp_path / "a" / str(seed), returns=[1.0, 500.0 + seed], seed=seed, env="CartPole-v1")
        write_run(tmp_path / "b" / str(seed), returns=[-900.0, -200.0 - seed], seed=seed, env="Pendulum-v1")
        write_run(tmp_path / "c" / str(seed), returns=[1.0, 400.0], seed=seed, env="CartPole-v1", learning_rate=0.1)
    out, paths = tmp_path / "out", [str(tmp_path / name) for name in "abc"]
    assert main(["compare", *paths, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    warning = "Different envs, whose returns cannot be compared: a is CartPole-v1, b is Pendulum-v1, c is CartPole-v1."
    for text in (printed, (out / "index.html").read_text(), (out / "comparison.md").read_text()):
        assert warning in text
        assert "a against c" in text and "a against b" not in text and "b against" not in text
    found = compare(load_groups(paths))
    first, second, third = found.results
    assert found.threshold is None and improvement(first, third, "training") is not None
    assert improvement(first, second, "training") is None
    assert compare(load_groups(paths), threshold=3.0).threshold == 3.0


def test_a_group_of_two_envs_is_said_too(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a" / "1", returns=[1.0, 2.0], env="CartPole-v1")
    second = write_run(tmp_path / "b" / "1", returns=[1.0, 2.0], env="Acrobot-v1")
    said = sentences(compare(load_groups([f"mine={first}", f"mine={second}"])))
    assert said == ["Different envs, whose returns cannot be compared: mine is Acrobot-v1 and CartPole-v1."]


@pytest.mark.slow
def test_evaluated_returns_are_reported_where_every_run_has_them(tmp_path: Path) -> None:
    paths = write_groups(tmp_path, seeds=2, a=[10.0, 20.0], b=[1.0, 2.0])
    page, markdown, found = write_comparison(paths, out=tmp_path / "out")
    column = HEAD.index("final evaluated return")
    assert [row[column] for row in rows(found)] == ["30 (min to max: 20 to 40)", "3 (min to max: 2 to 4)"]
    assert "a against b, final evaluated return: 30 against 3. 2 seeds: too few for a probability." in sentences(found)
    assert (tmp_path / "out" / "evaluated-return-steps.png").is_file()
    assert "![evaluated-return-steps]" in markdown and "final evaluated return" in page.read_text()
    write_run(tmp_path / "b" / "3", returns=[1.0, 2.0], seed=3, learning_rate=1.1)  # never evaluated
    _, markdown, found = write_comparison(paths, out=tmp_path / "out")
    assert [row[column] for row in rows(found)] == ["-", "-"] and not any("evaluated" in s for s in sentences(found))
    assert not (tmp_path / "out" / "evaluated-return-steps.png").exists() and "![evaluated" not in markdown


def test_only_the_last_evaluation_counts_as_final(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a" / "1", returns=[1.0])
    lines = [
        f'{{"global_step": {100 * i}, "wall_time": {i}, "episode_return": 1.0, "eval_return": {value}}}\n'
        for i, value in enumerate(("null", "5.0", "null", "7.0", "null"), start=1)
    ]
    (run / "metrics.jsonl").write_text("".join(lines))
    (result,) = compare(load_groups([str(run)])).results
    assert result.finals["evaluated"] == [7.0]


@pytest.mark.slow
def test_small_returns_keep_their_digits(tmp_path: Path) -> None:
    paths = write_groups(tmp_path, seeds=1, a=[0.946], b=[12345.6])
    page, markdown, _ = write_comparison(paths, out=tmp_path / "out", threshold=0.0125)
    for text in (page.read_text(), markdown):
        assert "0.946" in text and "12,345.6" in text and "Threshold: 0.0125" in text
