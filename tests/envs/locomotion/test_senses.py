"""Noise of every sensor, their delay, and what counts as a success: by the settings."""

import pytest
import torch

from proxima.envs.locomotion.env import Quadruped
from proxima.envs.locomotion.robot import JOINTS
from proxima.envs.locomotion.senses import _SCALE
from proxima.errors import UsageError

QUIET = {f"{name}_noise": 0.0 for name in ("velocity", "turn", "gravity", "joint", "joint_velocity", "height")}
PARTS = {"velocity": (0, 3), "turn": (3, 6), "gravity": (6, 9), "joint": (9, 21), "joint_velocity": (21, 33)}


@pytest.mark.parametrize("sensor", [*PARTS, "height"])
def test_noise_of_one_sensor_is_uniform_and_leaves_the_others_alone(sensor: str) -> None:
    first = {
        size: Quadruped(num_envs=64, randomise=QUIET | {f"{sensor}_noise": size}).reset(seed=3) for size in (0.0, 0.3)
    }
    difference = {key: (first[0.3][key] - first[0.0][key]).abs() for key in ("proprioception", "scandots")}
    sensed = difference["proprioception"][:, :33] / torch.tensor(_SCALE)
    if sensor == "height":
        noisy, still = difference["scandots"] / 2.5, sensed
    else:
        here = torch.zeros(33, dtype=torch.bool)
        here[slice(*PARTS[sensor])] = True
        noisy, still = sensed[:, here], torch.cat((sensed[:, ~here], difference["scandots"]), 1)
    assert 0.28 < float(noisy.max()) <= 0.3 + 1e-5
    assert abs(float(noisy.mean()) - 0.15) < 0.02
    assert not still.any()


def test_noise_is_a_factor_on_all_of_them() -> None:
    first = [Quadruped(num_envs=2, randomise={"noise": size}).reset(seed=0) for size in (0.0, 0.5, 1.0)]
    half, whole = ((x["proprioception"] - first[0]["proprioception"]) for x in first[1:])
    assert torch.allclose(2.0 * half, whole, atol=1e-6)


def _proprioception(delay: float, steps: int) -> torch.Tensor:
    """`[steps + 1, N, 33]` of two robots, without the last action."""
    env = Quadruped(num_envs=2, randomise={"noise": 0.0}, control={"sensor_delay": [delay, delay]}, max_episode_steps=8)
    seen = [env.reset(seed=0)["proprioception"]]
    for i in range(steps):
        seen.append(env.step(torch.full((2, JOINTS), 0.5 * (-1.0) ** i)).obs["proprioception"])
    return torch.stack(seen)[..., :33]


def test_sensors_lag_behind_and_begin_anew_with_an_episode() -> None:
    prompt, late = _proprioception(0.0, 12), _proprioception(0.06, 12)
    assert torch.equal(late[3:8], prompt[:5])  # 3 actions of 20 ms; the episode ends with step 8
    assert torch.equal(late[:3], prompt[:1].expand(3, -1, -1))
    assert torch.equal(late[8:12], prompt[8:9].expand(4, -1, -1))
    assert torch.equal(late[12], prompt[9])


def test_robots_have_different_delays_which_a_state_restores() -> None:
    control = {"sensor_delay": [0.0, 0.1]}
    env, other = (Quadruped(num_envs=32, control=control) for _ in range(2))
    env.reset(seed=0)
    assert env.senses.delay is not None
    assert set(env.senses.delay.steps.tolist()) == {0, 1, 2, 3, 4, 5}
    for _ in range(3):
        env.step(torch.randn(32, JOINTS))
    seen = other.set_state(env.get_state())
    action = torch.randn(32, JOINTS)
    assert torch.equal(seen["proprioception"], env._observe()["proprioception"])
    assert torch.equal(other.step(action).obs["proprioception"], env.step(action).obs["proprioception"])
    with pytest.raises(UsageError, match=r"control.sensor_delay is \[0.2, 0.1\]"):
        Quadruped(control={"sensor_delay": [0.2, 0.1]})


def test_success_is_by_the_threshold_of_the_settings() -> None:
    shares = []
    for threshold in (0.0, 1.0):
        env = Quadruped(num_envs=8, max_episode_steps=5, ground={"good_tracking": threshold}, randomise={"noise": 0.0})
        env.reset(seed=0)
        for _ in range(5):
            step = env.step(torch.zeros(8, JOINTS))
        assert step.episodes.info is not None
        shares.append(float(step.episodes.info["success"].mean()))
    assert shares == [1.0, 0.0]
