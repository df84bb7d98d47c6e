"""Trains a GRU and an MLP of the same size on partially observable tasks; writes recurrent_tasks.md and .png.

    python benchmarks/recurrent_tasks.py                            # every task, policy and seed without a record
    python benchmarks/recurrent_tasks.py --tasks recall32 --seeds 1
    python benchmarks/recurrent_tasks.py --report                   # only write recurrent_tasks.md and .png again

Each finished run writes a record to benchmarks/recurrent_tasks/; delete a record to repeat its run.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parent.parent))

from training_runs import ROOT, train

from proxima import load_policy
from proxima.evaluation.episodes import evaluate

RECORDS = ROOT / "benchmarks" / "recurrent_tasks"
CLASSIC = {"preset": "none", "num-envs": 16, "learning-rate": 1e-3, "entropy-coef": 0, "gamma": 0.99}
RECALL = {
    "preset": "none",
    "lr-schedule": "constant",
    "entropy-coef": 0.01,
    "env": "proxima/Recall-v0",
    "num-envs": 64,
    "update-epochs": 4,
    "learning-rate": 3e-3,
    "normalize-obs": False,
    "normalize-reward": False,
}
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {
        "title": "CartPole-v1 without velocities",
        "target": 475,
        "options": CLASSIC | {"env": "proxima/CartPoleHidden-v1", "num-steps": 128, "update-epochs": 4},
        "total": 300_000,
        "gru": (64, 32, 16),
        "mlp": (104, 512),
    },
    "pendulum": {
        "title": "Pendulum-v1 without the velocity",
        "target": -200,
        "options": CLASSIC | {"env": "proxima/PendulumHidden-v1", "num-steps": 256, "update-epochs": 10, "gamma": 0.95},
        "total": 600_000,
        "gru": (64, 32, 16),
        "mlp": (104, 512),
    },
    "recall32": {
        "title": "recall after 32 distracting steps",
        "target": 0.95,
        "options": RECALL | {"env-kwargs": "{delay: 32}", "num-steps": 68},
        "total": 400_000,
        "gru": (32, 34, 32),
        "mlp": (52, 1088),
    },
    "recall128": {
        "title": "recall after 128 distracting steps",
        "target": 0.95,
        "options": RECALL | {"env-kwargs": "{delay: 128}", "num-steps": 130},
        "total": 1_200_000,
        "gru": (32, 130, 16),
        "mlp": (52, 2080),
    },
}
POLICIES = {"gru": "GRU", "mlp": "MLP"}
EPISODES = 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--runs-dir", default=str(ROOT / "runs"), help="folder of the runs")
    parser.add_argument("--report", action="store_true", help="only write the page from the records")
    arguments = parser.parse_args()
    if not arguments.report:
        for seed in arguments.seeds:
            for task in arguments.tasks:
                for policy in arguments.policies:
                    if not record_path(task, policy, seed).exists():
                        run(task, policy, seed, arguments.runs_dir)
    report()
    return 0


def record_path(task: str, policy: str, seed: int) -> Path:
    return RECORDS / f"{task}-{policy}-{seed}.json"


def run(task: str, policy: str, seed: int, runs_dir: str) -> None:
    facts = TASKS[task]
    options = facts["options"] | {"total-timesteps": facts["total"], "seed": seed, "compile": "off"}
    flags = [*(part for name, value in options.items() for part in (f"--{name}", str(value)))]
    if policy == "gru":
        size, length, sequences = facts["gru"]
        flags += ["--rnn", "gru", "--rnn-size", str(size), "--hidden-sizes", str(size)]
        flags += ["--bptt-length", str(length), "--minibatch-size", str(sequences)]
    else:
        width, samples = facts["mlp"]
        flags += ["--hidden-sizes", str(width), str(width), "--minibatch-size", str(samples)]
    cores = sorted(os.sched_getaffinity(0))
    record, run_dir = train(flags, f"recurrent-{task}-{policy}-{seed}", cores, runs_dir)
    found = evaluate(run_dir, episodes=EPISODES, seed=1000 + seed)
    parameters = sum(p.numel() for p in load_policy(run_dir).policy.parameters())
    RECORDS.mkdir(exist_ok=True)
    more = {"task": task, "policy": policy, "seed": seed, "parameters": parameters, "reached": found.returns.mean}
    record_path(task, policy, seed).write_text(json.dumps(more | record) + "\n")
    print(f"  evaluated: {found.returns.mean:.2f}", flush=True)


def report() -> None:
    records = [json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))]
    if not records:
        raise SystemExit(f"no records in {RECORDS}: run it without --report first")
    groups = {
        (task, policy): [r for r in records if (r["task"], r["policy"]) == (task, policy)]
        for task in TASKS
        for policy in POLICIES
    }
    plot(groups)
    lines = [
        "# Tasks that need recurrence",
        "",
        f"Mean return of {EPISODES} deterministic episodes at the end of a run: mean (and minimum) over seeds.",
        "Generated by `python benchmarks/recurrent_tasks.py`. The MLP has about as many parameters and the same",
        "observations as the GRU. In the recall tasks it can only guess, since the observation does not contain the",
        "answer when it is due.",
        "",
        "| task | steps | target | GRU | MLP | seeds | parameters |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for task, facts in TASKS.items():
        gru, mlp = groups[task, "gru"], groups[task, "mlp"]
        if gru and mlp:
            cells = [
                f"{statistics.fmean(x):.2f} ({min(x):.2f})" for x in ([r["reached"] for r in g] for g in (gru, mlp))
            ]
            lines.append(
                f"| {facts['title']} | {gru[0]['steps'] / 1e6:.1f}M | {facts['target']} | **{cells[0]}** | {cells[1]} "
                f"| {len(gru)}, {len(mlp)} | {gru[0]['parameters']:,}, {mlp[0]['parameters']:,} |"
            )
    lines += ["", "![return against steps](recurrent_tasks.png)", "", "Every run:", ""]
    lines += ["| command | commit | machine | steps/s | reached |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{r['command']}` | {r['commit']} | {r['machine']} | {r['steps_per_second']:,} | {r['reached']:.2f} |"
        for group in groups.values()
        for r in sorted(group, key=lambda r: r["seed"])
    ]
    (ROOT / "benchmarks" / "recurrent_tasks.md").write_text("\n".join([*lines, ""]))


def plot(groups: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(8.4, 6.4), layout="constrained")
    for axis, (task, facts) in zip(axes.flat, TASKS.items(), strict=True):
        for policy, color in zip(POLICIES, ("tab:blue", "tab:orange"), strict=True):
            for r in groups[task, policy]:
                points = [(step / 1e6, value) for step, value in r["curve"] if value is not None]
                label = POLICIES[policy] if r is groups[task, policy][0] else None
                axis.plot(*zip(*points, strict=True), linewidth=1.3, color=color, alpha=0.8, label=label)
        axis.axhline(facts["target"], color="0.5", linestyle="--", linewidth=1, label="target")
        axis.set(title=facts["title"], xlabel="env steps (millions)", ylabel="episode return")
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8, frameon=False)
    figure.savefig(ROOT / "benchmarks" / "recurrent_tasks.png", dpi=130)


if __name__ == "__main__":
    sys.exit(main())
