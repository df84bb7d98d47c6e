"""Whole episodes of a trained policy, in parallel."""

import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator

from proxima import checkpoint
from proxima.config import config_from_dict
from proxima.data.rollout import as_stored
from proxima.envs.make import make_env
from proxima.errors import UsageError
from proxima.evaluate.policy import load_policy
from proxima.nets.spec import Spec


@dataclass
class Evaluation:
    """Returns and lengths of the evaluated episodes."""

    env: str
    returns: list[float]
    lengths: list[int]

    def text(self) -> str:
        """One line for people."""
        mean, std = statistics.fmean(self.returns), statistics.pstdev(self.returns)
        return (
            f"{self.env}: return {mean:,.1f} ± {std:,.1f} over {len(self.returns)} episodes "
            f"(min {min(self.returns):,.1f}, max {max(self.returns):,.1f}), "
            f"length {statistics.fmean(self.lengths):,.1f}"
        )


@torch.no_grad()
def evaluate(
    path: str | Path, *, env: str | None = None, episodes: int = 20, seed: int = 0, deterministic: bool = True
) -> Evaluation:
    """Run `episodes` episodes of a checkpoint's policy: the first of each env, so that short ones are not favoured."""
    for name, value, least in (("episodes", episodes, 1), ("seed", seed, 0)):
        if value < least:
            raise UsageError(f"{name} is {value}, but it must be >= {least}.")
    folder = checkpoint.find(path)
    options = config_from_dict(checkpoint.read_metadata(folder)["config"], source=str(folder)).env
    policy = load_policy(folder).policy
    world = make_env(
        env or options.env,
        num_envs=episodes,
        env_kwargs=options.env_kwargs if env in (None, options.env) else None,
        max_episode_steps=options.max_episode_steps,
    )
    try:
        found = Spec.from_spaces(world.observation_space, world.action_space)
        if found != policy.spec:
            raise UsageError(f"{env} does not fit the policy: the env has {found}, the policy {policy.spec}.")
        generator = Generator().manual_seed(seed)
        obs, running = world.reset(seed), torch.ones(episodes, dtype=torch.bool)
        returns, lengths = [0.0] * episodes, [0] * episodes
        while running.any():
            noise = None if deterministic else torch.randn(episodes, policy.noise_size, generator=generator)
            step = world.step(policy.act(as_stored(obs), noise)[1])
            for i in (step.ended & running).nonzero().flatten().tolist():
                returns[i], lengths[i] = float(step.episodes.return_[i]), int(step.episodes.length[i])
                running[i] = False
            obs = step.obs
    finally:
        world.close()
    return Evaluation(env or options.env, returns, lengths)
