"""Helpers for tests of games with pixel observations."""

import hashlib
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from proxima.envs.gymnasium.exactness_trial import why_inexact
from proxima.envs.make import make_env

_GO_ON = """
import pickle, sys
sys.path.insert(0, {here!r})
from pixel_tools import built, digest
env_id, options, state, steps = pickle.load(open({file!r}, "rb"))
env = built(env_id, **options)
env.unwrapped.set_state(state)
print(digest(env, steps, seed=1))
"""


def built(env_id: str, **options: Any) -> gym.Env:
    from proxima.envs.gymnasium.env_group import Recipe

    return Recipe.of(env_id, env_kwargs=options).build()


def digest(env: gym.Env, steps: int, *, seed: int) -> str:
    """A hash of everything that an env returns under random actions."""
    inner, rng, seen = env.unwrapped, np.random.default_rng(seed), hashlib.sha256()
    for _ in range(steps):
        obs, reward, terminated, _, info = inner.step(int(rng.integers(inner.action_space.n)))
        seen.update(obs.tobytes() + json.dumps([reward, terminated, info]).encode())
        if terminated:
            seen.update(inner.reset()[0].tobytes())
    return seen.hexdigest()


def digest_elsewhere(folder: Path, env_id: str, options: dict[str, Any], state: Any, steps: int) -> str:
    """`digest` in another process, from a state of this one."""
    file = folder / "state"
    file.write_bytes(pickle.dumps((env_id, options, state, steps)))
    code = _GO_ON.format(here=str(Path(__file__).parent), file=str(file))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def assert_exact_state(folder: Path, env_id: str, options: dict[str, Any], *, before: int, after: int) -> None:
    """A state taken after `before` steps continues identically for `after` steps, here and in another process."""
    env = built(env_id, render_mode="rgb_array", **options)
    env.reset(seed=5)
    digest(env, before, seed=0)
    state, picture = env.unwrapped.get_state(), env.render()  # type: ignore[attr-defined]
    expected = digest(env, after, seed=1)
    assert digest_elsewhere(folder, env_id, options, state, after) == expected
    other = built(env_id, render_mode="rgb_array", **options)
    other.unwrapped.set_state(state)  # type: ignore[attr-defined]
    assert np.array_equal(picture, other.unwrapped.render())  # type: ignore[arg-type]
    assert digest(other, after, seed=1) == expected
    assert why_inexact(lambda: built(env_id)) is None


def trace(env_id: str, steps: int, *, num_envs: int, **options: Any) -> list[Any]:
    """Everything that a vector env returns under random actions."""
    env, rng, rows = make_env(env_id, num_envs=num_envs, **options), np.random.default_rng(0), []
    try:
        first = env.reset(3)["obs"].numpy().tobytes()
        for _ in range(steps):
            step = env.step(torch.from_numpy(rng.integers(env.action_space.n, size=num_envs)))
            final = None if step.final_obs is None else step.final_obs["obs"][step.ended].numpy().tobytes()
            rows.append((step.obs["obs"].numpy().tobytes(), step.reward.tolist(), step.ended.tolist(), final))
    finally:
        env.close()
    return [first, *rows]
