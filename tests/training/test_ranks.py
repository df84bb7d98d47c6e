"""Runs on several ranks, started by torchrun: killed and resumed, with a rank that dies, with Ray workers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from proxima import train
from proxima.runs import checkpoint
from tests.training.runs import ROOT, SMALL, assert_same_end, flags, metrics, wait_for_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

STEPS = 32 * 4
HOPPER = SMALL | {"env": "Hopper-v5", "total_timesteps": 5 * STEPS, "preset": "none"}
RECURRENT = {"rnn": "gru", "rnn_size": 8, "hidden_sizes": [8], "bptt_length": 8, "minibatch_size": 4}
CNN = {"env": "proxima/PixelCatch-v0", "env_kwargs": "{image_size: 16, drops: 1}", "cnn_features": 8}


LARGE = "tests.training.large_states"


def torchrun(*arguments: str, ranks: int = 2, module: str = "proxima") -> subprocess.Popen[str]:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m", module]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,  # so that all of it can be killed
    )


def done(process: subprocess.Popen[str], seconds: float = 120) -> str:
    try:
        return process.communicate(timeout=seconds)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def run(name: str, options: dict[str, Any], ranks: int = 2, command: str = "train") -> Path:
    """The last checkpoint of a run that was not disturbed."""
    process = torchrun(command, "--name", name, *flags(options), ranks=ranks)
    text = done(process)
    assert process.returncode == 0, text
    return newest(name)


def newest(name: str) -> Path:
    return checkpoint.find(Path("runs") / name)


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """Process ids by rank."""
    found = {}
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        rank = [x.partition(b"=")[2] for x in variables if x.startswith(b"RANK=")]
        if rank:
            found[int(rank[0])] = int(child)
    return found


@pytest.mark.parametrize(
    ("case", "module"),
    [({}, "proxima"), (RECURRENT, LARGE), (CNN, "proxima")],
    ids=["mlp", "recurrent, states kept by ranks", "cnn"],
)
def test_killed_and_resumed_equals_uninterrupted(case: dict[str, Any], module: str) -> None:
    options = HOPPER | case | {"total_timesteps": 40 * STEPS}
    whole = run("whole", options)
    process = torchrun("train", "--name", "cut", "--checkpoint-freq", "1", *flags(options), module=module)
    wait_for_checkpoint(Path("runs/cut"), process, 2)
    for pid in (process.pid, *ranks_of(process).values()):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    (cut,) = Path("runs/cut").iterdir()
    assert checkpoint.read_metadata(checkpoint.find(cut))["iteration"] < 40, "it was not killed in the middle"
    process = torchrun("resume", str(cut))
    text = done(process)
    assert process.returncode == 0, text
    assert "not exact" not in text
    assert_same_end(whole, newest("cut"))


def test_the_ranks_of_a_run_see_what_one_sees() -> None:
    """The first rollout is the same, up to rounding; minibatches are divided differently, so later ones are not."""
    one, two = (run(f"ranks-{ranks}", HOPPER, ranks=ranks) for ranks in (1, 2))
    rows = [metrics(path.parent) for path in (one, two)]
    for name in ("episode_return", "episodes", "episode_length", "global_step", "explained_variance", "learning_rate"):
        assert rows[0][0][name] == pytest.approx(rows[1][0][name], rel=1e-3)
    assert [row["global_step"] for row in rows[0]] == [row["global_step"] for row in rows[1]]


def wait_for_metrics(process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not [path for path in Path("runs/cut").glob("*/metrics.jsonl") if path.stat().st_size]:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)


@pytest.mark.parametrize(("rank", "module"), [(1, "proxima"), (1, LARGE), (0, "proxima"), (0, LARGE)])
def test_a_dead_rank_ends_the_run_with_the_last_iteration_saved(
    rank: int, module: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = HOPPER | {"total_timesteps": 10_000 * STEPS, "checkpoint_minutes": 0}
    process = torchrun("train", "--name", "cut", *flags(options), module=module)
    wait_for_metrics(process)
    os.kill(ranks_of(process)[rank], signal.SIGKILL)
    text = done(process)
    assert process.returncode != 0
    saved = newest("cut")  # if it was rank 0, rank 1 has saved
    rows = metrics(saved.parent)
    assert abs(checkpoint.read_metadata(saved)["iteration"] - rows[-1]["iteration"]) <= (rank == 0)
    assert "another rank ended or does not answer" in text or "stopped by SIGTERM" in text
    done_iterations = checkpoint.read_metadata(saved)["iteration"]
    assert f"iteration {done_iterations} is saved in" in text and done_iterations >= 1
    assert "continue with: torchrun --nproc-per-node 2 -m proxima resume" in text
    assert ("The envs of other ranks could not be saved" in text) == (module == LARGE)
    resumed = train(resume_from=saved, total_timesteps=(done_iterations + 1) * STEPS)
    assert resumed.global_step == (done_iterations + 1) * STEPS
    assert ("This resume is not exact" in caplog.text) == (module == LARGE)


@pytest.mark.parametrize("who", ["torchrun", "rank 0", "rank 1"])
def test_sigterm_anywhere_saves(who: str) -> None:
    process = torchrun("train", "--name", "cut", *flags(HOPPER | {"total_timesteps": 10_000 * STEPS}))
    wait_for_metrics(process)
    os.kill(process.pid if who == "torchrun" else ranks_of(process)[int(who[-1])], signal.SIGTERM)
    text = done(process)
    assert process.returncode != 0
    saved = newest("cut")
    assert checkpoint.read_metadata(saved)["iteration"] >= 1, text
    assert text.count("is saved in") == len(list(saved.parent.glob("cut-*"))) == 1  # rank 1 does not save as well


@pytest.mark.parametrize("case", [{}, RECURRENT], ids=["mlp", "recurrent"])
def test_a_resume_may_have_another_number_of_ranks(case: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    two = run("two", HOPPER | case)
    train(resume_from=two, total_timesteps=7 * STEPS)
    assert "not exact" not in caplog.text
    alone = newest("two")
    assert checkpoint.read_metadata(alone)["iteration"] == 7
    process = torchrun("resume", str(alone), "--total-timesteps", str(9 * STEPS))
    text = done(process)
    assert process.returncode == 0 and "not exact" not in text, text
    assert checkpoint.read_metadata(newest("two"))["iteration"] == 9


def test_ranks_with_ray_workers() -> None:
    one = run("one", HOPPER | {"rollout_workers": 2, "num_envs": 4})
    rows = metrics(one.parent)
    assert rows[-1]["rollout_workers"] == 2 and rows[-1]["global_step"] == 5 * STEPS
    plain = metrics(run("plain", HOPPER).parent)
    for name in ("episode_return", "explained_variance", "policy_loss"):
        assert rows[0][name] == pytest.approx(plain[0][name], rel=1e-3, abs=1e-5)


def test_what_ranks_cannot_do_is_said() -> None:
    for options, text in (
        ({"env": "CartPole-v1", "algorithm": "DQN"}, "DQN learns in one process: start it without torchrun"),
        ({"num_envs": 1}, "num_envs is 1, but there are 2 ranks"),
        ({"num_envs": 3, "minibatch_size": 2}, "one has 32 samples for 48 of them: raise it"),
        ({"num_envs": 3, "num_steps": 5, "minibatch_size": 3, "gradient_accumulation": 3}, "5 samples for 6 of them"),
    ):
        process = torchrun("train", *flags(HOPPER | options))
        assert text in done(process) and process.returncode != 0
