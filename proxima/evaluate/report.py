"""Figures, one page that needs nothing else, and a few lines of text about a trained agent."""

import base64
import html
from pathlib import Path

import numpy as np
import torch

from proxima import checkpoint
from proxima.config import config_from_dict
from proxima.errors import UsageError
from proxima.evaluate.episodes import Evaluation
from proxima.evaluate.policy import load_policy
from proxima.evaluate.policy_analysis import PolicyAnalysis
from proxima.evaluate.value_analysis import ValueAnalysis
from proxima.nets.actor_critic import ActorCritic

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } img { max-width: 100%; height: auto; }
table { border-collapse: collapse; } td, th { padding: 0.2rem 0.9rem 0.2rem 0; text-align: right; }
td:first-child, th:first-child { text-align: left; } code { background: #f2f2f2; padding: 0 0.2rem; }
"""


def write_report(evaluation: Evaluation, *, value: bool, policy: bool) -> tuple[Path, list[str]]:
    """Analyse traced episodes into the run's `report/`; returns the page and the lines that sum it up."""
    from proxima.evaluate import plots  # a second to import

    folder = Path(evaluation.checkpoint)
    config = config_from_dict(checkpoint.read_metadata(folder)["config"], source=str(folder))
    agent = load_policy(folder).policy
    target = folder.parent / "report"
    sections: list[tuple[str, list[str], list[Path]]] = []
    try:
        target.mkdir(exist_ok=True)
        if value:
            analysis = ValueAnalysis.of(evaluation.episodes, gamma=config.ppo.gamma)
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
        page = target / "index.html"
        page.write_text(_page(evaluation, sections))
    except OSError as error:
        raise UsageError(f"the report cannot be written to {target}: {error.strerror}.") from None
    return page, [line for _, lines, _ in sections for line in lines]


def _value_map(agent: ActorCritic, evaluation: Evaluation, path: Path) -> list[Path]:
    """Where an observation is two numbers, or an angle as cosine and sine with its velocity."""
    from proxima.evaluate import plots

    obs = agent.spec.obs
    traces = [episode.trace for episode in evaluation.episodes if episode.trace is not None]
    if list(obs) != ["obs"] or obs["obs"].shape not in ((2,), (3,)) or agent.state_size:
        return []  # with a memory, a value is not one of the observation alone
    seen = np.concatenate([trace.obs["obs"] for trace in traces])
    circle = obs["obs"].shape == (3,)
    if circle and not np.allclose(seen[:, 0] ** 2 + seen[:, 1] ** 2, 1.0, atol=1e-3):
        return []

    @torch.no_grad()
    def value(points: np.ndarray) -> np.ndarray:
        if circle:
            points = np.stack([np.cos(points[:, 0]), np.sin(points[:, 0]), points[:, 1]], -1)
        found = agent.value({"obs": torch.tensor(points, dtype=torch.float32)}) * agent.return_scale
        return found.numpy()

    if circle:
        seen = np.stack([np.arctan2(seen[:, 1], seen[:, 0]), seen[:, 2]], -1)
    names = ("angle (rad)", "angular velocity") if circle else ("observation 0", "observation 1")
    return [plots.value_map(value, seen, names, path)]


def _page(evaluation: Evaluation, sections: list[tuple[str, list[str], list[Path]]]) -> str:
    rows = "".join(
        f"<tr><td>{name}</td>" + "".join(f"<td>{number:,.1f}</td>" for number in numbers) + "</tr>"
        for name, numbers in (
            (name, (s.mean, s.std, s.median, s.iqm, s.iqm_low, s.iqm_high, s.min, s.max))
            for name, s in (("return", evaluation.returns), ("length", evaluation.lengths))
        )
    )
    head = "".join(f"<th>{x}</th>" for x in ("", "mean", "std", "median", "IQM", "from", "to", "min", "max"))
    parts = [
        f"<h1>{html.escape(evaluation.env)}</h1>",
        f"<p>{len(evaluation.episodes)} {'deterministic' if evaluation.deterministic else 'stochastic'} episodes, seed "
        f"{evaluation.seed}, of <code>{html.escape(Path(evaluation.checkpoint).name)}</code>. IQM is the mean of the "
        "middle half, with its 95 % bootstrap interval.</p>",
        f"<table><tr>{head}</tr>{rows}</table>",
    ]
    for title, lines, figures in sections:
        parts.append(f"<h2>{html.escape(title)}</h2><p>{'<br>'.join(html.escape(line) for line in lines)}</p>")
        for figure in figures:
            data = base64.b64encode(figure.read_bytes()).decode()
            parts.append(f'<p><img alt="{figure.stem}" src="data:image/png;base64,{data}"></p>')
    title = html.escape(f"{evaluation.env}: report")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )
