"""A set of envs that is divided among processes behaves as the whole: the same trajectories, states that fit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from proxima.envs.action_hold import Hold
from proxima.envs.contract import Step, VecEnv
from proxima.envs.make import make_env
from tests.training.runs import same

TOTAL, STEPS = 6, 40
CAMERA = {"camera": {"width": 8, "height": 8, "every": 4}}
SMALL_GROUND = {"ground": {"levels": 2, "columns": 4}}
CASES: dict[str, dict[str, Any]] = {
    "batch": {"env_id": "Hopper-v5", "max_episode_steps": 20},
    "sync": {"env_id": "CartPole-v1", "max_episode_steps": 20},
    "async": {"env_id": "CartPole-v1", "max_episode_steps": 20, "mode": "async", "num_workers": 2},
    "tensors": {"env_id": "proxima/Recall-v0", "max_episode_steps": 20},
    # With torques: the products of a muscle network are rounded differently for other numbers of envs.
    "legs": {"env_id": "proxima/Muscle-v0", "env_kwargs": {"control": {"mode": "direct"}}, "max_episode_steps": 20},
    "quadruped": {"env_id": "proxima/Quadruped-v0", "env_kwargs": SMALL_GROUND, "max_episode_steps": 20},
    "quadruped with a camera": {
        "env_id": "proxima/Quadruped-v0",
        "env_kwargs": SMALL_GROUND | CAMERA,
        "max_episode_steps": 20,
    },
}


def make(case: str, num_envs: int) -> VecEnv:
    return make_env(num_envs=num_envs, spread_episodes=True, **CASES[case])


def parts_of(case: str, counts: list[int], hold: Hold) -> tuple[list[VecEnv], list[dict[str, torch.Tensor]]]:
    """Envs of so many each, reset with the seeds of the whole set."""
    envs, first, seen = [], 0, []
    for count in counts:
        env = make(case, count)
        env.become_part(first, sum(counts))
        env.hold = hold
        seen.append({key: x.clone() for key, x in env.reset(7 + first).items()})
        envs.append(env)
        first += count
    return envs, seen


def actions(env: VecEnv, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    if hasattr(env.action_space, "n"):
        return torch.randint(int(env.action_space.n), (TOTAL,), generator=generator)
    return 0.3 * torch.randn(TOTAL, *env.action_space.shape, generator=generator)


def drive(envs: list[VecEnv], steps: range) -> list[dict[str, Any]]:
    """What all of them report, as if they were one."""
    found = []
    for step in steps:
        rows = actions(envs[0], step).split([env.num_envs for env in envs])
        results = [env.step(row) for env, row in zip(envs, rows, strict=True)]

        def beside(read: Callable[[Step], torch.Tensor], results: list[Step] = results) -> torch.Tensor:
            return torch.cat([read(one).clone() for one in results])

        row = {
            name: beside(lambda one, name=name: getattr(one, name)) for name in ("reward", "terminated", "truncated")
        }
        row["obs"] = {key: beside(lambda one, key=key: one.obs[key]) for key in results[0].obs}
        row["ended"] = beside(lambda one: one.terminated | one.truncated)
        if results[0].duration is not None:
            row["duration"] = beside(lambda one: one.duration)
        found.append(row)
    return found


FREE, HELD = Hold(), Hold(1, 3, 0.9)


# Not held quadrupeds: the sensors' noise of a robot that waits for others depends on how long it waits.
@pytest.mark.parametrize(
    ("case", "hold"),
    [(case, hold) for case in CASES for hold in (FREE, HELD) if hold == FREE or "quadruped" not in case],
)
def test_parts_have_the_trajectories_of_the_whole(case: str, hold: Hold) -> None:
    envs, seen = parts_of(case, [TOTAL], hold)
    whole, first = drive(envs, range(STEPS)), seen[0]
    assert any(row["ended"].any() for row in whole), "a test of nothing"
    envs, seen = parts_of(case, [1, 2, 3], hold)
    assert all(torch.equal(torch.cat([one[key] for one in seen]), x) for key, x in first.items())
    assert same(drive(envs, range(STEPS)), whole)


@pytest.mark.parametrize("case", [case for case in CASES if "camera" not in case])
def test_a_state_can_be_divided_differently(case: str) -> None:
    envs, _ = parts_of(case, [2, 4], Hold() if "quadruped" in case else Hold(1, 2, 0.9))
    drive(envs, range(13))
    states = [env.get_state() for env in envs]  # type: ignore[attr-defined]
    expected = drive(envs, range(13, STEPS))
    for counts in ([6], [3, 1, 2]):
        joined = envs[0].join_states(states)
        others, _ = parts_of(case, counts, Hold())
        for env, state in zip(others, envs[0].split_state(joined, counts), strict=True):
            env.set_state(state)  # type: ignore[attr-defined]
        assert same(drive(others, range(13, STEPS)), expected)


def test_counts_over_all_envs_are_neither_lost_nor_multiplied() -> None:
    envs, _ = parts_of("sync", [2, 4], Hold())
    states = [env.get_state() for env in envs]  # type: ignore[attr-defined]
    states[0]["restarts"], states[1]["restarts"] = 2, 3
    parts = envs[0].split_state(envs[0].join_states(states), [3, 3])
    assert [part["restarts"] for part in parts] == [5, 0]
    assert [part["base_seed"] for part in parts] == [7, 10]


def test_robots_with_cameras_are_not_divided_differently() -> None:
    envs, _ = parts_of("quadruped with a camera", [2, 4], Hold())
    with pytest.raises(ValueError, match="cameras"):
        envs[0].join_states([env.get_state() for env in envs])  # type: ignore[attr-defined]
