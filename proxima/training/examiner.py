"""Periodic evaluation and videos during training, on separate envs; does not affect training."""

import copy
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from proxima.compiling import process_settings_kept
from proxima.config import Config
from proxima.envs.action_hold import Hold
from proxima.envs.contract import VecEnv
from proxima.envs.gymnasium.env_errors import asks_to_stop
from proxima.envs.make import make_env, num_envs_of
from proxima.errors import UsageError, first_line
from proxima.evaluation.episodes import MOST_ENVS, Episode, run_episodes
from proxima.evaluation.policy import LoadedPolicy
from proxima.evaluation.world import view_options
from proxima.nets.policy import Policy
from proxima.training.seeding import stream_seed

log = logging.getLogger("proxima")


class Examiner:
    """Evaluates the policy every `eval_every` env steps and records a video every `record_every`."""

    def __init__(
        self, config: Config, policy: Policy, networks: Mapping[str, nn.Module], *, step: int, threads: int
    ) -> None:
        """`networks` besides the policy, by name, which the envs are given; `threads` of torch, for acting."""
        self.config, self.policy, self.networks, self.threads = config, policy, networks, threads
        self.metrics: dict[str, float] = {}
        """Of this iteration: NaN if it was not evaluated, empty if evaluation is off."""
        self.best = -math.inf
        self._step, self._can_record, self._can_evaluate = step, True, True
        self._env: VecEnv | None = None
        if config.evaluation.eval_every:
            self.metrics = dict.fromkeys(("eval_return", "eval_return_std", "eval_length"), math.nan)

    @property
    def eval_return(self) -> float | None:
        """Of this iteration; None if it was not evaluated."""
        found = self.metrics.get("eval_return", math.nan)
        return None if math.isnan(found) else found

    def examine(self, step: int, run_dir: Path, hold: Hold) -> bool:
        """Evaluate and record if due at env step `step`, with actions held as in training at the moment.

        Returns whether the policy is the best so far.
        """
        options, before, self._step = self.config.evaluation, self._step, step
        self.metrics = dict.fromkeys(self.metrics, math.nan)
        if self._can_record and passed(options.record_every, before, step):
            try:
                self._record(step, run_dir, hold)
            except BaseException as error:  # training continues, whatever a rendering library raises
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
        if self._env is None:  # created on first use
            env = self.config.env
            if num_envs_of(env.env) is not None:
                raise UsageError(
                    f"env {env.env!r} is one object, which training uses: give the function that makes it instead."
                )
            self._env = make_env(
                env.env,
                num_envs=min(self.config.evaluation.eval_episodes, MOST_ENVS),
                env_kwargs=env.env_kwargs,
                max_episode_steps=env.max_episode_steps,
                **view_options(self.config),
            )
        self._env.hold = hold
        self._hand_networks(self._env)
        # A copy on the CPU, where the envs are; the original is not touched.
        policy = copy.deepcopy(self.policy).cpu()
        with process_settings_kept():
            torch.set_num_threads(self.threads)
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
        from proxima.evaluation.video import record, video_path

        env, policy = self.config.env, LoadedPolicy(copy.deepcopy(self.policy).cpu())
        record(
            policy.act,
            env.env,
            path=video_path(run_dir, env.env, step),
            env_kwargs=env.env_kwargs,
            max_episode_steps=env.max_episode_steps,
            wrappers=view_options(self.config)["wrappers"],
            seed=self.config.run.seed,
            length=self.config.evaluation.video_length,
            hold=hold,
            on_reset=policy.reset,
            prepare=self._hand_networks,
            masks=policy.spec.has_masks,
        )

    def _hand_networks(self, env: Any) -> None:
        for name, net in self.networks.items():
            env.set_weights(name, net.state_dict())

    def get_state(self) -> dict[str, Any]:
        """The state for a resume."""
        return {"best": self.best, "step": self._step, "metrics": list(self.metrics)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Load what `get_state` returned."""
        self.best, self._step = state["best"], state["step"]
        if self.metrics:  # including the env's own numbers
            self.metrics |= dict.fromkeys(state.get("metrics", ()), math.nan)

    def close(self) -> None:
        """Close the envs."""
        if self._env is not None:
            self._env.close()


def _metrics(episodes: list[Episode]) -> dict[str, float]:
    """Metrics of the episodes, with success and the env's own numbers if reported."""
    returns = torch.tensor([episode.return_ for episode in episodes], dtype=torch.float64)
    found: dict[str, list[float]] = {"length": [episode.length for episode in episodes]}
    for episode in episodes:
        success = {} if episode.success is None else {"success": episode.success}
        for name, value in {**success, **episode.info}.items():
            found.setdefault(name, []).append(value)
    return {
        "eval_return": float(returns.mean()),
        "eval_return_std": float(returns.std(correction=0)),
        **{f"eval_{name}": sum(values) / len(values) for name, values in found.items()},
    }


def passed(every: int, before: int, now: int) -> bool:
    """Whether a multiple of `every` lies after step `before` and up to `now`; never if `every` is 0."""
    return bool(every) and now // every > before // every
