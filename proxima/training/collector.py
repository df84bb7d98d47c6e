"""Collects experience: the only caller of `env.step` in training."""

import math
from collections import deque
from typing import Any

import torch
from torch import Generator, Tensor

from proxima.data.generators import restore_generator
from proxima.data.rollout import Rollout, as_stored
from proxima.envs.base import Step, VecEnv
from proxima.errors import NonFiniteError, UsageError
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
        action, _ = policy.act(as_stored(obs), generator=Generator(device))
        try:
            self.rollout = Rollout(num_steps=num_steps, num_envs=env.num_envs, obs=obs, action=action, device=device)
        except (MemoryError, RuntimeError) as error:
            raise UsageError(
                f"a rollout of num_steps {num_steps} x num_envs {env.num_envs} does not fit into memory "
                f"({str(error).splitlines()[0]}): lower one of them."
            ) from None
        self._put_obs(num_steps, obs)
        self._check_obs({key: x[-1] for key, x in self.rollout.obs.items()}, None)

    def collect(self) -> Rollout:
        """`num_steps` steps of every env."""
        rollout = self.rollout
        rollout.clear()
        for t in range(self.num_steps):
            obs = {key: x[t] for key, x in rollout.obs.items()}
            action, env_action = self.policy.act(obs, generator=self.generator)
            rollout.action[t] = action
            step = self.env.step(env_action.to(self.env.device))
            self._put_obs(t + 1, step.obs)
            rollout.reward[t] = step.reward
            self._check_finite(t)
            rollout.terminated[t] = step.terminated
            rollout.truncated[t] = step.truncated
            if step.duration is not None:
                self._put_duration(t, step.duration)
            if step.final_obs is not None:
                self._end_episodes(t, step)
            self.global_step += self.env.num_envs if step.duration is None else int(step.duration.sum())
        return rollout

    def _put_obs(self, t: int, obs: dict[str, Tensor]) -> None:
        for key, stored in self.rollout.obs.items():
            stored[t] = obs[key]

    def _end_episodes(self, t: int, step: Step) -> None:
        ended = step.ended
        assert step.final_obs is not None
        self.episodes.add(step.episodes.return_[ended].tolist(), step.episodes.length[ended].tolist())
        rows = ended.nonzero().squeeze(-1)
        self._check_obs({key: x[rows] for key, x in as_stored(step.final_obs).items()}, rows)
        cut = rows[(step.truncated & ~step.terminated)[rows]]
        if len(cut):
            self.rollout.add_final(t, cut, step.final_obs)

    def _put_duration(self, t: int, duration: Tensor) -> None:
        if self.rollout.duration is None:
            self.rollout.duration = torch.ones_like(self.rollout.reward, dtype=torch.long)
        self.rollout.duration[t] = duration

    def _check_finite(self, t: int) -> None:
        """Of what was stored, so that a number too large for float32 counts as infinite."""
        reward = self.rollout.reward[t]
        bad = _non_finite(reward)
        if len(bad):
            self._raise(int(bad[0, 0]), f"a reward of {float(reward[bad[0, 0]])}")
        self._check_obs({key: x[t + 1] for key, x in self.rollout.obs.items()}, None)

    def _check_obs(self, obs: dict[str, Tensor], rows: Tensor | None) -> None:
        for key, x in obs.items():
            bad = _non_finite(x)
            if len(bad):
                env = int(bad[0, 0] if rows is None else rows[bad[0, 0]])
                self._raise(env, f"an observation {key!r} with {float(x[tuple(bad[0])])}")

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

    def set_state(self, state: dict[str, Any], *, new_episodes_seed: int | None) -> bool:
        """Put back what `get_state` gave; with a seed, start new episodes instead of going on with the old.

        Returns whether the generator could be put back: one of another device cannot.
        """
        same_device = restore_generator(self.generator, state["generator"], otherwise=state["global_step"])
        self.global_step = state["global_step"]
        episodes = state["episodes"]
        self.episodes.returns.extend(episodes["returns"])
        self.episodes.lengths.extend(episodes["lengths"])
        self.episodes.count = episodes["count"]
        self._put_obs(-1, state["obs"] if new_episodes_seed is None else self.env.reset(new_episodes_seed))
        return same_device


def _non_finite(x: Tensor) -> Tensor:
    """Places of NaNs and infinities `[K, axes]`. One sum tells in nearly every case that there are none."""
    if not x.is_floating_point() or math.isfinite(float(x.sum())):
        return x.new_zeros((0, 1), dtype=torch.long)
    return (~torch.isfinite(x)).nonzero()
