"""What a muscle-driven body does over the gait cycle: activations, and torques asked for and delivered."""

from dataclasses import dataclass

import numpy as np
import torch

from proxima.data.rollout import as_stored
from proxima.envs.muscle.env import MuscleVecEnv
from proxima.evaluation.restored import Restored

_ENVS, _SECONDS, _BINS = 16, 6.0, 50
_LEAST_IN_A_BIN = 3


@dataclass(frozen=True)
class GaitAnalysis:
    """Means over all strides, by phase: `[K, ...]` for K bins of the cycle; NaN where a bin was hardly visited."""

    phase: np.ndarray  # [K], middle of each bin
    activation: np.ndarray  # [K, M]; M is 0 in direct mode
    asked: np.ndarray  # [K, J], desired torque, Nm
    delivered: np.ndarray  # [K, J], Nm
    angle: np.ndarray  # [K, J], rad
    reference: np.ndarray  # [K, J], rad
    muscles: list[str]
    joints: list[str]

    @classmethod
    @torch.no_grad()
    def of(cls, saved: Restored, *, seed: int = 0) -> "GaitAnalysis":
        """Run some seconds of a checkpoint's policy, deterministic; the first stride of an episode is left out."""
        options = saved.config.env
        env = MuscleVecEnv(num_envs=_ENVS, max_episode_steps=options.max_episode_steps, **options.env_kwargs)
        env.hold = saved.hold
        saved.hand_networks(env)
        policy = saved.policy
        obs, state = as_stored(env.reset(seed)), policy.first_state(_ENVS)
        rate, period = env.settings.control.rate, env.settings.reference.period
        rows: list[np.ndarray] = []
        for _ in range(round(max(_SECONDS, 4.0 * period) * rate)):
            acted = policy.act(obs, None, state)
            step = env.step(acted.env_action)
            obs = as_stored(step.obs)
            state = None if acted.state is None else acted.state.masked_fill(step.ended[:, None], 0.0)
            settled = (np.asarray(env.episode_length) > period * rate) & ~step.ended.numpy()
            activation = env.activation if env.map is not None else np.zeros((_ENVS, 0))
            angle = env.qpos[:, env.joints.qpos]
            columns = (env.phase[:, None], activation, env.torque, env.delivered(), angle)
            rows.append(np.concatenate(columns, 1)[settled])
        data = np.concatenate(rows)
        muscles = [env.model.actuator(i).name for i in range(env.model.nu)]
        count = len(env.joints.names)
        middle = (np.arange(_BINS) + 0.5) / _BINS
        means = np.full((_BINS, data.shape[1] - 1), np.nan)
        place = np.minimum((data[:, 0] * _BINS).astype(int), _BINS - 1)
        for k in range(_BINS):
            if (place == k).sum() >= _LEAST_IN_A_BIN:
                means[k] = data[place == k, 1:].mean(0)
        ends = np.cumsum([len(muscles), count, count])
        activation, asked, delivered, angle = np.split(means, ends, axis=1)
        reference = env.reference.at(env.reference.joints, middle)
        env.close()
        return cls(middle, activation, asked, delivered, angle, reference, muscles, list(env.joints.names))

    def lines(self) -> list[str]:
        """A summary in words."""
        if np.isnan(self.asked).all():
            return ["The body falls within its first stride: there is no gait cycle to show."]
        worst = np.nanmean(np.abs(self.asked - self.delivered), 0)
        apart = np.degrees(np.nanmean(np.abs(self.angle - self.reference), 0))
        found = [f"Joint angles differ from the reference by {apart.mean():.1f} degrees on average."]
        if self.muscles:
            error, joint = float(worst.mean()), self.joints[int(worst.argmax())]
            found.append(f"The muscles miss the torques asked of them by {error:.1f} Nm on average, most at {joint}.")
            mean = np.nanmean(self.activation, 0)
            busiest = ", ".join(self.muscles[i] for i in np.argsort(-mean)[:3])
            found.append(f"Mean activation {mean.mean():.2f}; the busiest muscles are {busiest}.")
        return found
