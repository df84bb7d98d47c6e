"""Envs of other packages from one command each, and four tasks in SB3's code and in ours; writes own_packages.md.

    python benchmarks/own_packages.py                     # every run without a record: about 15 minutes on two cores
    python benchmarks/own_packages.py --only panda-gym masks --jobs 2
    python benchmarks/own_packages.py --report            # only write the page again

The commands run in an empty folder, in a virtual environment with the packages (benchmarks/.own-packages-venv). The
four tasks are the scripts in benchmarks/side_by_side/; those of Stable-Baselines3 (SB3) run in
benchmarks/.sb3-tasks-venv. Both are kept. Each finished run writes a record to benchmarks/own_packages/; delete a
record to repeat its run. Every run has one thread for its networks, and its time is that of the CPU, which is less
affected by other programs than wall time.
"""

import argparse
import ast
import io
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import tokenize
from pathlib import Path
from typing import Any

from throughput import PEER, ROOT, install_peer
from training_runs import git_commit, run_all

RECORDS = ROOT / "benchmarks" / "own_packages"
TASKS = ROOT / "benchmarks" / "side_by_side"
VENV = ROOT / "benchmarks" / ".own-packages-venv"
SB3_VENV = ROOT / "benchmarks" / ".sb3-tasks-venv"
OURS = ("torch==2.13.0", "-c", str(ROOT / "constraints.txt"), "-e", str(ROOT))
SB3 = (PEER[0], PEER[1], "sb3-contrib==2.9.2", "gymnasium==1.4.0", "tensorboard==2.21.0")
EPISODES = 20
SEED = 1
COMMANDS: dict[str, dict[str, Any]] = {
    "minigrid": {
        "version": "minigrid==3.2.0",
        "options": ["--env", "minigrid:MiniGrid-Empty-5x5-v0", "--encoders", "{mission: {use: none}}"],
        "steps": 20_000,
        "what": "a picture of 7 x 7 cells, a direction, and a text that is left out",
    },
    "highway-env": {
        "version": "highway-env==1.12.1",
        "options": [
            *("--env", "highway_env:highway-fast-v0"),
            *("--env-kwargs", "{config: {vehicles_count: 5, duration: 20}}"),
        ],
        "steps": 3_000,
        "what": "5 x 5 numbers of the nearest vehicles, 5 actions, about 50 env steps per CPU second",
    },
    "panda-gym": {
        "version": "panda-gym==3.0.7",
        "options": ["--env", "panda_gym:PandaReachDense-v3"],
        "steps": 6_000,
        "what": "a dict of observation, achieved_goal and desired_goal, 3 continuous actions, PyBullet",
    },
    "gymnasium-robotics": {
        "version": "gymnasium-robotics==1.4.2",
        "options": ["--env", "gymnasium_robotics:PointMaze_UMazeDense-v3"],
        "steps": 20_000,
        "what": "a dict like panda-gym's in float64, 2 continuous actions, MuJoCo",
    },
}
PACKAGES = tuple(row["version"] for row in COMMANDS.values())
SCRIPTS: dict[str, dict[str, str]] = {
    "early_stop": {
        "what": "stop at a return; log a number of the env's info",
        "lacks": "an exact resume of the stopped run: the states of envs and random generators are not saved, and the "
        "observation statistics are a second file",
    },
    "masks": {
        "what": "invalid-action masks",
        "lacks": "masks for a recurrent policy or for DQN; masks in `info` or in the observation need a wrapper",
    },
    "encoder": {
        "what": "own network for one key of a dict observation",
        "lacks": "a network for one key alone: an extractor is for the whole dict and joins the keys itself",
    },
    "fine_tune": {
        "what": "fine-tune on a heavier cart with other action bounds",
        "lacks": "`PPO.load(path, env=...)` refuses other action bounds; `set_parameters` needs the same layers and "
        "observation keys, and takes the optimizer along",
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*COMMANDS, *SCRIPTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--jobs", type=int, default=1, help="runs in parallel")
    parser.add_argument("--report", action="store_true", help="only write the page from the records")
    arguments = parser.parse_args()
    if not arguments.report:
        jobs = [name for name in arguments.only if name in COMMANDS]
        jobs += [f"{lib}_{name}" for name in arguments.only if name in SCRIPTS for lib in ("sb3", "proxima")]
        missing = [job for job in jobs if not (RECORDS / f"{job}.json").exists()]
        install(missing)
        run_all(missing, arguments.jobs, run)
    report()
    return 0


def install(jobs: list[str]) -> None:
    """The virtual environments that the jobs need."""
    if any(job.startswith("sb3_") for job in jobs):
        install_peer(SB3_VENV, SB3)
    if any(not job.startswith("sb3_") for job in jobs):
        install_peer(VENV, (*OURS, *PACKAGES))


def run(job: str, cores: list[int]) -> None:
    print(f"{time.strftime('%H:%M:%S')} {job} on cores {cores}", flush=True)
    commit = git_commit()
    with tempfile.TemporaryDirectory() as folder:
        record = run_command(job, folder, cores) if job in COMMANDS else run_script(job, folder, cores)
    record = {"name": job, "date": time.strftime("%Y-%m-%d"), "commit": commit, **record}
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{job}.json").write_text(json.dumps(record) + "\n")
    print(f"{time.strftime('%H:%M:%S')} {job}: {record}", flush=True)


def run_command(name: str, folder: str, cores: list[int]) -> dict[str, Any]:
    """Train and evaluate with a single command each."""
    program = [str(VENV / "bin" / "proxima")]
    options = [*COMMANDS[name]["options"], "--total-timesteps", str(COMMANDS[name]["steps"]), "--seed", str(SEED)]
    _, cpu, wall = execute([*program, "train", *options], folder, cores)
    (run_dir,) = (path.parent for path in Path(folder).glob("runs/**/metrics.jsonl"))
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    returns = [row["episode_return"] for row in rows if isinstance(row.get("episode_return"), float)]
    evaluate = ["evaluate", str(run_dir), "--episodes", str(EPISODES), "--json"]
    evaluated = json.loads(execute([*program, *evaluate], folder, cores)[0])
    return {
        "command": "proxima train " + shlex.join(options),
        "steps": rows[-1]["global_step"],
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "first_return": returns[0],
        "final_return": returns[-1],
        "evaluated_return": evaluated["return"]["mean"],
    }


def run_script(job: str, folder: str, cores: list[int]) -> dict[str, Any]:
    """Run one of the scripts, which print their steps and the return of 100 episodes."""
    venv = SB3_VENV if job.startswith("sb3_") else VENV
    output, cpu, wall = execute([str(venv / "bin" / "python"), str(TASKS / f"{job}.py")], folder, cores)
    printed = dict(line.split() for line in output.splitlines() if line.startswith(("steps ", "return ")))
    numbers = {"steps": int(printed["steps"]), "evaluated_return": float(printed["return"])}
    return {"cpu_seconds": cpu, "wall_seconds": wall, **numbers}


def execute(command: list[str], folder: str, cores: list[int]) -> tuple[str, float, float]:
    """What a command prints, run in `folder` on `cores`, and its seconds: of the CPU, children included, and wall."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    started = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=errors,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - started
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            raise SystemExit(f"{shlex.join(command)} failed:\n{errors.read().decode()[-3000:]}")
        return out.read().decode(), round(usage.ru_utime + usage.ru_stime, 1), round(wall, 1)


def count_code(source: str) -> tuple[int, int]:
    """Lines with code, and tokens on them: without blank lines, comments and docstrings."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docs |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in layout and token.start[0] not in docs
    ]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return len(lines), len(tokens)


def report() -> None:
    records = {path.stem: json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))}
    lines = [
        "# Your own: envs of other packages, and four tasks in SB3's code and in ours",
        "",
        f"Generated by `python benchmarks/own_packages.py`; one seed ({SEED}). CPU seconds are those of the whole",
        "process, from start to end, with one thread for the networks; other programs ran at the same time.",
        "",
        "## One command per package",
        "",
        "Each command ran in an empty folder, with Proxima's defaults for the env. First and last return: training",
        "episodes (sampled actions; the mean of up to 100) after the first and the last iteration; evaluated:",
        f"`proxima evaluate RUN --episodes {EPISODES}`, deterministic.",
        "",
        "| package | command | steps | CPU s | first return | last return | evaluated |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in COMMANDS.items():
        if found := records.get(name):
            numbers = [f"{found[key]:.2f}" for key in ("first_return", "final_return", "evaluated_return")]
            start = f"| {row['version']} | `{found['command']}` | {found['steps']:,} | {found['cpu_seconds']:.0f} |"
            lines.append(f"{start} {' | '.join(numbers)} |")
    lines.append("")
    lines += [f"- {name}: {row['what']}." for name, row in COMMANDS.items() if name in records]
    lines += ["", (RECORDS / "notes.md").read_text().strip(), "", "## The same four tasks in SB3 and here", ""]
    lines += [
        "Complete scripts, in [side_by_side/](side_by_side): train, save, and evaluate 100 deterministic episodes. The",
        "envs are in `tasks.py`, which both import. Lines: of code, without blank lines, comments and docstrings, both",
        "formatted by `ruff format`; tokens do not depend on it. Same envs, rollouts, minibatches, epochs, constant",
        "learning rate, gamma and entropy bonus. Proxima normalises by default, SB3 by `VecNormalize`,",
        f"which its scripts use for the cart, whose observations are in centimetres. Versions: {', '.join(SB3[:3])}.",
        "",
        "| task | library | lines | tokens | steps | CPU s | evaluated return |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, task in SCRIPTS.items():
        for library, title in (("sb3", "SB3"), ("proxima", "Proxima")):
            if found := records.get(f"{library}_{name}"):
                count, tokens = count_code((TASKS / f"{library}_{name}.py").read_text())
                start = f"| {task['what']} (`{library}_{name}.py`) | {title} | **{count}** | {tokens} |"
                end = f"{found['cpu_seconds']:.0f} | {found['evaluated_return']:.2f} |"
                lines.append(f"{start} {found['steps']:,} | {end}")
    lines += ["", "What SB3's version does not have:", ""]
    lines += [f"- **{name}**: {task['lacks']}." for name, task in SCRIPTS.items()]
    lines += ["", (RECORDS / "tasks.md").read_text().strip(), ""]
    (ROOT / "benchmarks" / "own_packages.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
