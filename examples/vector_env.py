"""Train on a vector env of your own, here on torch tensors; simulators on a GPU come in the same way."""

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from proxima import train


class Points(VectorEnv):
    """Points that are to be moved to the origin. Episodes have 20 steps, and all ends are time limits."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, device: str = "cpu"):
        self.num_envs, self.device = num_envs, device
        self.single_observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        """Start everywhere."""
        if seed is not None:
            self.generator = torch.Generator(self.device).manual_seed(seed)
        elif not hasattr(self, "generator"):
            self.generator = torch.Generator(self.device)
        self.time = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self.place = self._start()
        return self.place.clone(), {}

    def step(self, actions):
        """Where an episode ends, the next one begins at once; its last observation is `final_obs`."""
        self.place = (self.place + 0.5 * actions).clamp(-10.0, 10.0)
        self.time += 1
        reward = -self.place.norm(dim=1)
        truncated, final_obs = self.time >= 20, self.place
        self.place = torch.where(truncated[:, None], self._start(), self.place)
        self.time = self.time.masked_fill(truncated, 0)
        return self.place.clone(), reward, torch.zeros_like(truncated), truncated, {"final_obs": final_obs}

    def _start(self):
        return 4.0 * torch.rand(self.num_envs, 2, generator=self.generator, device=self.device) - 2.0


if __name__ == "__main__":
    options = {"num_envs": 64, "num_steps": 32, "minibatch_size": 128, "total_timesteps": 30_000}
    result = train(env=Points, **options, device="cpu", quiet=True)
    print(f"mean return {result.episode_return:.1f} (a point that stays where it starts has about -30)")
