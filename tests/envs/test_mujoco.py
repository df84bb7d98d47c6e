"""The batch back end is bit-identical to Gymnasium."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from proxima.envs.contract import ExactState, Step
from proxima.envs.mujoco.env import MujocoBatchEnv, available_cores
from proxima.envs.mujoco.physics import ContactForcePhysics, Physics
from proxima.envs.mujoco.registry import why_not
from proxima.errors import EnvFailure, UsageError

NAMES = [
    *("HalfCheetah", "Hopper", "Walker2d", "Swimmer", "Ant", "Humanoid", "HumanoidStandup"),
    *("Reacher", "Pusher", "InvertedPendulum", "InvertedDoublePendulum"),
]
SERVED = [f"{name}-{version}" for name in NAMES for version in ("v4", "v5") if (name, version) != ("Pusher", "v4")]

NON_DEFAULT: list[tuple[str, dict[str, Any]]] = [
    ("HalfCheetah-v5", {"forward_reward_weight": 0.7, "ctrl_cost_weight": 0.3, "reset_noise_scale": 0.2}),
    ("HalfCheetah-v5", {"frame_skip": 3, "exclude_current_positions_from_observation": False}),
    ("HalfCheetah-v4", {"ctrl_cost_weight": 0.03, "exclude_current_positions_from_observation": False}),
    ("HalfCheetah-v5", {"render_mode": None, "width": 100, "camera_name": "track"}),
    ("Hopper-v5", {"terminate_when_unhealthy": False, "healthy_reward": 0.3, "healthy_state_range": (-2.0, 2.0)}),
    ("Hopper-v4", {"terminate_when_unhealthy": False, "healthy_reward": 0.3, "healthy_angle_range": [-0.1, 0.1]}),
    ("Walker2d-v5", {"xml_file": "walker2d.xml", "healthy_z_range": (0.7, 1.3), "healthy_reward": 2}),
    ("Walker2d-v4", {"terminate_when_unhealthy": False, "exclude_current_positions_from_observation": False}),
    ("Swimmer-v5", {"frame_skip": 2, "exclude_current_positions_from_observation": False}),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0, "main_body": "front_left_leg"}),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, "contact_force_range": (-3.0, 2.0)}),
    ("Ant-v5", {"contact_cost_weight": 0, "healthy_z_range": (0.3, 0.9), "forward_reward_weight": 1.3}),
    ("Ant-v4", {"use_contact_forces": True, "contact_cost_weight": 0.01}),
    ("Humanoid-v5", {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0}),
    ("Humanoid-v5", {"include_cinert_in_observation": False, "contact_cost_range": (0.1, 1), "contact_cost_weight": 1}),
    ("Humanoid-v5", {"include_cvel_in_observation": False, "include_qfrc_actuator_in_observation": False}),
    ("Humanoid-v4", {"terminate_when_unhealthy": False, "healthy_z_range": (1.2, 1.5)}),
    ("HumanoidStandup-v5", {"include_cfrc_ext_in_observation": False, "impact_cost_weight": 0.0, "uph_cost_weight": 2}),
    ("HumanoidStandup-v5", {"impact_cost_weight": 1e-3, "impact_cost_range": (1, 3), "ctrl_cost_weight": 1}),
    ("Reacher-v5", {"reward_dist_weight": 0.3, "reward_control_weight": 2.5, "frame_skip": 4}),
    ("Pusher-v5", {"reward_near_weight": 0.3, "reward_dist_weight": 0.7, "reward_control_weight": 0.33}),
    ("InvertedPendulum-v5", {"reset_noise_scale": 0.05, "frame_skip": 1}),
    ("InvertedDoublePendulum-v5", {"healthy_reward": 3.0, "reset_noise_scale": 0.02}),
]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Gymnasium's advice to use v5, and with MuJoCo's log file out of the tree."""
    monkeypatch.setattr(gymnasium.logger, "min_level", gymnasium.logger.ERROR)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def registered() -> Iterator[None]:
    """Restores Gymnasium's registry."""
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def random_actions(env: MujocoBatchEnv, steps: int, *, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    """[steps, N, A] float32; a little beyond the bounds, where MuJoCo clips but the control cost does not."""
    space, rng = env.action_space, np.random.default_rng(seed)
    shape = (steps, env.num_envs, *space.shape)
    return torch.from_numpy(rng.uniform(1.1 * scale * space.low, 1.1 * scale * space.high, shape).astype(np.float32))


def assert_equals_gymnasium(
    env_id: str, *, num_envs: int, steps: int, scale: float = 1.0, seed: int = 7, **env_kwargs: Any
) -> int:
    """Compare with Gymnasium's envs, stepped one by one with same-step autoreset; returns how many episodes ended."""
    env = MujocoBatchEnv(env_id, num_envs=num_envs, env_kwargs=env_kwargs, num_threads=2)
    references = [gymnasium.make(env_id, **env_kwargs) for _ in range(num_envs)]
    assert env.observation_space["obs"] == references[0].observation_space
    assert env.action_space == references[0].action_space
    assert env.step_seconds == references[0].unwrapped.dt
    expected = np.stack([one.reset(seed=seed + i)[0] for i, one in enumerate(references)])
    assert np.array_equal(env.reset(seed)["obs"].numpy(), expected)

    num_ended = 0
    for t, action in enumerate(random_actions(env, steps, scale=scale)):
        step = env.step(action)
        outcomes = [one.step(row) for one, row in zip(references, action.numpy(), strict=True)]
        obs, reward, terminated, truncated = (np.array(part) for part in list(zip(*outcomes, strict=True))[:4])
        ended = terminated | truncated
        assert np.array_equal(step.reward.numpy(), reward, equal_nan=True), f"reward at step {t}"
        assert np.array_equal(step.terminated.numpy(), terminated), f"terminated at step {t}"
        assert np.array_equal(step.truncated.numpy(), truncated), f"truncated at step {t}"
        assert (step.final_obs is not None) == ended.any()
        for i in np.flatnonzero(ended):
            assert step.final_obs is not None
            assert np.array_equal(step.final_obs["obs"][i].numpy(), obs[i]), f"final obs at step {t}"
            obs[i] = references[i].reset()[0]
        assert np.array_equal(step.obs["obs"].numpy(), obs, equal_nan=True), f"obs at step {t}"
        num_ended += int(ended.sum())
    env.close()
    return num_ended


@pytest.mark.slow
@pytest.mark.parametrize("env_id", SERVED)
def test_every_id_equals_gymnasium(env_id: str) -> None:
    num_ended = assert_equals_gymnasium(env_id, num_envs=2, steps=1000)
    assert num_ended >= 2  # the time limit at the least


def test_pusher_v4_is_refused_by_gymnasium_itself() -> None:
    assert why_not("Pusher-v4")
    with pytest.raises(ImportError, match="only supported on `mujoco<3`"):
        gymnasium.make("Pusher-v4")


@pytest.mark.parametrize(("env_id", "env_kwargs"), NON_DEFAULT)
def test_keyword_arguments_equal_gymnasium(env_id: str, env_kwargs: dict[str, Any]) -> None:
    assert_equals_gymnasium(env_id, num_envs=2, steps=120, **env_kwargs)


def test_contact_forces_are_paid_for_only_where_used() -> None:
    unused = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}
    for env_id, env_kwargs, physics in (
        ("Ant-v4", {}, Physics),
        ("Ant-v5", {}, ContactForcePhysics),
        ("Ant-v5", unused, Physics),
        ("Humanoid-v5", unused, Physics),
    ):
        assert type(MujocoBatchEnv(env_id, num_envs=1, env_kwargs=env_kwargs)._physics) is physics


@pytest.mark.parametrize("num_envs", [1, 9])
@pytest.mark.parametrize("env_id", ["Hopper-v5", "Humanoid-v5", "Reacher-v4", "InvertedDoublePendulum-v5"])
def test_number_of_envs_does_not_change_the_bits(env_id: str, num_envs: int) -> None:
    assert_equals_gymnasium(env_id, num_envs=num_envs, steps=60)


@pytest.mark.parametrize(
    ("env_id", "timestep", "env_kwargs"),
    [("HalfCheetah-v5", 0.3, {}), ("Ant-v5", 0.2, {"terminate_when_unhealthy": False})],
)
def test_unstable_simulation_equals_gymnasium(
    env_id: str, timestep: float, env_kwargs: dict[str, Any], tmp_path: Path
) -> None:
    path = changed_model(env_id, tmp_path, r'timestep="[^"]*"', f'timestep="{timestep}"')
    assert_equals_gymnasium(env_id, num_envs=2, steps=60, xml_file=path, **env_kwargs)
    assert "unstable" in Path("MUJOCO_LOG.TXT").read_text()


def test_huge_action_equals_gymnasium() -> None:
    assert_equals_gymnasium("HalfCheetah-v5", num_envs=2, steps=30, scale=1e15)


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Ant-v5"])
def test_number_of_threads_does_not_change_the_bits(env_id: str) -> None:
    results = []
    for num_threads in (1, 2, 5):
        env = MujocoBatchEnv(env_id, num_envs=6, num_threads=num_threads, max_episode_steps=15)
        env.reset(3)
        results.append(record(env, random_actions(env, 20)))
    assert results[0] == results[1] == results[2]


# ---- state


@pytest.mark.parametrize(
    "env_id",
    [
        *("HalfCheetah-v5", "Hopper-v4", "Swimmer-v5", "Ant-v5", "Ant-v4", "Humanoid-v5", "HumanoidStandup-v4"),
        *("Reacher-v4", "Reacher-v5", "Pusher-v5", "InvertedPendulum-v5", "InvertedDoublePendulum-v5"),
    ],
)
def test_state_goes_on_exactly(env_id: str) -> None:
    def make() -> MujocoBatchEnv:
        return MujocoBatchEnv(env_id, num_envs=3, max_episode_steps=40, spread_episodes=True)

    env = make()
    env.reset(11)
    actions = random_actions(env, 60)
    record(env, actions[:17])
    buffer = io.BytesIO()
    torch.save(env.get_state(), buffer)
    obs_before = env.step(actions[17]).obs["obs"].clone()  # the state is a copy: further steps do not change it
    expected = record(env, actions[18:])

    buffer.seek(0)
    resumed = make()
    assert isinstance(resumed, ExactState)
    state = torch.load(buffer, weights_only=True)
    assert torch.equal(resumed.set_state(state)["obs"], state["world"]["obs"])
    assert torch.equal(resumed.step(actions[17]).obs["obs"], obs_before)
    assert record(resumed, actions[18:]) == expected


def test_state_of_another_env_is_refused() -> None:
    state = MujocoBatchEnv("Hopper-v5", num_envs=2).get_state()
    with pytest.raises(UsageError, match="does not fit"):
        MujocoBatchEnv("Hopper-v5", num_envs=3).set_state(state)


def record(env: MujocoBatchEnv, actions: torch.Tensor) -> list[bytes]:
    """Everything that the env returns, as bytes."""

    def bits(step: Step) -> bytes:
        final = [] if step.final_obs is None else [step.final_obs["obs"][step.ended]]
        episodes = [step.episodes.return_, step.episodes.length]
        tensors = [step.obs["obs"], step.reward, step.terminated, step.truncated, *episodes, *final]
        return b"".join(tensor.numpy().tobytes() for tensor in tensors)

    return [bits(env.step(action)) for action in actions]


# ---- episodes


def test_episode_statistics_and_time_limit() -> None:
    env = MujocoBatchEnv("Hopper-v5", num_envs=4, max_episode_steps=12)
    env.reset(0)
    returns, lengths = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    num_ended = 0
    for action in random_actions(env, 60):
        step = env.step(action)
        returns += step.reward
        lengths += 1
        ended = step.ended
        assert torch.equal(step.truncated, lengths == 12)
        assert torch.equal(step.episodes.return_[ended], returns[ended])
        assert torch.equal(step.episodes.length[ended], lengths[ended])
        returns[ended], lengths[ended] = 0.0, 0
        num_ended += int(ended.sum())
    assert num_ended > 4


def test_spread_episodes_are_cut_out_of_phase() -> None:
    env = MujocoBatchEnv("HalfCheetah-v5", num_envs=4, max_episode_steps=20, spread_episodes=True)
    env.reset(0)
    cuts: dict[int, list[tuple[int, int]]] = {i: [] for i in range(4)}
    for t, action in enumerate(random_actions(env, 45), start=1):
        step = env.step(action)
        for i in step.truncated.nonzero()[:, 0].tolist():
            cuts[i].append((t, int(step.episodes.length[i])))
    assert cuts[0] == [(20, 20), (40, 20)]
    assert cuts[1] == [(15, 15), (35, 20)]
    assert cuts[2] == [(10, 10), (30, 20)]
    assert cuts[3] == [(5, 5), (25, 20), (45, 20)]


def test_reset_without_a_seed_goes_on_with_the_generators() -> None:
    env = MujocoBatchEnv("HalfCheetah-v5", num_envs=2)
    first = env.reset(5)["obs"].clone()
    second = env.reset()["obs"].clone()
    assert not torch.equal(first, second)
    assert torch.equal(env.reset(5)["obs"], first)
    assert torch.equal(env.reset()["obs"], second)


# ---- what is served, and errors


def test_served_ids() -> None:
    assert sorted(env_id for env_id in gymnasium.registry if why_not(env_id) is None) == sorted(SERVED)
    assert why_not("CartPole-v1") == "CartPole-v1 is not one of Gymnasium's MuJoCo tasks"
    assert "not registered" in str(why_not("HalfCheetah-v9"))
    assert why_not("Ant-v5", {"use_contact_forces": True}) is None  # a wrong keyword is for the constructor to refuse


def test_rendering_is_not_served() -> None:
    assert why_not("HalfCheetah-v5", {"render_mode": None}) is None
    assert why_not("HalfCheetah-v5", {"render_mode": "rgb_array"})


def test_an_id_registered_for_another_class_is_not_served(registered: None) -> None:
    gymnasium.register("HalfCheetah-v5", entry_point="somewhere.else:HalfCheetahEnv", max_episode_steps=1000)
    assert why_not("HalfCheetah-v5")


def test_an_own_id_of_gymnasiums_class_is_served_with_its_arguments(registered: None) -> None:
    gymnasium.register(
        "LazyCheetah-v0",
        entry_point="gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetahEnv",
        max_episode_steps=50,
        kwargs={"ctrl_cost_weight": 0.9},
    )
    assert assert_equals_gymnasium("LazyCheetah-v0", num_envs=2, steps=60) == 2


@pytest.mark.parametrize(
    ("env_id", "keyword", "nearest"),
    [
        ("HalfCheetah-v5", "control_cost_weight", "; did you mean 'ctrl_cost_weight'"),
        ("Ant-v5", "healthy_zrange", "; did you mean 'healthy_z_range'"),
        ("Reacher-v4", "frame_skip", ""),
    ],
)
def test_unknown_keyword_names_the_nearest(env_id: str, keyword: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=f"{env_id}' does not take the keyword '{keyword}'{nearest}") as caught:
        MujocoBatchEnv(env_id, num_envs=1, env_kwargs={keyword: 1})
    assert "\n" not in str(caught.value)


def test_usage_errors() -> None:
    with pytest.raises(UsageError, match="does not exist"):
        MujocoBatchEnv("Ant-v5", num_envs=1, env_kwargs={"xml_file": "/nowhere.xml"})
    with pytest.raises(UsageError, match="num_envs is 0; it must be at least 1"):
        MujocoBatchEnv("Ant-v5", num_envs=0)
    with pytest.raises(UsageError, match="no batch physics for CartPole-v1"):
        MujocoBatchEnv("CartPole-v1", num_envs=1)
    with pytest.raises(UsageError, match=r"observes 12 numbers .* space says \(4,\)"):
        MujocoBatchEnv("InvertedPendulum-v5", num_envs=1, env_kwargs={"xml_file": "hopper.xml"})
    env = MujocoBatchEnv("HalfCheetah-v5", num_envs=2)
    with pytest.raises(UsageError, match="reset"):
        env.step(torch.zeros(2, 6))
    env.reset(0)
    with pytest.raises(ValueError, match=r"shape \(2, 6\), not \(6,\)"):
        env.step(torch.zeros(6))


@pytest.mark.parametrize("env_id", ["Ant-v4", "Ant-v5"])
def test_failing_physics_names_the_envs(env_id: str, tmp_path: Path) -> None:
    path = changed_model(env_id, tmp_path, "<option", '<size memory="16K"/><option')
    env = MujocoBatchEnv(env_id, num_envs=2, env_kwargs={"xml_file": path})
    with pytest.raises(EnvFailure, match=r"MuJoCo cannot go on in env [01].*: .*out of memory") as caught:
        env.reset(0)
        for action in random_actions(env, 200):
            env.step(action)
    assert "\n" not in str(caught.value)


def test_close_twice_and_default_threads() -> None:
    for env_id in ("HalfCheetah-v5", "Ant-v5"):
        env = MujocoBatchEnv(env_id, num_envs=2)
        env.reset(0)
        env.close()
        env.close()
    assert available_cores() >= 1


def changed_model(env_id: str, folder: Path, pattern: str, replacement: str) -> str:
    """Gymnasium's model of the id with one piece of its text replaced."""
    original = Path(gymnasium.make(env_id).unwrapped.fullpath)
    path = folder / original.name
    path.write_text(re.sub(pattern, replacement, original.read_text(), count=1))
    return str(path)
