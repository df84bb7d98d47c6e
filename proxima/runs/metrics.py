"""Every metric that a run writes: its name, its group in TensorBoard, what it means and what to do about it.

The writers take their tags from here, and `python -m proxima.runs.metrics docs/metrics.md` writes the tables of the
documentation. Not here: how a metric is computed.
"""

import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Metric:
    """One metric, or a family of them where the name has a part in angle brackets: `episode_<name>`."""

    name: str
    group: str
    """In TensorBoard."""
    meaning: str
    unit: str = ""
    healthy: str = ""
    otherwise: str = ""
    """What to do where it is not healthy."""

    def covers(self, name: str) -> bool:
        """Whether a metric of this name is meant."""
        head, bracket, tail = self.name.partition("<name>")
        return name == self.name or bool(bracket and re.fullmatch(rf"{re.escape(head)}.+{re.escape(tail)}", name))


TABLES = {
    "progress": (
        Metric("iteration", "", "rollouts collected and learned from"),
        Metric("global_step", "", "env steps so far, over all envs", healthy="the axis to compare runs on"),
        Metric("wall_time", "speed", "since training started", unit="s"),
        Metric("episodes", "episodes", "episodes finished so far"),
        Metric(
            "episode_return",
            "episodes",
            "undiscounted sum of raw rewards, mean of the last 100 finished episodes",
            healthy="rises",
        ),
        Metric("episode_return_min", "episodes", "worst of these 100", otherwise="far below the best: brittle"),
        Metric("episode_return_max", "episodes", "best of these 100"),
        Metric(
            "episode_length",
            "episodes",
            "length of these episodes, mean",
            unit="env steps",
            healthy="rises where falling ends an episode",
        ),
        Metric("episode_length_min", "episodes", "the shortest", unit="env steps"),
        Metric("episode_length_max", "episodes", "the longest", unit="env steps"),
        Metric(
            "episode_success",
            "episodes",
            "share of these episodes that the env reports as a success (`is_success` or `success` in its `info`); only "
            "from the first report on",
            healthy="rises",
        ),
        Metric(
            "episode_<name>",
            "episodes",
            "mean over these episodes of each number that the env names in `episode_info`",
        ),
        Metric(
            "worker_restarts",
            "faults",
            "env workers or envs that died and were replaced (sync and async)",
            healthy="0",
            otherwise="read the log",
        ),
    ),
    "held actions": (
        Metric(
            "action_hold_seconds",
            "hold",
            "the hold of this iteration as the options say it; the middle of the range where it is random",
            unit="s",
        ),
        Metric(
            "action_hold_steps",
            "hold",
            "the same, rounded to env steps; the end of an episode cuts a hold short",
            unit="env steps",
        ),
        Metric("decisions", "hold", "actions chosen so far, over all envs; `global_step` counts their env steps"),
        Metric("decisions_per_second", "hold", "actions chosen since training started, updates included", unit="1/s"),
    ),
    "evaluation": (
        Metric("eval_return", "eval", "undiscounted return, mean over the episodes of the evaluation", healthy="rises"),
        Metric("eval_return_std", "eval", "standard deviation over these episodes"),
        Metric("eval_length", "eval", "mean length", unit="env steps"),
        Metric("eval_success", "eval", "share of successes, where the env reports them", healthy="rises"),
        Metric("eval_<name>", "eval", "mean of each number that the env names in `episode_info`"),
    ),
    "speed": (
        Metric("steps_per_second", "speed", "env steps since training started, updates included", unit="1/s"),
        Metric("collect_seconds", "speed", "stepping the envs with the policy", unit="s"),
        Metric("advantage_seconds", "speed", "PPO: values, log-probabilities and advantages of the rollout", unit="s"),
        Metric("store_seconds", "speed", "DQN: writing experience into the replay", unit="s"),
        Metric("update_seconds", "speed", "optimizer steps; the first update includes compilation", unit="s"),
    ),
    "learning": (
        Metric(
            "gradient_norm",
            "update",
            "before clipping to `max_grad_norm`",
            healthy="steady",
            otherwise="rises by orders of magnitude: unstable, lower `learning_rate`",
        ),
        Metric("learning_rate", "update", "at the end of the iteration", healthy="follows its schedule"),
    ),
    "PPO": (
        Metric(
            "policy_loss",
            "losses",
            "the clipped surrogate, negated",
            healthy="small, negative; its size says little",
        ),
        Metric(
            "value_loss",
            "losses",
            "half the squared error of the critic, on normalised rewards",
            healthy="falls, then follows the returns",
            otherwise="grows without end: lower `learning_rate`",
        ),
        Metric(
            "entropy",
            "losses",
            "of the action distribution; may be negative for continuous actions",
            unit="nats",
            healthy="falls slowly",
            otherwise="collapses early: raise `entropy_coef` or `initial_std`",
        ),
        Metric(
            "approx_kl",
            "update",
            "KL(old policy to new), estimated as mean(ratio - 1 - log ratio)",
            unit="nats",
            healthy="0.003 to 0.05",
            otherwise="above 0.1: lower `learning_rate` or `update_epochs`, or set `target_kl`",
        ),
        Metric(
            "clip_fraction",
            "update",
            "share of samples whose probability ratio left 1 ± `clip_range`",
            healthy="0.05 to 0.3",
            otherwise="above 0.5: as for `approx_kl`; 0: the policy hardly learns",
        ),
        Metric(
            "explained_variance",
            "update",
            "1 - Var(return - value) / Var(return), before the update",
            healthy="above 0.7 once learning is under way",
            otherwise="near or below 0: the critic predicts nothing; raise `value_loss_coef` or look at the reward's "
            "scale",
        ),
        Metric(
            "epochs",
            "update",
            "passes over the batch that were made",
            healthy="`update_epochs`",
            otherwise="fewer: `target_kl` ended the update early",
        ),
    ),
    "DQN": (
        Metric(
            "q_loss",
            "losses",
            "Huber loss of the action values",
            healthy="near or below 1; rises with the returns",
            otherwise="far above: scale the rewards down, since Huber's gradient stops growing at errors of 1",
        ),
        Metric("td_error", "update", "mean absolute TD error, which `q_loss` is made of"),
        Metric(
            "q_mean",
            "update",
            "mean value of the actions in the minibatches",
            healthy="approaches the discounted returns",
            otherwise="far above them: keep `double_q`, raise `target_update_every`, try `return_steps` 3",
        ),
        Metric("epsilon", "update", "share of random actions", healthy="follows its schedule"),
        Metric("replay_size", "update", "transitions in the replay", healthy="grows to `buffer_size`"),
    ),
}
"""By the part of the documentation that shows them."""
_COLUMNS = ("meaning", "unit", "healthy", "otherwise")
_TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def all_metrics() -> list[Metric]:
    """Every metric; families come after those that have a name of their own."""
    return sorted((metric for table in TABLES.values() for metric in table), key=lambda metric: "<" in metric.name)


@cache
def find_metric(name: str) -> Metric | None:
    """What a written metric is; None for one that is not ours, such as that of a user's own algorithm."""
    return next((metric for metric in all_metrics() if metric.covers(name)), None)


def tag(name: str) -> str | None:
    """The name of a metric in TensorBoard, with its group in front; None for the axis itself."""
    metric = find_metric(name)
    if metric is None:
        return f"update/{name}"
    return f"{metric.group}/{name}" if metric.group else None


def label(name: str) -> str:
    """A metric on the axis or in the title of a figure: its name and unit."""
    metric = find_metric(name)
    return f"{name} ({metric.unit})" if metric and metric.unit else name


def with_tables(page: str) -> str:
    """The page with each of its tables, between `<!-- table: NAME -->` and `<!-- end -->`, as it is here."""
    return _TABLE.sub(lambda match: match[1] + markdown(TABLES[match[2]]) + match[3], page)


def markdown(metrics: tuple[Metric, ...]) -> str:
    """One table, without the columns that are empty."""
    columns = [name for name in _COLUMNS if any(getattr(metric, name) for metric in metrics)]
    rows = [["name", "TensorBoard", *columns], ["---"] * (2 + len(columns))]
    for metric in metrics:
        group = f"{metric.group}/" if metric.group else ""
        rows.append([f"`{metric.name}`", group, *(getattr(metric, column) for column in columns)])
    return "".join("|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|\n" for row in rows)


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(with_tables(file.read_text(encoding="utf-8")), encoding="utf-8")
