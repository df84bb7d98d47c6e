"""Holds actions for different times and compares the returns at equal env steps; writes action_hold.md and .png.

    python benchmarks/action_hold.py --jobs 2             # every run that has no record yet, two side by side
    python benchmarks/action_hold.py --report             # only write the page anew
    python benchmarks/action_hold.py --steps 20k --seeds 1 --out somewhere    # a trial that touches nothing here

Each finished run leaves a record in benchmarks/action_hold/; a run is repeated by deleting its record. The back ends
are compared at the end, one run at a time on all cores. `conclusion.md` among the records is put on the page.
"""

import argparse
import json
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from returns import ROOT, run_all, train

from proxima.envs.action_hold import steps_of

STEP_SECONDS = {"halfcheetah": 0.05, "hopper": 0.008}
HOLDS: tuple[tuple[float, float], ...] = ((0.0, 0.0), (0.05, 0.05), (0.1, 0.1), (0.3, 0.3), (0.3, 0.05))
"""Seconds at the start and at the end of the run."""
NUM_ENVS = {"halfcheetah": 64, "hopper": 8}
UNHELD, FEWEST = 2048, 512
"""Decisions of an iteration without a hold, as in `configs/`, and the fewest with one."""
MODES = ("batch", "sync", "async")
MODES_HOLD = (0.1, 0.1)
MODES_STEPS = "200k"
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Two-sided 95 % quantile of Student's t, by the number of seeds."""

HOW = f"""\
Mean of the last 100 training episodes (actions sampled, as in training) when the env steps are used up, with the 95 %
interval of the mean over the seeds (Student's t). Made by `python benchmarks/action_hold.py`.

The settings are those of `configs/`, but for `num_steps`. All runs have equally many env steps, and equally many
gradient steps a decision. With a hold of k steps a run has only 1/k of the decisions. Were an iteration to keep its
{UNHELD} decisions, it would span k times the time, and the policy would be improved k times less often; so an iteration
has {UNHELD}/k decisions, which keeps the number of iterations, but not fewer than {FEWEST}: a smaller batch says too
little.

`smdp` on discounts by the env steps that an action took; off takes gamma per decision and the plain sum of rewards. A
step of HalfCheetah takes 0.05 s: a hold of 0.05 s is no hold there, and without a hold smdp changes nothing, so that
these are one line. A step of Hopper takes 0.008 s. The runs shared the machine with other work: their steps/s compare
within a few of them only; those of the back ends, below, were measured alone."""


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    task: str
    hold: tuple[float, float]
    smdp: bool
    mode: str | None = None
    """A back end, where these are what is compared."""

    @property
    def steps(self) -> tuple[int, int]:
        """The hold in env steps, at the start and at the end."""
        start, end = (steps_of(seconds, STEP_SECONDS[self.task]) for seconds in self.hold)
        return start, end

    @property
    def num_steps(self) -> int:
        """Decisions per env and iteration: about as many env steps as without a hold, but enough for a batch."""
        start, end = self.steps
        mean = start if start == end else (start - end) / math.log(start / end)  # 1 / mean of 1/k along a line
        return round(max(FEWEST, UNHELD / mean) / NUM_ENVS[self.task])

    @property
    def label(self) -> str:
        """The hold as the table names it."""
        start, end = self.hold
        return f"{start:g} s" if start == end else f"{start:g} -> {end:g} s"

    @property
    def key(self) -> str:
        """Names the records."""
        hold = "-".join(f"{seconds:g}" for seconds in dict.fromkeys(self.hold))
        return f"{self.task}-{hold}-{self.mode or ('smdp' if self.smdp else 'plain')}"

    def options(self, steps: str, seed: int) -> list[str]:
        """The command's."""
        start, end = self.hold
        held = ["--action-hold-start-seconds", f"{start:g}", "--action-hold-end-seconds", f"{end:g}"]
        if start == end:
            held = ["--action-hold-seconds", f"{start:g}"]
        size = ["--total-timesteps", steps, "--num-steps", str(self.num_steps), "--seed", str(seed)]
        mode = ["--vec-env-mode", self.mode] if self.mode else []
        return ["--config", f"configs/{self.task}.yaml", *held, "--smdp", str(self.smdp), *size, *mode]


def cases() -> list[Case]:
    """What differs: where the hold is one step, smdp changes nothing, and neither do seconds that come to the same."""
    found: dict[tuple[Any, ...], Case] = {}
    for task in STEP_SECONDS:
        for hold in HOLDS:
            for smdp in (True, False):
                case = Case(task, hold, smdp)
                one_step = case.steps == (1, 1)
                found.setdefault((task, case.steps, smdp or one_step), case)
    return list(found.values())


def mode_cases() -> list[Case]:
    return [Case(task, MODES_HOLD, True, mode) for task in STEP_SECONDS for mode in MODES]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=STEP_SECONDS, default=list(STEP_SECONDS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", default="1M", help="env steps of a run (default: 1M)")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--only", default="", help="only cases whose name contains this, such as hopper-0.1")
    parser.add_argument("--runs-dir", default=str(ROOT / "runs"), help="where the runs themselves are kept")
    parser.add_argument("--out", default=str(ROOT / "benchmarks"), help="where page, plot and records are kept")
    parser.add_argument("--report", action="store_true", help="only write the page from the records")
    arguments = parser.parse_args()
    out = Path(arguments.out)
    records = out / "action_hold"

    def path(job: tuple[Case, int]) -> Path:
        return records / f"{job[0].key}-{job[1]}.json"

    def run(job: tuple[Case, int], cores: list[int]) -> None:
        case, seed = job
        steps = MODES_STEPS if case.mode else arguments.steps
        reached, _ = train(case.options(steps, seed), f"hold-{case.key}-{seed}", cores, arguments.runs_dir)
        path(job).write_text(json.dumps({"case": case.key, "seed": seed, **reached}) + "\n")

    if not arguments.report:
        records.mkdir(parents=True, exist_ok=True)
        for group, seeds, jobs in ((cases(), arguments.seeds, arguments.jobs), (mode_cases(), arguments.seeds[:1], 1)):
            wanted = [
                (case, seed)
                for seed in seeds
                for case in group
                if case.task in arguments.tasks and arguments.only in case.key
            ]
            run_all([job for job in wanted if not path(job).exists()], jobs, run)
    report(out, records)
    return 0


def report(out: Path, records: Path) -> None:
    by_case: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(records.glob("*.json")):
        record = json.loads(file.read_text())
        by_case.setdefault(record["case"], []).append(record)
    if not by_case:
        raise SystemExit(f"no records in {records}: run it without --report first")
    plot(by_case, out / "action_hold.png")
    conclusion = records / "conclusion.md"
    lines = [
        "# Held actions",
        "",
        *([conclusion.read_text().strip(), ""] if conclusion.exists() else []),
        "## How it was measured",
        HOW,
        "",
        "| task | hold | env steps | smdp | num_steps | return | seeds | steps/s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    shown = [case for case in (*cases(), *mode_cases()) if case.key in by_case]
    lines += [table_line(case, by_case[case.key]) for case in shown if case.mode is None]
    lines += ["", "![Returns against env steps](action_hold.png)", "", "## Back ends"]
    lines += [
        f"The same run of {MODES_STEPS} env steps on each back end, one at a time, nothing beside it: the same bits,",
        "so the same return.",
        "",
        "| task | hold | env steps | back end | num_steps | return | seeds | steps/s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [table_line(case, by_case[case.key]) for case in shown if case.mode is not None]
    lines += ["", "## Every run", "| command | commit | machine | steps | seconds | return |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{r['command']}` | {r['commit']} | {r['machine']} | {r['steps']:,} | {r['seconds']:.0f} "
        f"| {r['final_return']:.0f} |"
        for case in shown
        for r in by_case[case.key]
    ]
    (out / "action_hold.md").write_text("\n".join(lines) + "\n")


def table_line(case: Case, records: list[dict[str, Any]]) -> str:
    finals = [r["final_return"] for r in records]
    spread = ""
    if len(finals) in STUDENT:
        spread = f" ± {STUDENT[len(finals)] * statistics.stdev(finals) / math.sqrt(len(finals)):.0f}"
    start, end = case.steps
    steps = f"{start}" if start == end else f"{start} -> {end}"
    how = case.mode or ("no hold" if start == end == 1 else "on" if case.smdp else "off")
    speed, mean = statistics.fmean(r["steps_per_second"] for r in records), statistics.fmean(finals)
    return (
        f"| {case.task} | {case.label} | {steps} | {how} | {case.num_steps} | **{mean:.0f}{spread}** | {len(finals)} "
        f"| {speed:,.0f} |"
    )


def plot(by_case: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Mean over the seeds, and their range where smdp is on."""
    figure, axes = plt.subplots(1, len(STEP_SECONDS), figsize=(5.4 * len(STEP_SECONDS), 4.0), layout="constrained")
    colours = {hold: f"C{i}" for i, hold in enumerate(HOLDS)}
    for axis, task in zip(axes, STEP_SECONDS, strict=True):
        for case in cases():
            if case.task != task or case.key not in by_case:
                continue
            steps, low, mean, high = averaged([r["curve"] for r in by_case[case.key]])
            word = "" if case.steps == (1, 1) else ", smdp" if case.smdp else ", plain"
            line = "-" if case.smdp else "--"
            axis.plot(steps, mean, line, color=colours[case.hold], linewidth=1.4, label=case.label + word)
            if case.smdp:
                axis.fill_between(steps, low, high, color=colours[case.hold], alpha=0.12, linewidth=0)
        axis.set(title=task, xlabel="env steps (millions)", ylabel="episode return")
        axis.grid(alpha=0.25)
        axis.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=130)


def averaged(curves: list[list[tuple[int, float | None]]]) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Steps in millions, least, mean and greatest of curves that have points at different steps."""
    known = [np.array([point for point in curve if point[1] is not None]).T for curve in curves]
    steps = np.linspace(max(curve[0, 0] for curve in known), min(curve[0, -1] for curve in known), 151)
    values = np.stack([np.interp(steps, *curve) for curve in known])
    return steps / 1e6, values.min(0), values.mean(0), values.max(0)


if __name__ == "__main__":
    sys.exit(main())
