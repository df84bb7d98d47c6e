"""Every metric that a run writes: name, TensorBoard group, meaning, healthy range.

The writers take their tags from here, and `python -m proxima.runs.metrics docs/metrics.md` updates the tables of the
documentation.
"""

import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Metric:
    """One metric, or a family of metrics if its name contains `<name>`: `episode_<name>`."""

    name: str
    group: str
    """In TensorBoard."""
    meaning: str
    unit: str = ""
    healthy: str = ""
    otherwise: str = ""
    """What it means, and what to do, when it is not healthy."""

    def covers(self, name: str) -> bool:
        """Whether `name` is this metric or a member of this family."""
        head, bracket, tail = self.name.partition("<name>")
        return name == self.name or bool(bracket and re.fullmatch(rf"{re.escape(head)}.+{re.escape(tail)}", name))


TABLES = {
    "progress": (
        Metric("iteration", "", "rollouts collected and learned from"),
        Metric("global_step", "", "so far, over all envs", unit="env steps", healthy="the axis to compare runs on"),
        Metric("wall_time", "speed", "time since training started", unit="s"),
        Metric("episodes", "episodes", "episodes finished so far"),
        Metric(
            "episode_return",
            "episodes",
            "undiscounted raw return, mean of the last 100 episodes (with more than 100 envs, of one per env)",
            healthy="rises",
        ),
        Metric("episode_return_min", "episodes", "lowest of these 100", otherwise="far below the mean: not robust"),
        Metric("episode_return_max", "episodes", "highest of these 100"),
        Metric(
            "episode_length",
            "episodes",
            "mean length of these 100 episodes",
            unit="env steps",
            healthy="rises in tasks where falling ends the episode",
        ),
        Metric("episode_length_min", "episodes", "shortest of these 100", unit="env steps"),
        Metric("episode_length_max", "episodes", "longest of these 100", unit="env steps"),
        Metric(
            "episode_success",
            "episodes",
            "success rate of these 100 (`is_success` or `success` in the env's `info`); written from the first time "
            "the env reports it",
            healthy="rises",
        ),
        Metric("episode_<name>", "episodes", "mean over these 100 of each number that the env lists in `episode_info`"),
        Metric(
            "info_<name>",
            "info",
            "with `log_info`: mean over the env steps of this iteration whose `info` has the number",
        ),
        Metric(
            "worker_restarts",
            "faults",
            "env workers or envs that crashed and were replaced (sync and async)",
            healthy="0",
            otherwise="the log has the traceback",
        ),
        Metric(
            "physics_failures",
            "faults",
            "quadruped: episodes ended because the physics failed (NaN, or far too fast)",
            healthy="below 50 in a million steps",
            otherwise="lower the gains, or the pushes",
        ),
        Metric(
            "contact_overflows",
            "faults",
            "quadruped on a GPU: robots whose contacts once did not fit into memory",
            healthy="few",
            otherwise="many: raise `engine.max_contacts` and `engine.max_constraints`",
        ),
    ),
    "held actions": (
        Metric("action_hold_seconds", "hold", "hold in this iteration; if random, the middle of its range", unit="s"),
        Metric("action_hold_steps", "hold", "the same in env steps; ends of episodes cut it short", unit="env steps"),
        Metric("decisions", "hold", "policy steps (actions chosen) so far, over all envs"),
        Metric("decisions_per_second", "hold", "policy steps per second since training started", unit="1/s"),
    ),
    "rollout workers": (
        Metric("rollout_workers", "cluster", "Ray workers that collect rollouts"),
        Metric(
            "worker_steps_per_second",
            "cluster",
            "sum over the rollout workers of their speed while they collect",
            unit="env steps / s",
        ),
        Metric(
            "learner_wait",
            "cluster",
            "share of the time that the learner waited for rollout workers; mean over ranks",
            healthy="about the share of collection in a run without workers, or less",
            otherwise="near 1: the envs limit the run, add workers; near 0: the learner does, add ranks or a GPU",
        ),
        Metric(
            "lost_workers",
            "faults",
            "rollout workers that were lost and replaced",
            healthy="0",
            otherwise="the log says why",
        ),
        Metric(
            "policy_lag",
            "cluster",
            "with `overlap`: updates between the policy that collected the rollout and the one that learned from it",
            healthy="1 (0 in the first iteration)",
        ),
    ),
    "evaluation": (
        Metric("eval_return", "eval", "undiscounted return, mean over the episodes", healthy="rises"),
        Metric("eval_return_std", "eval", "std of the return over the episodes"),
        Metric("eval_length", "eval", "mean episode length", unit="env steps"),
        Metric("eval_success", "eval", "success rate, if the env reports successes", healthy="rises"),
        Metric("eval_<name>", "eval", "mean of each number that the env lists in `episode_info`"),
    ),
    "speed": (
        Metric(
            "steps_per_second", "speed", "env steps per second since training started, updates included", unit="1/s"
        ),
        Metric("collect_seconds", "speed", "collecting the rollout: env steps and policy steps", unit="s"),
        Metric("advantage_seconds", "speed", "PPO: values, log-probabilities and advantages of the rollout", unit="s"),
        Metric("label_seconds", "speed", "distillation: the teacher's actions for the rollout", unit="s"),
        Metric("store_seconds", "speed", "DQN: writing transitions to the replay buffer", unit="s"),
        Metric("update_seconds", "speed", "optimizer steps; the first update includes compilation", unit="s"),
        Metric("muscle_seconds", "speed", "PPO+muscle: the update of the muscle network", unit="s"),
    ),
    "learning": (
        Metric(
            "gradient_norm",
            "update",
            "norm of the gradient before clipping to `max_grad_norm`",
            healthy="stable",
            otherwise="rises by orders of magnitude: unstable, lower `learning_rate`",
        ),
        Metric("learning_rate", "update", "at the end of the iteration", healthy="follows its schedule"),
        Metric(
            "extra_loss", "losses", "with `extra_loss`: your own term of the loss; its own metrics are in `update/`"
        ),
    ),
    "PPO": (
        Metric(
            "policy_loss",
            "losses",
            "negative clipped surrogate objective",
            healthy="slightly negative; its size says little",
        ),
        Metric(
            "value_loss",
            "losses",
            "half the mean squared error of the critic, in units of the normalised reward",
            healthy="falls, then follows the returns",
            otherwise="keeps growing: lower `learning_rate`",
        ),
        Metric(
            "entropy",
            "losses",
            "entropy of the action distribution; can be negative for continuous actions",
            unit="nats",
            healthy="falls slowly",
            otherwise="collapses early: raise `entropy_coef` or `initial_std`",
        ),
        Metric(
            "action_std",
            "losses",
            "mean standard deviation of Gaussian actions, unless it depends on the observation (`std_mode state`)",
            healthy="falls slowly",
            otherwise="rises without end: lower `entropy_coef`; falls to `min_std` early: raise it",
        ),
        Metric(
            "approx_kl",
            "update",
            "KL(old policy, new policy), estimated as mean(ratio - 1 - log ratio)",
            unit="nats",
            healthy="0.003 to 0.05",
            otherwise="above 0.1: lower `learning_rate` or `update_epochs`, or set `target_kl`",
        ),
        Metric(
            "clip_fraction",
            "update",
            "fraction of samples whose probability ratio is outside 1 ± `clip_range`",
            healthy="0.05 to 0.3",
            otherwise="above 0.5: as for `approx_kl`; 0: the policy hardly changes",
        ),
        Metric(
            "explained_variance",
            "update",
            "1 - Var(return - value) / Var(return), before the update",
            healthy="above 0.7 after the first phase of learning",
            otherwise="near or below 0: the critic predicts nothing; raise `value_loss_coef`, check the reward scale",
        ),
        Metric(
            "symmetry_loss",
            "losses",
            "with `symmetry` augment or loss: mean squared difference between the mean action in a mirrored "
            "observation and the mirrored mean action, in units of the policy's action",
            healthy="far below the square of the std",
            otherwise="stays high: raise `symmetry_coef`, or the env's mirror is wrong",
        ),
        Metric(
            "epochs",
            "update",
            "passes over the rollout in this update",
            healthy="`update_epochs`",
            otherwise="fewer: `target_kl` stopped the update early",
        ),
    ),
    "DQN": (
        Metric(
            "q_loss",
            "losses",
            "Huber loss of the Q-values",
            healthy="near or below 1; rises with the returns",
            otherwise="far above: keep `normalize_reward`, since the Huber gradient is constant for errors above 1",
        ),
        Metric("td_error", "update", "mean absolute TD error of the minibatches, in units of the normalised reward"),
        Metric(
            "q_mean",
            "update",
            "mean Q-value of the actions in the minibatches, in units of the normalised reward",
            healthy="approaches the discounted returns",
            otherwise="far above them: keep `double_q`, raise `target_update_every`, try `return_steps` 3",
        ),
        Metric("epsilon", "update", "probability of a random action", healthy="follows its schedule"),
        Metric("replay_size", "update", "transitions in the replay buffer", healthy="grows to `buffer_size`"),
    ),
    "distillation": (
        Metric(
            "distill_loss",
            "losses",
            "loss on the student's mean action, scaled so that -1..1 is the env's range if it has one",
            healthy="falls by orders of magnitude",
            otherwise="stays high: the student cannot see or remember what the teacher acts on; a longer `bptt_length`",
        ),
        Metric(
            "action_error",
            "update",
            "mean absolute difference between the actions of student and teacher, over the joints, in the first epoch",
            unit="action",
            healthy="falls, then follows what the student cannot know",
        ),
        Metric("action_error_<name>", "update", "the same for each joint, counted from 0", unit="action"),
        Metric("teacher_share", "update", "probability of acting as the teacher", healthy="follows its schedule"),
    ),
    "muscles": (
        Metric(
            "muscle_torque_error",
            "muscle",
            "mean absolute difference between the torques asked for and those that the network's activations give, "
            "over joints and over this iteration's tuples, after the update",
            unit="Nm",
            healthy="falls below 5 within some iterations, then towards muscle_torque_floor",
            otherwise="stays high above the floor: raise `muscle_learning_rate` or `muscle_num_epochs`",
        ),
        Metric(
            "muscle_torque_floor",
            "muscle",
            "the same error for the best possible activations, by bounded least squares on 64 of these tuples",
            unit="Nm",
            healthy="near 0",
            otherwise="high: the muscles are too weak for what the policy asks, lower the gains or the action scale",
        ),
        Metric(
            "muscle_infeasible",
            "muscle",
            "share of these 64 that even the best activations miss by more than 1 Nm in some joint",
            healthy="falls below 0.1",
        ),
        Metric("muscle_activation", "muscle", "mean activation, 0 to 1", healthy="0.05 to 0.3"),
        Metric(
            "muscle_improvement",
            "muscle",
            "by how much this update lowered muscle_torque_error on its tuples",
            unit="Nm",
            healthy="positive, falls to about 0",
        ),
        Metric("muscle_loss", "muscle", "loss of the muscle network, mean over the minibatches", healthy="falls"),
        Metric("muscle_gradient_norm", "muscle", "norm of its gradient, every element clamped to ± 0.5"),
    ),
}
"""By section of docs/metrics.md."""
_COLUMNS = ("meaning", "unit", "healthy", "otherwise")
_TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def all_metrics() -> list[Metric]:
    """Every metric, families last."""
    return sorted((metric for table in TABLES.values() for metric in table), key=lambda metric: "<" in metric.name)


@cache
def find_metric(name: str) -> Metric | None:
    """The metric with this name; None if it is not in the tables, for example one that a user logs."""
    return next((metric for metric in all_metrics() if metric.covers(name)), None)


def tag(name: str) -> str | None:
    """The TensorBoard tag, `group/name`; None for the x-axes `iteration` and `global_step`."""
    metric = find_metric(name)
    if metric is None:
        return name if "/" in name else f"update/{name}"
    return f"{metric.group}/{name}" if metric.group else None


def label(name: str) -> str:
    """A metric on the axis or in the title of a figure: its name and unit."""
    metric = find_metric(name)
    return f"{name} ({metric.unit})" if metric and metric.unit else name


def with_tables(page: str) -> str:
    """The page with its tables, between `<!-- table: NAME -->` and `<!-- end -->`, updated."""
    return _TABLE.sub(lambda match: match[1] + markdown(TABLES[match[2]]) + match[3], page)


def markdown(metrics: tuple[Metric, ...]) -> str:
    """One table, without empty columns."""
    columns = [name for name in _COLUMNS if any(getattr(metric, name) for metric in metrics)]
    rows = [["name", "TensorBoard", *columns], ["---"] * (2 + len(columns))]
    for metric in metrics:
        group = f"{metric.group}/" if metric.group else ""
        rows.append([f"`{metric.name}`", group, *(getattr(metric, column) for column in columns)])
    return "".join("|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|\n" for row in rows)


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(with_tables(file.read_text(encoding="utf-8")), encoding="utf-8")
