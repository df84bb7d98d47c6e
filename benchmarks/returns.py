"""Trains the presets on many tasks and seeds; writes returns.md and returns.png.

    python benchmarks/returns.py --jobs 2                           # every task and seed without a record: a day
    python benchmarks/returns.py --tasks Hopper-v5 --seeds 1 2 3 --jobs 2
    python benchmarks/returns.py --verify --jobs 2                  # do recorded runs begin the same with this code?
    python benchmarks/returns.py --report                           # only write the page again

Each finished run writes a record to benchmarks/returns/; to repeat it, delete its record and its folder in runs/.
conclusion.md among the records is copied to the page. With --jobs N, N runs go in parallel, each on its own cores. An
interrupted run continues from its last checkpoint when the same command is given again.

Records of several commits belong on one page only if the code between them trains in the same way. --verify repeats the
first tenth of recorded runs, compares their returns with the record, digit by digit, and notes the commit in the
record. It does not see what differs only later in a run, or in the evaluation.
"""

import argparse
import json
import math
import os
import statistics
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter, MaxNLocator
from training_runs import ROOT, curve, evaluate, git_commit, repeats, run_all, train

from proxima.evaluation.statistics import FEWEST, Summary
from proxima.report.runs import load_run
from proxima.text import number

RECORDS = ROOT / "benchmarks" / "returns"
EPISODES = 100
FIVE, THREE, TWO = (1, 2, 3, 4, 5), (1, 2, 3), (1, 2)


@dataclass(frozen=True)
class Task:
    """One row of the table: what is trained, and what it is compared with."""

    env: str
    steps: str
    bar: float | None = None
    """What the project wants to reach at least, as a return or, for games with an end, a success rate."""
    published: str = ""
    """The best published results of PPO that we know."""
    seeds: tuple[int, ...] = FIVE
    config: str | None = None
    """The preset; None: the one that is found by the env id."""
    measure: str = "return"
    """return; success: the share of episodes with success; game_score: the score of complete games."""
    train_kwargs: str = ""
    """Keyword arguments of the env."""
    eval_kwargs: str = ""
    """Those that are changed for the evaluation."""
    bar_in_plot: bool = True
    """False: the returns of training, which are plotted, have other units than the bar."""
    sampled: bool = False
    """Evaluate with sampled actions: for games that are deterministic, where all episodes would be the same."""

    @property
    def name(self) -> str:
        """Name of the records and on the command line."""
        env = self.env.removeprefix("ALE/").removeprefix("proxima/")
        return f"{env}-{self.steps}" + (f"-{self.config}" if self.config else "")

    def options(self, seed: int) -> list[str]:
        """Options of `proxima train`."""
        what = ["--config", self.config] if self.config else ["--env", self.env]
        kwargs = ["--env-kwargs", self.train_kwargs] if self.train_kwargs else []
        return [*what, *kwargs, "--total-timesteps", self.steps, "--seed", str(seed)]

    def evaluation(self) -> list[str]:
        """Options of `proxima evaluate`."""
        kwargs = ["--env-kwargs", self.eval_kwargs] if self.eval_kwargs else []
        return [*kwargs, *(["--stochastic"] if self.sampled else [])]


# As in the published runs: no random repetition of actions; evaluated are complete games and their score.
ATARI = {
    "train_kwargs": "{repeat_action_probability: 0}",
    "eval_kwargs": "{end_on_life_loss: false, reward_clip: false}",
}
MARIO = {"env": "proxima/SuperMarioBros-1-1-v0", "seeds": TWO, "measure": "success", "sampled": True}
TASKS = [
    Task("HalfCheetah-v5", "1M", 6500, "Tianshou 5,784, SB3 zoo 5,819"),
    Task("HalfCheetah-v5", "3M", 8500, "Tianshou 7,337"),
    Task("Walker2d-v5", "3M", 5000, "Tianshou 4,896"),
    Task("Hopper-v5", "1M", 2800, "Tianshou 2,609, SB3 zoo 2,410"),
    Task("Ant-v5", "3M", 4500, "Tianshou 4,079"),
    Task("Humanoid-v5", "10M", 5800, "Sample Factory 5,439", THREE),
    Task("Swimmer-v5", "1M", 300, "SB3 zoo 282"),
    Task("Reacher-v5", "1M", -4.5, "Tianshou about -4"),
    Task("InvertedDoublePendulum-v5", "1M", 9200, "Tianshou about 9,200"),
    Task("LunarLander-v3", "1M", 260, "SB3 zoo 242"),
    Task("LunarLanderContinuous-v3", "1M", 275, "SB3 zoo 271"),
    Task("BipedalWalker-v3", "5M", 300, "SB3 zoo 213"),
    Task("Pendulum-v1", "100k", -165, "SB3 zoo -172"),
    Task("MountainCarContinuous-v0", "20k", 92, "SB3 zoo 88"),
    Task("Acrobot-v1", "1M", -73, "SB3 zoo -73.5"),
    Task("MountainCar-v0", "1M", -105, "SB3 zoo -110"),
    Task(steps="2M", bar=0.95, config="mario_ppo", **MARIO),
    Task(steps="2M", config="mario_dqn", **MARIO),
    Task(steps="1M", config="dqn_baseline", **MARIO),
    Task("ALE/Pong-v5", "2.5M", 20, "SB3 zoo 21.0 at 10M steps", TWO, **ATARI),
    Task("ALE/Breakout-v5", "2.5M", 300, "SB3 zoo 398 at 10M steps", TWO, **ATARI, bar_in_plot=False),
    Task("ALE/Breakout-v5", "10M", 300, "SB3 zoo 398", TWO, measure="game_score", **ATARI),
    Task("CartPole-v1", "100k", 500, "SB3 zoo 500", THREE),
    Task("InvertedPendulum-v5", "300k", seeds=THREE),
    Task("Pusher-v5", "1M", seeds=THREE),
    Task("FrozenLake-v1", "300k", seeds=THREE),
    Task("Taxi-v4", "300k", seeds=THREE),
    Task("CliffWalking-v1", "300k", seeds=THREE),
]
BY_NAME = {task.name: task for task in TASKS}


def main() -> int:
    names = textwrap.fill(f"Tasks: {', '.join(BY_NAME)}", 120, break_on_hyphens=False)
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=names, formatter_class=raw)
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="only tasks whose name begins so (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, help="(default: the two to five of each task)")
    parser.add_argument("--jobs", type=int, default=1, help="runs in parallel")
    parser.add_argument("--runs-dir", default=str(ROOT / "runs"), help="folder of the runs")
    parser.add_argument(
        "--verify", action="store_true", help="repeat the beginning of recorded runs, and compare; writes to records"
    )
    parser.add_argument("--report", action="store_true", help="only write the page from the records")
    arguments = parser.parse_args()
    wanted = [task for task in TASKS if any(task.name.startswith(name) for name in arguments.tasks or [""])]
    if not wanted:
        raise SystemExit(f"no task begins with {arguments.tasks}; there are {', '.join(BY_NAME)}")
    jobs = [(task, seed) for task in wanted for seed in arguments.seeds or task.seeds]
    if arguments.verify:
        recorded = [job for job in jobs if record_path(*job).exists()]
        different: list[str] = []
        run_all(recorded, arguments.jobs, lambda job, cores: different.extend(verify(*job, cores)))
        report()
        for name in different:
            print(f"{name} begins differently with this code: delete its record and its run folder, and run it again")
        return len(different) > 0
    if not arguments.report:
        RECORDS.mkdir(exist_ok=True)
        missing = [job for job in jobs if not record_path(*job).exists()]
        run_all(missing, arguments.jobs, lambda job, cores: run(*job, cores, arguments.runs_dir))
    report()
    return 0


def record_path(task: Task, seed: int) -> Path:
    return RECORDS / f"{task.name}-{seed}.json"


def run(task: Task, seed: int, cores: list[int], runs_dir: str) -> None:
    record, run_dir = train(task.options(seed), f"returns-{task.name}-{seed}", cores, runs_dir, continues=True)
    evaluated = evaluate(run_dir, EPISODES, cores, *task.evaluation())
    record |= {
        "task": task.name,
        "seed": seed,
        "evaluated_return": evaluated["return"]["mean"],
        "evaluated_std": evaluated["return"]["std"],
    }
    if task.measure != "return":
        points = curve(load_run(run_dir), f"episode_{task.measure}")
        reached = evaluated["success_rate"] if task.measure == "success" else evaluated["return"]["mean"]
        record |= {f"final_{task.measure}": points[-1][1], f"evaluated_{task.measure}": reached}
        record[f"{task.measure}_curve"] = points
    record_path(task, seed).write_text(json.dumps(record) + "\n")


def verify(task: Task, seed: int, cores: list[int]) -> list[str]:
    """The name of the record, if its run begins differently now."""
    path = record_path(task, seed)
    record = json.loads(path.read_text())
    if record["cores"] > (os.cpu_count() or 1):
        print(f"{path.stem}: trained on {record['cores']} cores, and therefore not repeated here")
        return []
    if not repeats(record, path.stem, cores):
        return [path.stem]
    path.write_text(json.dumps(record | {"verified": git_commit()}) + "\n")
    return []


# The page -------------------------------------------------------------------------------------------------------------

INTRODUCTION = f"""\
# Returns

`proxima train --env ENV --total-timesteps N --seed S`, with no other option: the preset for the env is found by its id.
Super Mario Bros. is trained with `--config`, Atari without sticky actions; all commands are at the end of the page.

- **Training**: mean return of the last 100 training episodes (sampled actions) at the end of the run.
- **Evaluated**: mean return of {EPISODES} episodes of the final policy with deterministic actions. Super Mario Bros.:
  how many of {EPISODES} episodes reach the flag, with sampled actions (DQN: its last epsilon), because the game is
  deterministic and would repeat one episode. Atari: evaluated is the score of complete games; training is the return of
  one life (Pong: of a game), with rewards clipped to -1, 0 and 1, or, at 10M steps, the score of complete games too.
- Both are interquartile means over seeds (Agarwal et al. 2021), with a 95 % bootstrap interval where there are five
  seeds, else with minimum and maximum. Five seeds make that interval somewhat too narrow, and their interquartile mean
  leaves out the best and the worst: hence the columns with the plain mean, which most published numbers are, and the
  worst seed. Bold: at least as good as the bar, whatever the interval.
- **Bar**: what we want to reach when evaluated. **Published**: the best published results of PPO that we know, from the
  benchmark pages of Tianshou, Sample Factory and RL Baselines3 Zoo. They are evaluated with deterministic actions, on
  older versions of the envs (MuJoCo v3 and v4), each with its own protocol (Tianshou: the best of the evaluations along
  the run, mean over ten seeds; SB3 zoo: one run).
- **Repeat a row**: `python benchmarks/returns.py --tasks Hopper-v5 --seeds 1`, once its record and its run folder are
  deleted. By hand: `taskset -c 0 proxima train --env Hopper-v5 --total-timesteps 1M --seed 1`, because the last digits
  of sums depend on the number of threads, and `proxima evaluate RUN --episodes {EPISODES}` (Super Mario Bros.: with
  `--stochastic`; Atari: with `--env-kwargs '{ATARI["eval_kwargs"]}'`).

Generated by `python benchmarks/returns.py`.
"""
HEAD = "| env | steps | seeds | training | evaluated | mean, evaluated | worst seed, evaluated | bar | published |"


def report() -> None:
    records = [json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))]
    groups = {task: [r for r in records if r["task"] == task.name] for task in TASKS}
    groups = {task: sorted(group, key=lambda r: r["seed"]) for task, group in groups.items() if group}
    if not groups:
        raise SystemExit(f"no records in {RECORDS}: run it without --report first")
    plot(groups)
    conclusion = RECORDS / "conclusion.md"
    lines = [INTRODUCTION, HEAD, "| --- " * 9 + "|"]
    lines += [table_line(task, group) for task, group in groups.items()]
    lines += ["", "![Return against env steps](returns.png)", ""]
    lines += [
        "One line per seed, in training; dashed: the bar, which is for evaluations. Mario: success rate. Breakout:",
        "at 2.5M steps the clipped return of one life, without the bar; at 10M steps the score of complete games.",
        "",
        conclusion.read_text(),
        "## Every run",
        "",
    ]
    lines += [
        "Commit: the last one that changed the package; `A, as B`: trained with A; the first tenth, repeated with B,",
        "had the same returns. Parts: 1 + how often the run was interrupted and resumed.",
        "",
    ]
    lines += ["| command | commit | machine | parts | seconds | training | evaluated |", "| --- " * 7 + "|"]
    lines += [run_line(task, r) for task, group in groups.items() for r in group]
    (ROOT / "benchmarks" / "returns.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines[1 : 3 + len(groups)]))


def table_line(task: Task, group: list[dict[str, Any]]) -> str:
    trained, evaluated = ([r[f"{kind}_{task.measure}"] for r in group] for kind in ("final", "evaluated"))
    config = f" ({task.config})" if task.config else ""
    cells = [f"{task.env}{config}", task.steps, f"{len(group)}", _cell(task, trained), _cell(task, evaluated)]
    cells += [_shown(task, statistics.fmean(evaluated)), _shown(task, min(evaluated))]
    return f"| {' | '.join([*cells, '' if task.bar is None else _shown(task, task.bar), task.published])} |"


def run_line(task: Task, r: dict[str, Any]) -> str:
    reached = [_shown(task, r[f"{kind}_{task.measure}"]) for kind in ("final", "evaluated")]
    commit = r["commit"] + (f", as {r['verified']}" if r.get("verified", r["commit"]) != r["commit"] else "")
    cells = [f"`{r['command']}`", commit, r["machine"], f"{r.get('parts', 1)}", f"{r['seconds']:,.0f}", *reached]
    return f"| {' | '.join(cells)} |"


def _shown(task: Task, value: float) -> str:
    return f"{value:.0%}" if task.measure == "success" else number(value)


def _cell(task: Task, values: list[float]) -> str:
    summary = Summary.of(values)
    low, high = (summary.iqm_low, summary.iqm_high) if len(values) >= FEWEST else (summary.min, summary.max)
    reached = task.bar is not None and summary.iqm >= task.bar
    mark = "**" if reached else ""
    return f"{mark}{_shown(task, summary.iqm)}{mark} ({_shown(task, low)} to {_shown(task, high)})"


def plot(groups: dict[Task, list[dict[str, Any]]]) -> None:
    columns = min(5, len(groups))
    rows = math.ceil(len(groups) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.3 * columns, 2.6 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(groups) :]:
        axis.set_visible(False)
    for axis, (task, group) in zip(axes.flat, groups.items(), strict=False):
        for r in group:
            points = r["curve" if task.measure == "return" else f"{task.measure}_curve"]
            axis.plot(*zip(*points, strict=True), linewidth=1.1)
        if task.bar is not None and task.bar_in_plot:
            axis.axhline(task.bar, color="0.5", linestyle="--", linewidth=1)
        config = f"\n{task.config}" if task.config else ""
        axis.set_title(f"{task.env.removeprefix('proxima/')}, {task.steps}{config}", fontsize=9)
        axis.xaxis.set_major_locator(MaxNLocator(4))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.25)
    figure.supxlabel("env steps", fontsize=9)
    figure.supylabel("training return (Mario: success rate)", fontsize=9)
    figure.savefig(ROOT / "benchmarks" / "returns.png", dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
