"""Exported policies take the mask as an input; videos respect it."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from proxima import load_policy
from proxima.envs.action_hold import Hold
from proxima.evaluation.export import export, signature
from proxima.evaluation.video import record
from tests.evaluation.test_export import RUNTIMES, save
from tests.masked_envs import Maze

VECTOR = spaces.Box(-np.inf, np.inf, (5,), np.float32)
ACTIONS: dict[str, tuple[spaces.Space, list[int], dict[str, Any]]] = {
    "discrete": (spaces.Discrete(4, start=-3), [4], {}),
    "multi_discrete": (spaces.MultiDiscrete([3, 4]), [3, 4], {}),
    "mask as an input": (spaces.Discrete(4), [4], {"encoders": {"action_mask": {"use": "all"}}}),
}
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated")]


def masks(sizes: list[int], count: int) -> np.ndarray:
    """Random, with at least one valid choice per column."""
    rng = np.random.default_rng(0)
    columns = []
    for size in sizes:
        column = rng.random((count, size)) < 0.4
        column[np.arange(count), rng.integers(0, size, count)] = True
        columns.append(column)
    return np.concatenate(columns, 1).astype(np.uint8)


@pytest.mark.parametrize("format", RUNTIMES)
@pytest.mark.parametrize("case", ACTIONS)
def test_the_exported_policy_takes_the_mask_as_an_input(case: str, format: str, tmp_path: Path) -> None:
    action, sizes, options = ACTIONS[case]
    box = spaces.Box(0, 1, (sum(sizes),), np.uint8)
    folder = save(tmp_path, {"obs": VECTOR, "action_mask": box}, action, options)
    policy, act = load_policy(folder), RUNTIMES[format](export(folder, format=format))
    lines = [line.split() for line in signature(folder).splitlines()]
    assert ["input", "action_mask", "uint8", "[batch,", f"{sum(sizes)}]"] in lines
    for count in (1, 3, 1000):
        rng = np.random.default_rng(count)
        obs = {"obs": rng.normal(1.0, 3.0, (count, 5)).astype(np.float32), "action_mask": masks(sizes, count)}
        expected, actions = policy.act(obs), act(obs)
        assert actions.dtype == expected.dtype and np.array_equal(actions, expected)
        chosen = actions.reshape(count, -1) - np.ravel(getattr(action, "start", 0)) + np.cumsum([0, *sizes[:-1]])
        assert np.take_along_axis(obs["action_mask"], chosen.astype(int), 1).all()
    assert all(len(np.unique(column)) > 1 for column in actions.reshape(1000, -1).T), "a test of constants"


class Shown(Maze):
    """With pictures."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, render_mode: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def render(self) -> np.ndarray:  # type: ignore[override]
        return np.full((32, 32, 3), 50 * self.state, np.uint8)


@pytest.mark.parametrize("way", ["info", "method", "observation"])
def test_videos_respect_masks_also_while_an_action_is_held(way: str, tmp_path: Path) -> None:
    gym.register("masked/Shown-v0", Shown, disable_env_checker=True)
    try:
        Maze.invalid_actions = 0
        lengths = []

        def act(obs: Any) -> int:
            lengths.append(len(obs["action_mask"]))
            return int(obs["action_mask"].argmax())

        path = tmp_path / "video.mp4"
        kwargs = {"way": way}
        record(act, "masked/Shown-v0", path=path, env_kwargs=kwargs, hold=Hold(4, 4), masks=True)
        assert Maze.invalid_actions == 0 and set(lengths) == {5} and path.exists()
    finally:
        del gym.registry["masked/Shown-v0"]
