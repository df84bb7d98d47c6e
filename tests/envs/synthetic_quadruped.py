"""A quadruped without physics: a world on tensors with a dict observation, for tests; import it to register its id."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from proxima.envs.catalog import TENSOR_WORLDS
from proxima.envs.contract import Obs
from proxima.envs.tensor_env import SingleEnv, TensorVecEnv, World

SYNTHETIC = "toy/SyntheticQuadruped-v0"
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


def single(**options: Any) -> SingleEnv:
    """One of them for Gymnasium."""
    return SingleEnv(SyntheticQuadruped(**options))


TENSOR_WORLDS[SYNTHETIC] = f"{__name__}:SyntheticQuadruped"
gym.register(SYNTHETIC, f"{__name__}:single", max_episode_steps=1000)
