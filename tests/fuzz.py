"""Random options against the command: every outcome must be a finished run with finite metrics, or one line.

`make fuzz` runs 300 seeded configurations (about ten minutes); `python -m tests.fuzz --only 17` repeats one.
"""

import argparse
import contextlib
import io
import json
import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from proxima.config import all_options
from proxima.config.options import Option

ENVS = (
    *("CartPole-v1", "Pendulum-v1", "Hopper-v5", "InvertedPendulum-v5", "FrozenLake-v1", "Blackjack-v1"),
    *("proxima/Quadruped-v0", "proxima/Recall-v0", "proxima/PixelCatch-v0", "proxima/CartPoleHidden-v1"),
    *("LunarLander-v3", "Acrobot-v1", "Nope-v0", "HalfCheeta-v5", "", "a/b/c", "x:y:z", "CartPole"),
)
SMALL = {
    "num_envs": "4",
    "num_steps": "16",
    "minibatch_size": "16",
    "update_epochs": "2",
    "total_timesteps": "192",
    "hidden_sizes": "16",
    "learning_starts": "64",
    "iteration_steps": "64",
    "buffer_size": "256",
    "compile": "off",
    "progress": "False",
    "tensorboard": "False",
    "num_threads": "1",
}
# What would only take long: small values, or such as must be refused.
SIZES = {
    "total_timesteps": ("1", "100", "500"),
    "num_envs": ("1", "3", "9", "1e9"),
    "num_steps": ("1", "7", "33", "1e9"),
    "update_epochs": ("1", "3"),
    "num_workers": ("1", "2", "3"),
    "eval_episodes": ("1", "3"),
    "hidden_sizes": ("[]", "8", "8 8 8", "65536 65536", "1e9"),
    "critic_hidden_sizes": ("none", "[]", "8", "8 8 8", "65536 65536", "1e9"),
    "rnn_size": ("1", "8", "65536"),
    "rnn_layers": ("1", "2", "1e9"),
    "cnn_features": ("1", "8", "65537"),
    "iteration_steps": ("1", "100"),
    "compile": ("off", "auto"),
    "runs_dir": ("runs", "a[/b]c", "with space", "é"),
    "name": ("x", "[red]x", "x" * 200, "x" * 201, "..", "a/b", "a\nb", "é"),
    "device": ("cpu", "auto", "cuda:99", "cpu:0", "tpu", "meta"),
    "auto_resume": ("True", "False"),
    "quiet": ("True", "False"),
}
ODD_NUMBERS = ("0", "-1", "nan", "inf", "-inf", "1e39", "1e400", "1e-50", "9" * 401, "abc", "", "1_000", "2k", "0x10")
ODD_MAPPINGS = (
    "{}",
    "{a: 1}",
    "[1]",
    "{obs: {widths: [8]}}",
    "{obs: 3}",
    "{",
    "{render_mode: human}",
    "{obs: {use: x}}",
)


def value_of(option: Option, rng: random.Random) -> str:
    """Mostly an ordinary value; sometimes one at the edge of the range, or nonsense."""
    is_odd = rng.random() < 0.12
    if option.name == "env":
        return rng.choice(ENVS if is_odd else ENVS[:12])
    if option.name in SIZES:
        return rng.choice((*ODD_NUMBERS, *SIZES[option.name])) if is_odd else rng.choice(SIZES[option.name])
    if option.choices:
        return rng.choice(("bogus", "")) if is_odd else rng.choice(option.choices)
    if isinstance(option.default, bool):
        return "maybe" if is_odd else rng.choice(("True", "False", "on", "no"))
    if isinstance(option.default, dict):
        return rng.choice(ODD_MAPPINGS)
    if option.type in (str, str | None):
        return rng.choice(("", "x", "é", "/dev/null", "a" * 300))
    if is_odd:
        return rng.choice(ODD_NUMBERS)
    low = option.bounds.get(">=") or option.bounds.get(">") or 0
    high = option.bounds.get("<=") or option.bounds.get("<") or 1e4
    is_whole = "int" in str(option.type)
    values = [rng.choice((low, high)) if rng.random() < 0.2 else _between(low, high, rng) for _ in range(2)]
    texts = [str(max(1, round(value)) if is_whole else value) for value in sorted(values)]
    return " ".join(texts) if option.is_list else texts[0]


def _between(low: float, high: float, rng: random.Random) -> float:
    """Small numbers as often as large ones."""
    return min(max(10 ** rng.uniform(-5, 3), low), high)


def command(seed: int) -> list[str]:
    """The command line of one configuration."""
    rng = random.Random(seed)
    options = all_options()
    given = {"env": rng.choice(ENVS[:12]), **SMALL}
    if rng.random() < 0.25:
        given["algorithm"] = "DQN"
    if rng.random() < 0.2:
        given["rnn"] = rng.choice(("gru", "lstm"))
        given["rnn_size"] = "8"
    for name in rng.sample(sorted(options), rng.randint(1, 5)):
        given[name] = value_of(options[name], rng)
    argv = ["train"]
    for name, value in given.items():
        parts = value.split() if options[name].is_list and value else [value]
        argv += [f"{options[name].flag}={parts[0]}", *parts[1:]] if len(parts) == 1 else [options[name].flag, *parts]
    return argv


def verdict(code: int, errors: str, folder: Path) -> str:
    """`ok`, `refused`, or what is wrong."""
    if "Traceback" in errors:
        return "a traceback: " + errors.strip().splitlines()[-1]
    lines = [line for line in errors.splitlines() if line.startswith("proxima: ")]
    if code in (1, 2):
        is_one_line = len(lines) == 1 and errors.rstrip().splitlines()[-1] == lines[0]
        return f"refused: {lines[0]}" if is_one_line else f"code {code}: {errors}"
    if code:
        return f"exit code {code}"
    rows = [json.loads(line) for path in folder.rglob("metrics.jsonl") for line in path.read_text().splitlines()]
    if not rows:
        return "a finished run without metrics"
    numbers = [x for row in rows for x in row.values() if x is not None]
    losses = [row.get(name, 0.0) for row in rows for name in ("policy_loss", "value_loss", "approx_kl", "entropy")]
    return "ok" if all(map(math.isfinite, numbers)) and None not in losses else "metrics that are not finite"


def run_one(seed: int, pipe: Any) -> None:
    """Run one configuration in this process, in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="proxima-fuzz-"))
    os.chdir(folder)
    with (folder / "stderr").open("w") as errors:
        os.dup2(errors.fileno(), 2)
        sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", buffering=0, closefd=False), write_through=True)
        with contextlib.redirect_stdout(io.StringIO()):
            from proxima.cli import main

            try:
                code: Any = main(command(seed))
            except SystemExit as stop:
                code = stop.code
            except BaseException:
                traceback.print_exc()
                code = -1
    pipe.send(verdict(code, (folder / "stderr").read_text(), folder))
    shutil.rmtree(folder, ignore_errors=True)


def outcome(context: Any, seed: int, timeout: float) -> str:
    """What became of one configuration, in a process that is forked for it: the imports are done already."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=run_one, args=(seed, theirs))
    process.start()
    theirs.close()
    try:
        found = ours.recv() if ours.poll(timeout) else f"no end after {timeout:g} s"
    except EOFError:
        process.join()
        found = f"the process died with code {process.exitcode}"
    process.kill()
    process.join()
    return str(found)


def main() -> int:
    """Run them all; exit code 1 if any outcome is none of the allowed ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first configuration")
    parser.add_argument("--only", type=int, help="run this seed alone")
    parser.add_argument("--verbose", action="store_true", help="show what became of every one")
    parser.add_argument("--timeout", type=float, default=120.0)
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.count) if arguments.only is None else [arguments.only]
    import proxima.training.trainer  # noqa: F401, so that the forked processes need not

    context, counts, start = multiprocessing.get_context("fork"), {"ok": 0, "refused": 0, "wrong": 0}, time.monotonic()
    for seed in seeds:
        found = outcome(context, seed, arguments.timeout)
        kind = found.partition(":")[0]
        counts[kind if kind in counts else "wrong"] += 1
        if kind not in counts or arguments.only is not None or arguments.verbose:
            print(f"{seed}: {found}\n  proxima {' '.join(map(repr, command(seed)))}", flush=True)
    print(
        f"{counts['ok']} finished, {counts['refused']} refused, {counts['wrong']} wrong; "
        f"{time.monotonic() - start:.0f} s"
    )
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
