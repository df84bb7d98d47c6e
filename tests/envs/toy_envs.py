"""Small environments for the tests of vector envs. No torch here: async workers import this file."""

import os
import signal
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Counter(gym.Env):
    """Observation (episode, step, draw of the generator); reward is the step. Fails in the way of `fail`.

    It fails at step `fail_at` of the object's life, but only the object whose first seed was `fail_seed` (None: all).
    """

    metadata = {"render_fps": 10, "render_modes": []}  # noqa: RUF012
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(
        self,
        length: int = 4,
        *,
        truncate: bool = False,
        fail: str | None = None,
        fail_at: int = 3,
        fail_seed: int | None = None,
        noise_bytes: int = 0,
    ) -> None:
        if fail == "build":
            raise ValueError("the model file is broken\nand this is a second line")
        if fail == "exit in build":
            os._exit(7)
        self.length, self.truncate, self.noise_bytes = length, truncate, noise_bytes
        self.fail, self.fail_at, self.fail_seed = fail, fail_at, fail_seed
        self.first_seed: int | None = None
        self.episode, self.life, self.count = -1, 0, 0

    def observe(self) -> np.ndarray:
        return np.array([self.episode, self.count, self.np_random.random()])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if self.first_seed is None:
            self.first_seed = seed
        self.episode, self.count = self.episode + 1, 0
        if self.fail == "reset" and self.episode == 1 and self.fail_seed in (None, self.first_seed):
            raise RuntimeError("reset went wrong")
        return self.observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.life += 1
        self.count += 1
        sys.stderr.write("x" * self.noise_bytes)
        if self.life == self.fail_at and self.fail_seed in (None, self.first_seed):
            self.break_down()
        ended = self.count >= self.length
        return self.observe(), float(self.count), ended and not self.truncate, ended and self.truncate, {}

    def break_down(self) -> None:
        if self.fail == "raise":
            raise RuntimeError("joint 3 exploded")
        if self.fail == "sys.exit":
            sys.exit("out of quarters")
        if self.fail == "exit":
            sys.stderr.write("the emulator says goodbye\n")
            sys.stderr.flush()
            os._exit(3)
        if self.fail == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fail == "hang":
            time.sleep(60)


class Scorer(Counter):
    """Reports a flag (even episodes) and a position (10 per episode, 1 per step); names two keys without numbers."""

    episode_info = ("flag_get", "x_pos", "note", "absent")

    def __init__(self, length: int = 4, *, success: bool = False, **kwargs: Any) -> None:
        super().__init__(length, **kwargs)
        self.success = success

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        obs, reward, terminated, truncated, _ = super().step(action)
        flag = self.episode % 2 == 0
        info: dict[str, Any] = {"flag_get": flag, "x_pos": np.int64(10 * self.episode + self.count), "note": "7"}
        return obs, reward, terminated, truncated, info | ({"is_success": flag} if self.success else {})


class Screen(gym.Env):
    """A game of three steps with 12 x 12 grayscale observations; renders in colour, at a given size and frame rate."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012
    observation_space = spaces.Box(0, 255, (12, 12, 1), np.uint8)
    action_space = spaces.Discrete(4)

    def __init__(self, render_mode: str | None = None, size: tuple[int, int] = (240, 256)) -> None:
        self.render_mode, self.size, self.count, self.action = render_mode, size, 0, 0

    def observe(self) -> np.ndarray:
        return np.full((12, 12, 1), self.count, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.count, self.action = self.count + 1, int(action)
        return self.observe(), 1.0, self.count == 3, False, {}

    def render(self) -> np.ndarray:
        """The upper half is sky, the lower half is as bright as the last action."""
        picture = np.full((*self.size, 3), (92, 148, 252), np.uint8)
        picture[self.size[0] // 2 :] = 60 * self.action
        return picture


class Echo(gym.Env):
    """The observation is the last action, flat; a wrong action raises."""

    def __init__(self, action_space: spaces.Space) -> None:
        self.action_space = action_space
        size = int(np.prod(action_space.shape)) if action_space.shape else 1
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.kept: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        self.kept.append(action)  # an env may keep its actions: they must not change under it
        return np.asarray(action, dtype=np.float64).reshape(-1), float(np.sum(self.kept[0])), False, False, {}


NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "body": spaces.Dict({"pos": spaces.Box(-1, 1, (2,), np.float32), "gear": spaces.Discrete(3, start=1)}),
        "pair": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
        "height": spaces.Box(0, 1, (), np.float64),
    }
)


class Fixed(gym.Env):
    """Returns samples of a given observation space; reports whether its process has imported torch."""

    action_space = spaces.Discrete(2)

    def __init__(self, observation_space: spaces.Space = NESTED, returned: Any = None) -> None:
        self.observation_space, self.returned = observation_space, returned

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observe(), {}

    def observe(self) -> Any:
        return self.observation_space.sample() if self.returned is None else self.returned

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observe(), float("torch" in sys.modules), False, False, {}


class Process(gym.Env):
    """Observation: process id and thread setting of its process."""

    observation_space = spaces.Box(0, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.array([os.getpid(), float(os.environ.get("OMP_NUM_THREADS", "0"))])

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self.observe(), 0.0, False, False, {}


class AddTen(gym.ObservationWrapper):
    """Adds ten to the observation."""

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation + 10


for class_ in (Counter, Scorer, Screen, Echo, Fixed, Process):
    if f"toy/{class_.__name__}-v0" not in gym.registry:  # this file may be imported under two names
        gym.register(f"toy/{class_.__name__}-v0", class_, disable_env_checker=True)
if "toy/CounterTimed-v0" not in gym.registry:
    gym.register("toy/CounterTimed-v0", Counter, max_episode_steps=8, kwargs={"length": 1000})
