"""Report on a trained policy: figures, a self-contained HTML page and a few lines of text."""

import html
from pathlib import Path

import numpy as np
import torch

from proxima.config.env_file import MUSCLE_ENV
from proxima.errors import UsageError
from proxima.evaluation import page
from proxima.evaluation.episodes import Evaluation
from proxima.evaluation.policy_analysis import PolicyAnalysis
from proxima.evaluation.restored import Restored, restore_policy
from proxima.evaluation.statistics import COLUMNS
from proxima.evaluation.value_analysis import ValueAnalysis
from proxima.nets.policy import Policy
from proxima.runs.layout import REPORT


def write_report(evaluation: Evaluation, *, value: bool, policy: bool) -> tuple[Path, list[str]]:
    """Write an analysis of traced episodes to the run's `report/`; returns the page and the summary lines."""
    from proxima.evaluation import plots  # slow to import

    saved = restore_policy(evaluation.checkpoint)
    agent, config, target = saved.policy, saved.config, saved.checkpoint.run_dir / REPORT
    sections: list[tuple[str, list[str], list[Path]]] = []
    try:
        target.mkdir(exist_ok=True)
        for old in (*target.glob("value-*.png"), *target.glob("policy-*.png"), *target.glob("gait-*.png")):
            old.unlink()  # of an earlier evaluation
        if value:
            analysis = ValueAnalysis.of(evaluation.episodes, gamma=config.algorithm.gamma, smdp=config.algorithm.smdp)
            figures = [
                plots.calibration(analysis, target / "value-calibration.png"),
                plots.along_episodes(analysis, target / "value-episodes.png"),
                plots.error_by_time(analysis, target / "value-error.png"),
                *_value_map(agent, evaluation, target / "value-map.png"),
            ]
            sections.append(("How good is the critic?", analysis.lines(), figures))
        if policy:
            actions = PolicyAnalysis.of(evaluation.episodes, agent.spec.action)
            figures = [
                plots.action_distributions(actions, target / "policy-actions.png"),
                plots.action_summary(actions, target / "policy-summary.png"),
            ]
            sections.append(("What does the policy do?", actions.lines(), figures))
            if config.env.env == MUSCLE_ENV:
                sections.append(_gait(saved, evaluation.seed, target))
        index = target / "index.html"
        index.write_text(_page(evaluation, sections), encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"the report cannot be written to {target}: {error.strerror or error}.") from None
    summary = [line for _, lines, _ in sections for line in lines]
    if value and evaluation.deterministic:
        summary.append("The critic estimates the value of the stochastic policy: evaluate it with --stochastic.")
    return index, summary


def _gait(saved: Restored, seed: int, target: Path) -> tuple[str, list[str], list[Path]]:
    """Activations and torques over the gait cycle of a muscle-driven body."""
    from proxima.evaluation import plots
    from proxima.evaluation.gait import GaitAnalysis

    gait = GaitAnalysis.of(saved, seed=seed)
    figures = [plots.gait_torques(gait, target / "gait-torques.png")]
    if gait.muscles:
        figures.append(plots.activations(gait, target / "gait-activations.png"))
    return "How does it walk?", gait.lines(), figures


def _value_map(agent: Policy, evaluation: Evaluation, path: Path) -> list[Path]:
    """A value map where an observation is two numbers, or cosine and sine of an angle with its velocity."""
    from proxima.evaluation import plots

    shapes = {key: spec.shape for key, spec in agent.spec.obs.items()}
    if shapes not in ({"obs": (2,)}, {"obs": (3,)}) or agent.state_size:
        return []  # the value of a recurrent policy depends on more than the observation
    seen = np.concatenate([episode.trace.obs["obs"] for episode in evaluation.episodes if episode.trace is not None])
    circle, names = shapes["obs"] == (3,), ("observation 0", "observation 1")
    if circle:
        if not np.allclose(seen[:, 0] ** 2 + seen[:, 1] ** 2, 1.0, atol=1e-3):
            return []
        seen = np.stack([np.arctan2(seen[:, 1], seen[:, 0]), seen[:, 2]], -1)
        names = ("angle (rad)", "angular velocity")

    @torch.no_grad()
    def value(points: np.ndarray) -> np.ndarray:
        if circle:
            points = np.stack([np.cos(points[:, 0]), np.sin(points[:, 0]), points[:, 1]], -1)
        obs = agent.normalizer({"obs": torch.tensor(points, dtype=torch.float32)})
        return (agent.value(obs) * agent.return_scale).numpy()

    return [plots.value_map(value, seen, names, path)]


def _page(evaluation: Evaluation, sections: list[tuple[str, list[str], list[Path]]]) -> str:
    rows = [(name, *summary.cells()) for name, summary in evaluation.rows]
    shares = [f"{name} in {share:.1%} of the episodes" for name, share in evaluation.shares.items()]
    parts = [
        f"<h1>{html.escape(evaluation.env)}</h1>",
        f"<p>{len(evaluation.episodes)} {'deterministic' if evaluation.deterministic else 'stochastic'} episodes, seed "
        f"{evaluation.seed}, of <code>{html.escape(Path(evaluation.checkpoint).name)}</code>. IQM is the "
        "interquartile mean, with its 95 % bootstrap interval.</p>",
        page.table(("", *COLUMNS), rows),
        page.paragraph(shares) if shares else "",
    ]
    for title, lines, figures in sections:
        parts += [f"<h2>{html.escape(title)}</h2>", page.paragraph(lines), *map(page.picture, figures)]
    return page.page(f"{evaluation.env}: report", parts)
