"""A toy env on tensors: a task that needs a recurrent policy."""

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from proxima.envs.contract import Obs
from proxima.envs.tensor_env import TensorVecEnv, World
from proxima.errors import UsageError


class Recall(TensorVecEnv):
    """A cue of -1 or 1 is shown once, then `delay` random signs; at the end the action of the cue's sign gets reward 1.

    The observation is the sign, whether it is the cue, and whether this step's action is rewarded.
    """

    def __init__(self, *, delay: int = 32, **options: Any) -> None:
        if delay < 0:
            raise UsageError(f"delay is {delay}, but it must be >= 0.")
        super().__init__(**options)
        self.delay = delay
        self.observation_space = spaces.Dict({"obs": spaces.Box(-1.0, 1.0, (3,))})
        self.action_space = spaces.Discrete(2)

    def _first(self) -> World:
        sign = self._sign()
        return {"cue": sign, "sign": sign}

    def _next(self, world: World, action: Tensor) -> tuple[World, Tensor, Tensor]:
        over = self.episode_length == self.delay + 2
        reward = (over & (action == (world["cue"] > 0))).double()
        return {"cue": world["cue"], "sign": self._sign()}, reward, over

    def _observation(self, world: World) -> Obs:
        due = self.episode_length == self.delay + 1
        columns = [torch.where(due, 0.0, world["sign"]), (self.episode_length == 0).float(), due.float()]
        return {"obs": torch.stack(columns, -1)}

    def _sign(self) -> Tensor:
        return torch.where(self.random(1)[:, 0] < 0.5, -1.0, 1.0)
