"""Toy envs on tensors: a synthetic quadruped on terrain, and a task that needs a recurrent policy."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from proxima.envs.contract import Obs
from proxima.envs.tensor_env import TensorVecEnv, World
from proxima.errors import UsageError

JOINTS, SCANDOTS = 12, 132


class SyntheticQuadruped(TensorVecEnv):
    """The spaces of a quadruped on terrain, without its physics: 48 + 132 + 3 observations, 12 joint targets.

    Joints follow their targets with a lag. Four of them move it forwards, four sideways and four turn it, more slowly
    uphill; unequal sides tip it over. It is rewarded for following velocity commands; its velocity is not observed.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.step_seconds = 0.02
        sizes = {"proprioception": 48, "scandots": SCANDOTS, "commands": 3}
        self.observation_space = spaces.Dict({k: spaces.Box(-np.inf, np.inf, (n,)) for k, n in sizes.items()})
        self.action_space = spaces.Box(-1.0, 1.0, (JOINTS,))
        self._side = torch.tensor([1.0, -1.0], device=self.device).repeat(JOINTS // 2)

    def _first(self) -> World:
        drawn = 2.0 * self.random(3 + 2 * JOINTS + SCANDOTS) - 1.0
        commands, joint, terrain = drawn[:, :3], 0.1 * drawn[:, 3 : 3 + JOINTS], 0.1 * drawn[:, 3 + 2 * JOINTS :]
        zeros = torch.zeros_like(joint)
        return {
            "commands": 0.8 * commands,
            "joint": joint,
            "joint_velocity": zeros,
            "action": zeros,
            "velocity": zeros[:, :3],
            "tilt": zeros[:, :3],
            "tilt_rate": zeros[:, :3],
            "terrain": terrain,
        }

    def _next(self, world: World, action: Tensor) -> tuple[World, Tensor, Tensor]:
        joint = torch.lerp(world["joint"], action, 0.3)
        drive = joint.tanh().unflatten(-1, (3, 4)).mean(-1)  # [N, 3]
        slope = world["terrain"].mean(-1, keepdim=True)
        velocity = torch.lerp(world["velocity"], 1.3 * drive - slope, 0.2)
        push = (joint * self._side).unflatten(-1, (3, 4)).mean(-1) + 0.2 * (self.random(3) - 0.5)
        rate = 0.9 * world["tilt_rate"] + 0.05 * push - 0.02 * world["tilt"]
        tilt = world["tilt"] + rate
        after = {
            "commands": world["commands"],
            "joint": joint,
            "joint_velocity": joint - world["joint"],
            "action": action,
            "velocity": velocity,
            "tilt": tilt,
            "tilt_rate": rate,
            "terrain": world["terrain"].roll(1, -1),
        }
        error = (velocity - world["commands"]).square().sum(-1)
        effort = (action - world["action"]).square().sum(-1)
        return after, (-4.0 * error).exp() - 0.01 * effort, (tilt.abs() > 1.0).any(-1)

    def _observation(self, world: World) -> Obs:
        feet = (world["joint"][:, 2::3] < 0.0).float()
        phase = 0.02 * self.episode_length[:, None].float()
        names = ("tilt", "tilt_rate", "joint", "joint_velocity", "action")
        parts = [*(world[name] for name in names), feet, phase.sin(), phase.cos()]
        return {
            "proprioception": torch.cat(parts, -1),
            "scandots": world["terrain"],
            "commands": world["commands"],
        }


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
