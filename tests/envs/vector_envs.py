"""Vector envs as users bring them: every autoreset mode, NumPy and torch."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Counting(VectorEnv):
    """Observation (episode, step); reward 1. Env i ends after i + 3 steps, by a time limit or, in odd episodes, itself.

    With `endless`, always by the time limit.
    """

    single_observation_space = spaces.Box(-100, 100, (2,), np.float32)
    single_action_space = spaces.Discrete(2, start=3)

    def __init__(
        self, num_envs: int = 2, *, mode: str = "SAME_STEP", tensors: bool = False, endless: bool = False
    ) -> None:
        self.num_envs, self.tensors, self.endless = num_envs, tensors, endless
        self.mode = AutoresetMode[mode]
        self.metadata = {"autoreset_mode": self.mode}
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.limit = np.arange(num_envs) + 3
        self.is_closed = False
        self.given: Any = None

    def give(self, array: np.ndarray) -> Any:
        return torch.from_numpy(array.copy()) if self.tensors else array.copy()

    def observe(self) -> np.ndarray:
        return np.stack([self.episode, self.time], 1).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if options is None:
            self.episode, self.time = np.zeros(self.num_envs, int), np.zeros(self.num_envs, int)
            self.over = np.zeros(self.num_envs, bool)
        else:
            assert self.mode is AutoresetMode.DISABLED
            mask = options["reset_mask"]
            assert isinstance(mask, torch.Tensor) == self.tensors
            self.start(np.asarray(mask))
        return self.give(self.observe()), self.info()

    def info(self) -> dict[str, Any]:
        """Of the envs as they are now."""
        return {}

    def start(self, mask: np.ndarray) -> None:
        self.episode += mask
        self.time[mask] = 0
        self.over[mask] = False

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert isinstance(actions, torch.Tensor) == self.tensors
        self.given = actions
        assert ((np.asarray(actions) == 3) | (np.asarray(actions) == 4)).all()
        assert self.mode is not AutoresetMode.DISABLED or not self.over.any()
        late = self.over.copy() if self.mode is AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        self.time += ~late
        self.start(late)
        ended = (self.time >= self.limit) & ~late
        reward, itself = np.where(late, -7.0, 1.0), np.full(self.num_envs, not self.endless) & (self.episode % 2 == 1)
        terminated, truncated, info = ended & itself, ended & ~itself, {}
        self.over = ended
        if self.mode is AutoresetMode.SAME_STEP and ended.any():
            info = {"final_obs": self.give(self.observe())}
            info |= {"final_info": self.info()} if self.info() else {}
            self.start(ended)
        info |= self.info()
        values = (self.observe(), reward, terminated, truncated)
        return *(self.give(x) for x in values), info  # type: ignore[return-value]

    def close_extras(self) -> None:
        self.is_closed = True


class MaskedCounting(Counting):
    """Action 3 is invalid in even steps, 4 in odd ones; where an episode is over, both are. Counts invalid actions.

    The numbers `time` (per env) and `episodes` (of all) are in the info.
    """

    def __init__(self, num_envs: int = 2, *, way: str = "info", **options: Any) -> None:
        super().__init__(num_envs, **options)
        self.way, self.invalid, self.level = way, 0, 0
        if way == "observation":
            masks = spaces.MultiBinary(2)
            self.single_observation_space = spaces.Dict({"seen": self.single_observation_space, "action_mask": masks})
        if way == "method":
            self.action_masks = lambda: self.give(self.mask())

    def mask(self) -> np.ndarray:
        odd = self.time % 2 == 1
        return np.stack([odd, ~odd], 1) & (self.time < self.limit)[:, None]

    def observe(self) -> Any:
        return (
            {"seen": super().observe(), "action_mask": self.mask()} if self.way == "observation" else super().observe()
        )

    def give(self, array: Any) -> Any:
        return {key: self.give(x) for key, x in array.items()} if isinstance(array, dict) else super().give(array)

    def info(self) -> dict[str, Any]:
        masks = {"action_mask": self.give(self.mask())} if self.way == "info" else {}
        return {**masks, "time": self.give(self.time), "episodes": float(self.episode.sum())}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        acts = ~self.over if self.mode is AutoresetMode.NEXT_STEP else np.ones(self.num_envs, bool)
        chosen = np.asarray(actions) - 3
        self.invalid += int((~self.mask()[np.arange(self.num_envs), chosen] & acts).sum())
        return super().step(actions)

    def set_level(self, level: int) -> int:
        self.level = level
        return level


def make_counting(num_envs: int, mode: str = "SAME_STEP") -> Counting:
    return Counting(num_envs, mode=mode)


def make_cart_pole(length: float = 0.5, render_mode: str | None = None) -> gym.Env:
    env = gym.make("CartPole-v1", render_mode=render_mode)
    env.unwrapped.length = length
    return env


class Mission(gym.Env):
    """An image and a text, as MiniGrid has them."""

    metadata = {"render_modes": []}  # noqa: RUF012
    observation_space = spaces.Dict({"image": spaces.Box(0, 255, (7, 7, 3), np.uint8), "mission": spaces.Text(20)})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def observe(self) -> dict[str, Any]:
        return {"image": np.full((7, 7, 3), self.time, np.uint8), "mission": "go there"}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.observe(), float(action), self.time == 5, False, {}
