"""The command as a user meets it, in a real process where exit codes and streams matter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxima.cli import main

SMALL = ["--preset", "none", "--num-envs", "2", "--num-steps", "32", "--total-timesteps", "128", "--update-epochs", "2"]


def proxima(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "proxima", *arguments], capture_output=True, text=True, cwd=cwd)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lerning-rate", "1"], "unknown flag --lerning-rate. Did you mean --learning-rate?"),
        (["--lr_schedul", "linear"], "unknown flag --lr-schedul. Did you mean --lr-schedule?"),
        (["oops"], "unknown argument oops"),
        (["--gamma"], "expected one argument"),
        (["--gamma", "2"], "--gamma is 2, but it must be <= 1."),
        (
            ["--minibatch-size", "99999", "--num-steps", "64", "--num-envs", "2"],
            "lower minibatch_size or raise num_steps",
        ),
        (["--config", "nowhere.yaml"], "config file nowhere.yaml does not exist"),
        (["--env", "HalfCheeta-v5"], "did you mean 'HalfCheetah-v5'?"),
        (["--device", "cuda:7"], "PyTorch sees"),
        (["--device", "abacus"], "must be cpu, cuda"),
        (["--device", "cpu", "--precision", "fp16"], "use device cuda or precision fp32"),
        (["--env", "CartPole-v1", "--vec-env-mode", "batch"], "cannot run in batch mode"),
        (["--env", "CartPole-v1", "--distribution", "beta"], "leave it at auto"),
        (["--env", "HalfCheetah-v5", "--env-kwargs", "{reset_noise: 1}"], "reset_noise_scale"),
        (["--env", "Ant-v5", "--env-kwargs", "{frame_skip: hello}"], "cannot build env 'Ant-v5'"),
        (["--env", "Ant-v5", "--env-kwargs", "{healthy_z_range: 3}"], "cannot build env 'Ant-v5'"),
        (["--num-steps", "10000000", "--num-envs", "1000"], "does not fit into memory"),
        (["--resume-from", "nowhere"], "nowhere does not exist"),
        (["--env", "CartPole-v1", "--encoders", "{obs: {widths: [100000000]}}"], "lower hidden_sizes"),
        (["--env", "Hopper-v5", "--hidden-sizes", "65536", "65536"], "the networks have 8,"),
        (["--warm-from", "x"], "unknown flag --warm-from. See"),
    ],
)
def test_bad_input_is_one_line_with_code_2_and_leaves_nothing(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("proxima: ") and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_train_evaluate_resume_in_real_processes(tmp_path: Path) -> None:
    done = proxima("train", "--env", "InvertedPendulum-v5", "--name", "pole", *SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert set(lines) == {"run", "final", "evaluate", "resume", "TensorBoard"}
    (run,) = (tmp_path / "runs" / "pole").iterdir()
    assert {p.name.split(".")[0] for p in run.iterdir()} >= {"config", "metrics", "tb"}

    evaluated = proxima(*lines["evaluate"].split()[1:], "--episodes", "3", cwd=tmp_path)
    assert evaluated.returncode == 0 and "3 episodes" in evaluated.stdout

    resumed = proxima(*lines["resume"].split()[1:], cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    runs = sorted((tmp_path / "runs" / "pole").iterdir())
    assert len(runs) == 2
    last = json.loads((runs[-1] / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["global_step"] == 256 and last["iteration"] == 4
    again = proxima("resume", str(runs[-1]), cwd=tmp_path)
    assert again.returncode == 2 and "raise --total-timesteps" in again.stderr


@pytest.mark.slow
def test_bench_shows_the_phases_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--env", "InvertedPendulum-v5", "--seconds", "0.1", "--compile", "off", *SMALL]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("collect", "advantage", "update", "training", "envs", "physics"))
    assert not (tmp_path / "runs").exists()


def test_help_groups_and_explains(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as stopped:
            main(["train", flag])
        assert stopped.value.code == 0
        texts[flag] = capsys.readouterr().out
    assert "ppo:\n  Proximal policy optimisation." in texts["--help-all"]
    assert "--clip-range" in texts["--help-all"] and "(default: 0.2, or what suits" in " ".join(
        texts["--help-all"].split()
    )
    assert "--learning-rate" in texts["--help"] and "--clip-range" not in texts["--help"]
    assert "--help-all" in texts["--help"] and "normalize:" not in texts["--help"]


def test_the_command_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "COMMAND" in capsys.readouterr().out


def test_completion_scripts_know_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert "--learning-rate" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


@pytest.mark.slow
def test_quiet_and_negated_flags(tmp_path: Path) -> None:
    done = proxima("train", "--env", "CartPole-v1", *SMALL, "--quiet", "--no-tensorboard", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    (run,) = (tmp_path / "runs" / "CartPole-v1").iterdir()
    assert not (run / "tb").exists() and "iteration" not in done.stderr
    (run / "config.yaml").read_text().index("tensorboard: false")


@pytest.mark.slow
def test_no_resume_is_proposed_where_none_is_possible(tmp_path: Path) -> None:
    done = proxima("train", "--env", "CartPole-v1", *SMALL, "--no-save-optimizer", cwd=tmp_path)
    assert "evaluate" in done.stdout and "resume" not in done.stdout


@pytest.mark.slow
def test_brackets_in_names_are_not_markup(tmp_path: Path) -> None:
    names = ["--runs-dir", "a[/b]c", "--name", "[red]x"]
    done = proxima("train", "--env", "CartPole-v1", *SMALL, *names, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "a[" / "b]c" / "[red]x").iterdir()
    assert str(run.relative_to(tmp_path)) in done.stderr and str(run.relative_to(tmp_path)) in done.stdout


@pytest.mark.parametrize("seed", ["1e30", "-1", str(10**30), "x"])
def test_evaluate_takes_seeds_within_their_range(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "nowhere", f"--seed={seed}"]) == 2
    assert capsys.readouterr().err.startswith("proxima: --seed is ")


def test_envs_lists_back_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "halfcheetah-v5"]) == 0
    assert "batch, sync, async" in capsys.readouterr().out
    assert main(["envs", "nothing-like-it"]) == 2


def test_flags_take_dashes_underscores_and_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--env=CartPole-v1", "--total_timesteps=64", "--n_steps", "32", "--num-envs", "2"]
    assert main(["train", *arguments, "--minibatch_size=32", "--save-checkpoint", "False", "--tensorboard", "off"]) == 0
    (run,) = (tmp_path / "runs" / "CartPole-v1").iterdir()
    assert {p.name for p in run.iterdir()} == {"config.yaml", "metrics.jsonl"}


def test_waiting_threads_sleep_soon_unless_the_user_has_chosen(tmp_path: Path) -> None:
    script = """
import os, sys
from proxima.__main__ import main
sys.argv = ["proxima"]
main()
print(os.environ.get("GOMP_SPINCOUNT"), file=sys.stderr)
"""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    for chosen, expected in (({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, "None")):
        done = subprocess.run([sys.executable, "-c", script], env=plain | chosen, capture_output=True, text=True)
        assert done.stderr.strip() == expected


@pytest.mark.slow
def test_results_that_cannot_be_printed_are_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "proxima", "train", "--env", "CartPole-v1", *SMALL]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "proxima: the results cannot be printed: no space left on device."
    (run,) = (tmp_path / "runs" / "CartPole-v1").iterdir()
    assert list(run.glob("*/agent.pt"))
