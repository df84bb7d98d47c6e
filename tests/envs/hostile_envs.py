"""Environments that misbehave: they end the process, raise unusual exceptions, or return unreadable values.

No torch here: async workers import this file.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Panic(BaseException):
    """Not an Exception, like errors of some native bindings."""


def misbehave(what: str) -> None:
    """End the process, or raise, depending on `what`."""
    if what == "sys.exit":
        sys.exit(0)
    if what == "panic":
        raise Panic("the game core panicked")
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "abort":
        os.abort()
    if what == "os._exit":
        os._exit(0)
    if what == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "helper":  # a process that outlives this one and keeps its file descriptors
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        os._exit(5)
    if what == "helper by command":
        subprocess.Popen(["sleep", "30"], close_fds=False)
        os._exit(5)


class Hostile(gym.Env):
    """Counts steps; does `what` in `where`, at its step `at`, unless the file `once` exists."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, what: str = "", where: str = "step", at: int = 2, once: str | None = None) -> None:
        self.what, self.where, self.at, self.once, self.life = what, where, at, once, 0
        if where == "build":
            misbehave(what)

    def strike(self, where: str) -> None:
        if where != self.where or (where == "step" and self.life != self.at):
            return
        if self.once is not None:
            if Path(self.once).exists():
                return
            Path(self.once).touch()
        misbehave(self.what)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if self.life:
            self.strike("reset")
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.life += 1
        self.strike("step")
        return np.full(1, self.life), 1.0, False, self.life % 5 == 0, {}

    def close(self) -> None:
        self.strike("close")


class Slow(Hostile):
    """Slow steps, and a slow first reset."""

    def __init__(self, seconds: float = 0.0, first_reset: float = 0.0, replay: bool = False) -> None:
        super().__init__()
        self.seconds, self.first_reset = seconds, first_reset
        self.code = iter([1]) if replay else None  # no data

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        time.sleep(self.first_reset)
        self.first_reset, self.life = 0.0, 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(self.seconds)
        return super().step(action)


class Returns(gym.Env):
    """Returns the given `reward`, `terminated`, `info` or `reset_info` in even steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)
    episode_info = ("score",)

    def __init__(self, **odd: Any) -> None:
        self.odd, self.count = odd, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, Any]:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1), self.odd.get("reset_info", {})

    def step(self, action: Any) -> tuple[np.ndarray, Any, Any, Any, Any]:
        self.count += 1
        values = {"reward": 1.0, "terminated": self.count == 2, "info": {"score": 3, "is_success": True}}
        if self.count == 2:
            values |= self.odd
        return np.full(1, self.count), values["reward"], values["terminated"], False, values["info"]


class UnreadableInfo(dict):
    """A mapping that fails when it is read."""

    def get(self, *_: Any) -> Any:
        raise RuntimeError("the info cannot be read")


class BrokenState(Hostile):
    """An env whose own `get_state` or `set_state` raises."""

    def __init__(self, broken: str = "get_state") -> None:
        super().__init__()
        self.broken = broken

    def get_state(self) -> int:
        if self.broken == "get_state" and self.life > 2:
            raise RuntimeError("the state is too large")
        return self.life

    def set_state(self, state: int) -> None:
        if self.broken == "set_state":
            raise Panic("the state does not fit")
        self.life = state


for class_ in (Hostile, Slow, Returns, BrokenState):
    if f"hostile/{class_.__name__}-v0" not in gym.registry:
        gym.register(f"hostile/{class_.__name__}-v0", class_, disable_env_checker=True)
