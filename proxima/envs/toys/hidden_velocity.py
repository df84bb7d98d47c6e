"""Gymnasium's CartPole and Pendulum without velocities in the observation: a policy needs recurrence to infer them."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv


def _keep(env: gym.Env, kept: list[int]) -> gym.Env:
    box = env.observation_space
    assert isinstance(box, spaces.Box)
    space = spaces.Box(box.low[kept], box.high[kept], dtype=np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: obs[kept], space)


def cart_pole(**options: Any) -> gym.Env:
    """CartPole: the cart's position and the pole's angle."""
    return _keep(CartPoleEnv(**options), [0, 2])


def pendulum(**options: Any) -> gym.Env:
    """Pendulum: cosine and sine of the angle."""
    return _keep(PendulumEnv(**options), [0, 1])
