"""Presets are found by env id, complete, and overridden by flags; every one of them trains (`test_trainer.py`)."""

from pathlib import Path

import gymnasium as gym
import pytest

import proxima.envs.catalog  # noqa: F401  registers Proxima's own ids
from proxima.config import all_presets, load_config
from proxima.config import config as config_module
from proxima.config.presets import packaged_file, preset_for
from proxima.errors import UsageError


@pytest.fixture
def presets_by_env(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what `conftest.py` does for all other tests."""
    monkeypatch.setattr(config_module, "preset_for", preset_for)


@pytest.mark.parametrize(
    ("env_id", "algorithm", "name"),
    [
        ("HalfCheetah-v5", "PPO", "halfcheetah"),
        ("HalfCheetah-v4", "PPO", "halfcheetah"),
        ("HalfCheetah", "PPO", "halfcheetah"),
        ("gymnasium.envs.mujoco:HalfCheetah-v5", "PPO", "halfcheetah"),
        ("MountainCar-v0", "PPO", "mountain_car"),
        ("MountainCarContinuous-v0", "PPO", "mountain_car_continuous"),
        ("HumanoidStandup-v5", "PPO", "humanoid_standup"),
        ("CartPole-v1", "DQN", "cartpole_dqn"),
        ("proxima/SuperMarioBros-4-2-v0", "DQN", "mario_dqn"),
        ("ALE/Breakout-v5", "PPO", "atari_ppo"),
    ],
)
def test_a_preset_is_found_by_env_id_and_algorithm(env_id: str, algorithm: str, name: str) -> None:
    preset = preset_for(env_id, algorithm)
    assert preset is not None and preset.name == name


@pytest.mark.parametrize("env_id", ["HalfCheetahRough-v0", "MyCartPole-v1", "CarRacing-v3"])
def test_other_envs_have_none(env_id: str) -> None:
    assert preset_for(env_id, "PPO") is None


def test_no_env_has_two_presets_of_one_algorithm() -> None:
    for env_id in gym.registry:
        for algorithm in ("PPO", "DQN"):
            fitting = [preset.name for preset in all_presets().values() if preset.fits(env_id, algorithm)]
            assert len(fitting) <= 1, (env_id, fitting)


@pytest.mark.parametrize("name", sorted(all_presets()))
def test_every_preset_says_what_it_reaches_and_sets_valid_options(name: str) -> None:
    preset = all_presets()[name]
    assert preset.reaches and "TODO" not in preset.reaches
    config = load_config(name)
    config.validate()
    if preset.envs and "*" not in preset.envs[0] and "env" in config.given:
        assert preset.fits(config.env.env, preset.algorithm)


@pytest.mark.usefixtures("presets_by_env")
def test_order_is_preset_then_flags() -> None:
    config = load_config(None, {"env": "HalfCheetah-v4", "num_steps": 16})
    assert config.run.preset == "halfcheetah" and config.env.env == "HalfCheetah-v4"
    assert (config.env.num_envs, config.ppo.num_steps, config.policy.initial_std) == (64, 16, 0.6)
    assert (config.given["num_envs"], config.given["num_steps"]) == ("halfcheetah", "flags")


@pytest.mark.usefixtures("presets_by_env")
def test_none_is_plain_defaults_and_a_name_is_another_preset() -> None:
    assert load_config(None, {"env": "HalfCheetah-v5", "preset": "none"}).env.num_envs == 8
    other = load_config(None, {"env": "HalfCheetah-v5", "preset": "hopper"})
    assert (other.run.preset, other.env.env, other.ppo.num_steps) == ("hopper", "HalfCheetah-v5", 256)
    with pytest.raises(UsageError, match=r"no preset 'hoper'.*Did you mean hopper\?"):
        load_config(None, {"preset": "hoper"})


@pytest.mark.usefixtures("presets_by_env")
def test_a_config_file_stands_on_its_own_unless_it_names_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("env: HalfCheetah-v5\n")
    assert load_config(path).env.num_envs == 8
    path.write_text("env: HalfCheetah-v5\npreset: auto\nnum_steps: 8\n")
    config = load_config(path)
    assert (config.run.preset, config.env.num_envs, config.ppo.num_steps) == ("halfcheetah", 64, 8)


@pytest.mark.usefixtures("presets_by_env")
def test_a_saved_config_gives_the_same_options_again(tmp_path: Path) -> None:
    config = load_config(None, {"env": "Hopper-v5", "gamma": 0.97})
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    assert load_config(path) == config


@pytest.mark.usefixtures("presets_by_env")
def test_minibatches_of_a_feedforward_preset_are_not_taken_for_sequences() -> None:
    config = load_config(None, {"env": "HalfCheetah-v5", "rnn": "gru"})
    assert "minibatch_size" not in config.given


@pytest.mark.parametrize("path", ["halfcheetah", "halfcheetah.yaml", "configs/halfcheetah.yaml"])
def test_a_config_is_found_by_the_name_of_a_preset(path: str) -> None:
    assert load_config(path).env.env == "HalfCheetah-v5"


def test_a_file_of_this_name_comes_first_and_other_folders_are_not_guessed(tmp_path: Path) -> None:
    Path("halfcheetah").write_text("num_envs: 3\n")
    assert load_config("halfcheetah").env.num_envs == 3
    assert packaged_file(Path("mine/halfcheetah.yaml")) is None
    with pytest.raises(UsageError, match="does not exist, nor a preset of this name"):
        load_config("mine/halfcheetah.yaml")


def test_a_resume_refuses_a_preset() -> None:
    base = load_config(None, {"env": "Hopper-v5"})
    with pytest.raises(UsageError, match="preset is for a new run"):
        load_config(None, {"preset": "hopper"}, base=base)


def test_the_defaults_of_textbooks_are_a_preset() -> None:
    config = load_config("classic")
    algorithm, ppo, optimizer = config.algorithm, config.ppo, config.optimizer
    assert (ppo.clip_range, ppo.update_epochs, algorithm.minibatch_size, ppo.num_steps) == (0.2, 10, 64, 2048)
    assert (algorithm.gamma, ppo.gae_lambda, ppo.entropy_coef, ppo.value_loss_coef) == (0.99, 0.95, 0.01, 0.5)
    assert (config.env.num_envs, config.run.total_timesteps) == (8, 1_000_000)
    assert (optimizer.learning_rate, optimizer.max_grad_norm) == (3e-4, 0.5)
    assert config.rollout_size == 16_384 and config.num_iterations == 62 and config.num_minibatches == 256


def test_the_student_of_phase_2_sees_depth_and_its_sizes_are_in_one_section() -> None:
    config = load_config(None, {"preset": "phase2_distillation", "teacher": "runs/teacher"})
    config.validate()
    assert config.validate_algorithm() == []
    assert (config.algorithm.algorithm, config.env.env) == ("distillation", "proxima/Quadruped-v0")
    assert config.policy.encoders["scandots"] == {"use": "none"} and "depth" in config.policy.encoders
    assert (config.ppo.num_steps, config.sequence_length, config.num_minibatches) == (24, 24, 4)
    assert config.distill.teacher_share == [0.0]


def test_env_kwargs_change_single_settings_of_a_preset() -> None:
    kept = load_config("phase1_small", {}).env.env_kwargs
    changed = load_config("phase1_small", {"env_kwargs": {"randomise": {"noise": 0}}}).env.env_kwargs
    assert kept["ground"] == changed["ground"] == {"kind": "plane"}
    assert changed["randomise"] == {**kept["randomise"], "noise": 0}
    other = load_config("phase1_small", {"env": "Hopper-v5", "env_kwargs": {"healthy_reward": 0.5}}).env.env_kwargs
    assert other == {"healthy_reward": 0.5}
