"""Collects experience: the only caller of `env.step` in training."""

import math
from collections import deque
from typing import Any

import torch
from torch import Generator, Tensor

from proxima.data.rollout import Rollout
from proxima.envs.base import Step, VecEnv
from proxima.errors import NonFiniteError
from proxima.nets.actor_critic import ActorCritic

EPISODE_WINDOW = 100


class EpisodeStatistics:
    """Returns and lengths of the last 100 finished episodes."""

    def __init__(self) -> None:
        self.returns: deque[float] = deque(maxlen=EPISODE_WINDOW)
        self.lengths: deque[int] = deque(maxlen=EPISODE_WINDOW)
        self.count = 0

    def add(self, returns: list[float], lengths: list[int]) -> None:
        """Take in finished episodes."""
        self.returns.extend(returns)
        self.lengths.extend(lengths)
        self.count += len(returns)

    def metrics(self) -> dict[str, float]:
        """Means and extremes of the window, NaN before the first episode ends."""
        returns, lengths = (list(window) or [math.nan] for window in (self.returns, self.lengths))
        return {
            "episode_return": sum(returns) / len(returns),
            "episode_return_min": min(returns),
            "episode_return_max": max(returns),
            "episode_length": sum(lengths) / len(lengths),
            "episode_length_min": min(lengths),
            "episode_length_max": max(lengths),
            "episodes": self.count,
        }


class Collector:
    """Steps the envs with the policy and fills the rollout in place."""

    def __init__(
        self, env: VecEnv, policy: ActorCritic, *, num_steps: int, device: torch.device, env_seed: int, seed: int
    ):
        self.env, self.policy, self.num_steps, self.device = env, policy, num_steps, device
        self.generator = Generator(device).manual_seed(seed)
        self.episodes = EpisodeStatistics()
        self.global_step = 0
        obs = {key: x.to(device) for key, x in env.reset(env_seed).items()}
        # Its own generator: the sample only gives the shape of an action.
        action, _ = policy.act(_as_stored(obs), generator=Generator(device))
        self.rollout = Rollout(num_steps=num_steps, num_envs=env.num_envs, obs=obs, action=action, device=device)
        self._put_obs(num_steps, obs)

    def collect(self) -> Rollout:
        """`num_steps` steps of every env."""
        rollout = self.rollout
        rollout.clear()
        for t in range(self.num_steps):
            obs = {key: x[t] for key, x in rollout.obs.items()}
            action, env_action = self.policy.act(obs, generator=self.generator)
            rollout.action[t] = action
            step = self.env.step(env_action.to(self.env.device))
            self._check_finite(step)
            self._put_obs(t + 1, step.obs)
            rollout.reward[t] = step.reward
            rollout.terminated[t] = step.terminated
            rollout.truncated[t] = step.truncated
            self.global_step += self.env.num_envs if step.duration is None else int(step.duration.sum())
            if step.final_obs is not None:
                self._end_episodes(t, step)
        return rollout

    def _put_obs(self, t: int, obs: dict[str, Tensor]) -> None:
        for key, stored in self.rollout.obs.items():
            stored[t] = obs[key]

    def _end_episodes(self, t: int, step: Step) -> None:
        ended = step.ended
        self.episodes.add(step.episodes.return_[ended].tolist(), step.episodes.length[ended].tolist())
        rows = (step.truncated & ~step.terminated).nonzero().squeeze(-1)
        if len(rows):
            assert step.final_obs is not None
            self._check_obs({key: x[rows] for key, x in step.final_obs.items()}, rows)
            self.rollout.add_final(t, rows, step.final_obs)

    def _check_finite(self, step: Step) -> None:
        """One sum a tensor: a NaN or an infinity anywhere shows in it."""
        if not math.isfinite(float(step.reward.sum())):
            env = int((~torch.isfinite(step.reward)).nonzero()[0])
            self._raise(env, f"a reward of {float(step.reward[env])}")
        self._check_obs(step.obs, None)

    def _check_obs(self, obs: dict[str, Tensor], rows: Tensor | None) -> None:
        for key, x in obs.items():
            if x.is_floating_point() and not math.isfinite(float(x.sum())):
                bad = (~torch.isfinite(x)).nonzero()
                if len(bad):
                    row = int(bad[0, 0])
                    self._raise(
                        row if rows is None else int(rows[row]),
                        f"an observation {key!r} with {float(x[tuple(bad[0])])}",
                    )

    def _raise(self, env: int, what: str) -> None:
        raise NonFiniteError(
            f"env {env} gave {what} at global step {self.global_step + self.env.num_envs} "
            f"(step {self.global_step // self.env.num_envs + 1} of that env): check the env, or scale its output."
        )

    def get_state(self) -> dict[str, Any]:
        """Generator, counters, episode statistics and the observation to act on next."""
        return {
            "generator": self.generator.get_state(),
            "global_step": self.global_step,
            "episodes": {
                "returns": list(self.episodes.returns),
                "lengths": list(self.episodes.lengths),
                "count": self.episodes.count,
            },
            "obs": {key: x[-1].clone() for key, x in self.rollout.obs.items()},
        }

    def set_state(self, state: dict[str, Any], *, restore_obs: bool) -> None:
        """Put back what `get_state` gave; without `restore_obs` the envs have started new episodes."""
        self.generator.set_state(state["generator"].cpu())
        self.global_step = state["global_step"]
        episodes = state["episodes"]
        self.episodes.returns.extend(episodes["returns"])
        self.episodes.lengths.extend(episodes["lengths"])
        self.episodes.count = episodes["count"]
        if restore_obs:
            self._put_obs(-1, state["obs"])


def _as_stored(obs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: x.float() if x.is_floating_point() else x for key, x in obs.items()}
