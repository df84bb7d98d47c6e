"""Evaluation while a run goes on: on envs of its own, so that training stays the same to the bit with and without."""

import copy
import logging
import math
from pathlib import Path
from typing import Any

import torch

from proxima.config import Config
from proxima.envs.action_hold import Hold
from proxima.envs.contract import VecEnv
from proxima.envs.gymnasium.env_errors import asks_to_stop, first_line
from proxima.envs.make import make_env
from proxima.errors import UsageError
from proxima.evaluate.episodes import MOST_ENVS, Episode, run_episodes
from proxima.evaluate.policy import LoadedPolicy
from proxima.nets.policy import Policy
from proxima.training.seeding import stream_seed

log = logging.getLogger("proxima")


class Examiner:
    """Runs deterministic episodes, and records videos, every so many env steps."""

    def __init__(self, config: Config, policy: Policy, *, step: int):
        self.config, self.policy = config, policy
        self.metrics: dict[str, float] = {}
        """Of this iteration: NaN where it was not examined, empty where none is wanted."""
        self.best = -math.inf
        self._step, self._can_record, self._can_evaluate = step, True, True
        self._env: VecEnv | None = None
        if config.evaluation.eval_every:
            self.metrics = dict.fromkeys(("eval_return", "eval_return_std", "eval_length"), math.nan)

    @property
    def eval_return(self) -> float | None:
        """Of this iteration's policy; None where it was not evaluated."""
        found = self.metrics.get("eval_return", math.nan)
        return None if math.isnan(found) else found

    def examine(self, step: int, run_dir: Path, hold: Hold) -> bool:
        """Whatever is due after the training step `step`, with actions held as in training just now.

        Tells whether the policy is the best so far.
        """
        options, before, self._step = self.config.evaluation, self._step, step
        self.metrics = dict.fromkeys(self.metrics, math.nan)
        if self._can_record and passed(options.record_every, before, step):
            try:
                self._record(step, run_dir, hold)
            except BaseException as error:  # training goes on, whatever a drawing library or the env raises
                if asks_to_stop(error):
                    raise
                log.warning("No videos: %s", first_line(error))
                self._can_record = False
        if self._can_evaluate and passed(options.eval_every, before, step):
            try:
                return self._evaluate(hold)
            except UsageError as error:
                log.warning("No evaluation: %s", error)
                self._can_evaluate = False
        return False

    def _evaluate(self, hold: Hold) -> bool:
        if self._env is None:  # on first use: a run that ends before it has nothing to free
            env = self.config.env
            self._env = make_env(
                env.env,
                num_envs=min(self.config.evaluation.eval_episodes, MOST_ENVS),
                env_kwargs=env.env_kwargs,
                max_episode_steps=env.max_episode_steps,
            )
        self._env.hold = hold
        # A copy on the CPU: the envs are there, and nothing of the original is touched.
        policy = copy.deepcopy(self.policy).cpu()
        episodes = run_episodes(
            policy,
            self._env,
            episodes=self.config.evaluation.eval_episodes,
            seed=stream_seed(self.config.run.seed, "evaluation") % 2**31,
            deterministic=True,
        )
        self.metrics |= _metrics(episodes)
        is_best = self.metrics["eval_return"] > self.best
        self.best = max(self.best, self.metrics["eval_return"])
        return is_best

    def _record(self, step: int, run_dir: Path, hold: Hold) -> None:
        from proxima.evaluate.video import record, video_path

        env, policy = self.config.env, LoadedPolicy(copy.deepcopy(self.policy).cpu())
        record(
            policy.act,
            env.env,
            path=video_path(run_dir, env.env, step),
            env_kwargs=env.env_kwargs,
            max_episode_steps=env.max_episode_steps,
            seed=self.config.run.seed,
            length=self.config.evaluation.video_length,
            hold=hold,
            on_reset=policy.reset,
        )

    def get_state(self) -> dict[str, Any]:
        """What a resume needs."""
        return {"best": self.best, "step": self._step, "metrics": list(self.metrics)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Put back what `get_state` gave."""
        self.best, self._step = state["best"], state["step"]
        if self.metrics:  # those that only the env names, too
            self.metrics |= dict.fromkeys(state.get("metrics", ()), math.nan)

    def close(self) -> None:
        """Free the envs."""
        if self._env is not None:
            self._env.close()


def _metrics(episodes: list[Episode]) -> dict[str, float]:
    """What the episodes come to, with success and the env's own numbers where it tells them."""
    returns = torch.tensor([episode.return_ for episode in episodes], dtype=torch.float64)
    told: dict[str, list[float]] = {"length": [episode.length for episode in episodes]}
    for episode in episodes:
        if episode.success is not None:
            told.setdefault("success", []).append(episode.success)
        for name, value in episode.info.items():
            told.setdefault(name, []).append(value)
    return {
        "eval_return": float(returns.mean()),
        "eval_return_std": float(returns.std(correction=0)),
        **{f"eval_{name}": sum(values) / len(values) for name, values in told.items()},
    }


def passed(every: int, before: int, now: int) -> bool:
    """Whether a multiple of `every` lies after step `before` and not after `now`; never where it is 0."""
    return bool(every) and now // every > before // every
