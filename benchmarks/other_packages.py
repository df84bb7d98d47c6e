"""Plain defaults on tasks of other packages, beside those of Stable-Baselines3 (SB3); writes other_packages.md.

    python benchmarks/other_packages.py                   # every run without a record: about 40 minutes on two cores
    python benchmarks/other_packages.py --tasks FlappyBird --seeds 1 --jobs 2
    python benchmarks/other_packages.py --report          # only write the page again

No default was tuned on these tasks. Both libraries get the same env id, keyword arguments and number of env steps, and
nothing else: Proxima without a preset, SB3's PPO with a single env, as in its documentation. Each has a virtual
environment of its own with the packages (benchmarks/.other-packages-venv and benchmarks/.sb3-other-packages-venv,
kept). Each finished run writes a record to benchmarks/other_packages/; delete a record to repeat its run. With
--jobs N, N runs go in parallel, each on its own cores.
"""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from throughput import PEER, ROOT, install_peer
from training_runs import git_commit, run_all

RECORDS = ROOT / "benchmarks" / "other_packages"
OUR_VENV = ROOT / "benchmarks" / ".other-packages-venv"
SB3_VENV = ROOT / "benchmarks" / ".sb3-other-packages-venv"
PACKAGES = ("minigrid==3.2.0", "gymnasium-robotics==1.4.2", "flappy-bird-gymnasium==0.4.0")
OURS = ("-c", str(ROOT / "constraints.txt"), "-e", str(ROOT))
LIBRARIES = ("Proxima", "SB3")
EPISODES = 100
EVALUATION_SEED = 1000
TASKS: dict[str, dict[str, Any]] = {
    "DoorKey": {
        "env": "minigrid_flat:MiniGrid-DoorKey-5x5-Flat-v0",
        "kwargs": {},
        "steps": 100_000,
        "what": "minigrid: discrete actions, 147 numbers, a reward of at most 1 at the goal only",
    },
    "PointMaze": {
        "env": "gymnasium_robotics:PointMaze_UMazeDense-v3",
        "kwargs": {},
        "steps": 50_000,
        "what": "gymnasium-robotics: continuous actions, dict observations, a dense reward for 300 steps",
    },
    "FlappyBird": {
        "env": "flappy_bird_gymnasium:FlappyBird-v0",
        "kwargs": {"use_lidar": False, "score_limit": 20},
        "steps": 50_000,
        "what": "flappy-bird-gymnasium: discrete actions, 12 numbers, 20 pipes at most",
    },
}
SB3_SCRIPT = """
import json, statistics, sys
import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
env_id, kwargs, steps, seed, episodes, evaluation_seed = json.loads(sys.argv[1])
env = gym.make(env_id, **kwargs)
policy = "MultiInputPolicy" if isinstance(env.observation_space, gym.spaces.Dict) else "MlpPolicy"
model = PPO(policy, env, seed=seed).learn(steps)
trained = statistics.fmean(episode["r"] for episode in model.ep_info_buffer)
test = Monitor(gym.make(env_id, **kwargs))
test.reset(seed=evaluation_seed)
evaluated, _ = evaluate_policy(model, test, episodes, deterministic=True)
print(json.dumps({"steps": model.num_timesteps, "final_return": trained, "evaluated_return": float(evaluated)}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="runs in parallel")
    parser.add_argument("--report", action="store_true", help="only write the page from the records")
    arguments = parser.parse_args()
    if not arguments.report:
        install_peer(OUR_VENV, (*OURS, *PACKAGES))
        install_peer(SB3_VENV, (*PEER, *PACKAGES))
        wanted = [(t, lib, s) for t in arguments.tasks for s in arguments.seeds for lib in arguments.libraries]
        missing = [job for job in wanted if not record_path(*job).exists()]
        run_all(missing, arguments.jobs, lambda job, cores: run(*job, cores))
    report()
    return 0


def record_path(task: str, library: str, seed: int) -> Path:
    return RECORDS / f"{task}-{library}-{seed}.json"


def run(task: str, library: str, seed: int, cores: list[int]) -> None:
    print(f"{time.strftime('%H:%M:%S')} {task} {library} seed {seed} on cores {cores}", flush=True)
    started = time.time()
    found = (run_proxima if library == "Proxima" else run_sb3)(TASKS[task], seed, cores)
    record = {
        "task": task,
        "library": library,
        "seed": seed,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {len(cores)} core(s) of {os.cpu_count()}",
        "seconds": round(time.time() - started, 1),
        **found,
    }
    RECORDS.mkdir(exist_ok=True)
    record_path(task, library, seed).write_text(json.dumps(record) + "\n")
    print(f"{time.strftime('%H:%M:%S')} {task} {library} seed {seed}: {record['final_return']:.2f}", flush=True)


def run_proxima(task: dict[str, Any], seed: int, cores: list[int]) -> dict[str, Any]:
    options = ["--env", task["env"], "--total-timesteps", str(task["steps"]), "--preset", "none", "--seed", str(seed)]
    options += ["--env-kwargs", json.dumps(task["kwargs"])] if task["kwargs"] else []
    program, commit = [str(OUR_VENV / "bin" / "python"), "-m", "proxima"], git_commit()
    with tempfile.TemporaryDirectory() as folder:
        execute([*program, "train", *options, "--progress", "False", "--name", "run"], folder, cores)
        (run_dir,) = (Path(folder) / "runs" / "run").iterdir()
        last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
        evaluate = ["evaluate", str(run_dir), "--episodes", str(EPISODES), "--seed", str(EVALUATION_SEED), "--json"]
        evaluated = json.loads(execute([*program, *evaluate], folder, cores))
    return {
        "steps": last["global_step"],
        "final_return": last["episode_return"],
        "evaluated_return": evaluated["return"]["mean"],
        "command": "proxima train " + shlex.join(options),
        "commit": commit,
    }


def run_sb3(task: dict[str, Any], seed: int, cores: list[int]) -> dict[str, Any]:
    work = json.dumps([task["env"], task["kwargs"], task["steps"], seed, EPISODES, EVALUATION_SEED])
    with tempfile.TemporaryDirectory() as folder:
        output = execute([str(SB3_VENV / "bin" / "python"), "-c", SB3_SCRIPT, work], folder, cores)
    return json.loads(output.splitlines()[-1])


def execute(command: list[str], folder: str, cores: list[int]) -> str:
    """What a command prints, run in `folder` and on `cores`; `minigrid_flat` can be imported."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")},
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def report() -> None:
    records = [json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))]
    peer = next(package for package in PEER if package.startswith("stable-baselines3")).replace("==", " ")
    lines = [
        "# Plain defaults on tasks of other packages",
        "",
        "`proxima train --env ENV --total-timesteps N --preset none` beside SB3's `PPO(policy, env).learn(N)`",
        f"({peer}), each with all its defaults, on tasks that ours were not tuned on. Same env id, keyword arguments",
        "and number of env steps. Return: the last 100 training episodes (sampled actions); evaluated:",
        f"{EPISODES} deterministic episodes of the final policy. Mean, and each seed. Generated by",
        "`python benchmarks/other_packages.py`.",
        "",
        "| task | steps | library | return | each seed | evaluated | each seed |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for task in TASKS:
        for library in LIBRARIES:
            found = [r for r in records if (r["task"], r["library"]) == (task, library)]
            if found:
                columns = [cells([r[key] for r in found]) for key in ("final_return", "evaluated_return")]
                lines.append(f"| {task} | {found[0]['steps']:,} | {library} | {' | '.join(columns)} |")
    lines += ["", "The tasks:", ""]
    for name, task in TASKS.items():
        kwargs = f" with `{json.dumps(task['kwargs'])}`" if task["kwargs"] else ""
        lines.append(f"- {name}: `{task['env'].partition(':')[2]}`{kwargs} ({task['what']})")
    lines += [
        "",
        f"Versions: {', '.join(PACKAGES)}. `minigrid_flat.py` registers DoorKey without its text.",
        "",
        "Every run of Proxima; the records in `other_packages/` also have the seconds, which are no measure of speed,",
        "since other programs ran at the same time.",
        "",
        "| command | commit | return | evaluated |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{r['command']}` | {r['commit']} | {r['final_return']:.2f} | {r['evaluated_return']:.2f} |"
        for r in records
        if r["library"] == "Proxima"
    ]
    (ROOT / "benchmarks" / "other_packages.md").write_text("\n".join([*lines, ""]))
    print("\n".join(lines[8 : lines.index("The tasks:")]))


def cells(values: list[float]) -> str:
    return f"**{statistics.fmean(values):.2f}** | {' '.join(f'{value:.2f}' for value in values)}"


if __name__ == "__main__":
    sys.exit(main())
