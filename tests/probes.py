"""Tiny environments whose true values and best actions are known (the idea of probe environments is Andy Jones's)."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Probe(gym.Env):
    """One action that may matter, one number to see."""

    action_space: spaces.Space = spaces.Box(-1.0, 1.0, (1,))
    observation_space: spaces.Space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, actions: int | None = None):
        """With so many discrete actions instead, none of which matters more than the one number did."""
        if actions is not None:
            self.action_space = spaces.Discrete(actions)

    def observe(self, value: float) -> np.ndarray:
        return np.array([value], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.time = 0
        self.seen = self.first()
        return self.observe(self.seen), {}

    def first(self) -> float:
        return 0.0


class ConstantReward(Probe):
    """One step, reward 1: V = 1."""

    def step(self, action: Any) -> tuple:
        return self.observe(0.0), 1.0, True, False, {}


class RewardIsObservation(Probe):
    """One step, reward = observation, +1 or -1: V(o) = o."""

    def first(self) -> float:
        return float(self.np_random.choice([-1.0, 1.0]))

    def step(self, action: Any) -> tuple:
        return self.observe(0.0), self.seen, True, False, {}


class DelayedReward(Probe):
    """Two steps, reward 1 at the end: V(1) = 1, V(0) = gamma."""

    def step(self, action: Any) -> tuple:
        self.time += 1
        return self.observe(1.0), float(self.time == 2), self.time == 2, False, {}


class Endless(Probe):
    """Reward 1 for ever, cut by a time limit: V = 1 / (1 - gamma), and only if the limit is bootstrapped."""

    def step(self, action: Any) -> tuple:
        return self.observe(0.0), 1.0, False, False, {}


class AimAtObservation(Probe):
    """One step, reward -(action - observation)^2: the best action is the observation."""

    observation_space = spaces.Box(-0.6, 0.6, (1,), np.float32)

    def first(self) -> float:
        return float(self.np_random.uniform(-0.6, 0.6))

    def step(self, action: Any) -> tuple:
        return self.observe(0.0), -float((action[0] - self.seen) ** 2), True, False, {}


class Match(Probe):
    """One step, reward for matching a pattern with a discrete action of any kind: the sign of the observation."""

    def __init__(self, kind: str):
        kinds = {
            "discrete": spaces.Discrete(2),
            "multi_discrete": spaces.MultiDiscrete([2, 2]),
            "multi_binary": spaces.MultiBinary(2),
        }
        self.action_space = kinds[kind]

    def first(self) -> float:
        return float(self.np_random.choice([-1.0, 1.0]))

    def step(self, action: Any) -> tuple:
        hits = np.mean(np.asarray(action) == (self.seen > 0))
        return self.observe(0.0), float(hits), True, False, {}


class Pixels(Probe):
    """One step; a bright square on the left or the right of a dark image says which of two actions pays."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 255, (16, 16, 1), np.uint8)

    def first(self) -> float:
        return float(self.np_random.choice([0.0, 1.0]))

    def observe(self, value: float) -> np.ndarray:
        image = np.zeros((16, 16, 1), np.uint8)
        image[4:12, slice(8, 16) if value else slice(0, 8)] = 255
        return image

    def step(self, action: Any) -> tuple:
        return self.observe(0.0), float(int(action) == int(self.seen)), True, False, {}


class TwoKeys(Probe):
    """One step; the answer needs both keys: the product of their signs."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict({"left": spaces.Box(-1, 1, (1,)), "right": spaces.Box(-1, 1, (2,))})

    def observe(self, value: float) -> Any:
        self.signs = self.np_random.choice([-1.0, 1.0], 2).astype(np.float32)
        return {"left": self.signs[:1], "right": self.signs[[1, 1]]}

    def step(self, action: Any) -> tuple:
        paid = float(int(action) == int(self.signs.prod() > 0))
        return self.observe(0.0), paid, True, False, {}


class TurnsNan(Probe):
    """Gives something infinite or NaN: as a reward or observation at its fifth step, at its end, or at once."""

    def __init__(self, what: str):
        self.what = what

    def first(self) -> float:
        return np.nan if self.what == "reset" else 0.0

    def step(self, action: Any) -> tuple:
        self.time += 1
        now = self.time == 5
        reward = {"reward": np.nan, "huge reward": 1e39}.get(self.what, 0.0) if now else 0.0
        seen = np.nan if now and self.what in ("obs", "final obs") else 0.0
        return self.observe(seen), reward, now and self.what == "final obs", False, {}


class Strict(Probe):
    """Takes only actions that its space, set by the test, contains."""

    def step(self, action: Any) -> tuple:
        assert action in self.action_space, f"{action!r} is not in {self.action_space}"
        return self.observe(0.0), 0.0, True, False, {}


class Chain(Probe):
    """State 0 for `wait` steps that pay nothing, then state 1, which pays 1 a step: for `pay` steps, or for ever.

    A step takes a second. V(1) is the sum of gamma^i over the steps that pay, and V(0) = gamma^wait V(1) at the start.
    """

    dt = 1.0

    def __init__(self, wait: int = 3, pay: int | None = None):
        self.wait, self.pay = wait, pay

    def first(self) -> float:
        return float(self.wait == 0)

    def step(self, action: Any) -> tuple:
        reward = float(self.time >= self.wait)
        self.time += 1
        ended = self.pay is not None and self.time == self.wait + self.pay
        return self.observe(float(self.time >= self.wait)), reward, ended, False, {}


def register() -> None:
    """Make the probes known to Gymnasium, once."""
    if "ProbeConstant-v0" in gym.registry:
        return
    gym.register("ProbeConstant-v0", ConstantReward)
    gym.register("ProbeObservation-v0", RewardIsObservation)
    gym.register("ProbeDelayed-v0", DelayedReward)
    gym.register("ProbeEndless-v0", Endless, max_episode_steps=8)
    gym.register("ProbeChain-v0", Chain, max_episode_steps=11)
    gym.register("ProbeAim-v0", AimAtObservation)
    gym.register("ProbeMatch-v0", Match)
    gym.register("ProbePixels-v0", Pixels)
    gym.register("ProbeTwoKeys-v0", TwoKeys)
    gym.register("ProbeStrict-v0", Strict)
    gym.register("ProbeNan-v0", TurnsNan, max_episode_steps=100)


def learn(env: str, steps: int, **options: Any) -> Any:
    """A policy that learned a probe; imported late, as worker processes import this file too."""
    from proxima import train

    defaults = {
        "num_envs": 8,
        "num_steps": 32,
        "minibatch_size": 64,
        "update_epochs": 4,
        "learning_rate": 5e-3,
        "entropy_coef": 0.0,
        "normalize_reward": False,
        "normalize_obs": False,
        "tensorboard": False,
        "progress": False,
        "save_checkpoint": False,
        "hidden_sizes": [32],
        "gamma": 0.8,
    }
    return train(env=env, total_timesteps=steps, **(defaults | options)).policy
