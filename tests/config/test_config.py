"""Options from defaults, YAML and flags; every kind of bad input."""

from pathlib import Path
from typing import Any

import pytest

from proxima.config import (
    SECTIONS,
    Config,
    all_options,
    changes_at_resume,
    compared_options,
    config_from_dict,
    load_config,
)
from proxima.config.options import options_of
from proxima.errors import UsageError
from proxima.own_parts import find_part


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "some.yaml"
    path.write_text(text)
    return path


def test_names_are_unique_and_every_option_is_explained() -> None:
    options = [option for section, cls in SECTIONS.items() for option in options_of(section, cls)]
    spellings = [name for option in options for name in (option.name, *option.aliases)]
    assert len(spellings) == len(set(spellings))
    assert all(len(option.help) > 10 for option in options)
    assert len(all_options()) == len(options)


def test_order_is_defaults_then_yaml_then_flags(tmp_path: Path) -> None:
    path = write(tmp_path, "ppo:\n  gamma: 0.9\n  n_epochs: 3\nlearning_rate: 1e-3\n")
    config = load_config(path, {"gamma": "0.8"})
    assert (config.algorithm.gamma, config.ppo.update_epochs, config.optimizer.learning_rate) == (0.8, 3, 1e-3)
    assert config.ppo.gae_lambda == 0.95


def test_the_key_env_is_a_section_or_an_id(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "env: Hopper-v5\n")).env.env == "Hopper-v5"
    assert load_config(write(tmp_path, "env: {env: Ant-v5, num_envs: 3}\n")).env.num_envs == 3


def test_the_key_policy_is_a_section_or_a_class(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "policy: mynets:MyPolicy\n")).policy.policy_class == "mynets:MyPolicy"
    assert load_config(write(tmp_path, "policy: {policy: mynets:MyPolicy, rnn: gru}\n")).policy.rnn == "gru"


def test_objects_are_stored_by_name_only_where_an_option_takes_them() -> None:
    config = load_config(None, {"loss": write, "algorithm": Path, "encoders": {"x": {"network": Config, "out": 3}}})
    assert config.algorithm.extra_loss == f"{__name__}:write" and ":Path" in config.algorithm.algorithm
    assert config.policy.encoders == {"x": {"network": "proxima.config.config:Config", "out": 3}}
    assert load_config(None, {"loss": "none"}).algorithm.extra_loss is None
    with pytest.raises(UsageError, match="algorithm is 'PPQ', but it must be one of PPO"):
        load_config(None, {"algorithm": "PPQ"})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("total_timesteps", "2M", 2_000_000),
        ("total_timesteps", "1.5e6", 1_500_000),
        ("total-timesteps", "2_000_000", 2_000_000),
        ("total_timesteps", "15B", 15_000_000_000),
        ("checkpoint_freq", "1M", 1_000_000),
        ("checkpoint_freq", "2.5k", 2_500),
        ("keep_checkpoints", "17", 17),
        ("hidden_sizes", "256,128", [256, 128]),
        ("hidden_sizes", ["256,128"], [256, 128]),
        ("hidden_sizes", ["256", "128"], [256, 128]),
        ("target_kl", "none", None),
        ("critic_hidden_sizes", ["none"], None),
        ("critic_hidden_sizes", ["[]"], []),
        ("critic_hidden_sizes", ["256", "128"], [256, 128]),
        ("action_hold_random", ["0.05", "0.2"], [0.05, 0.2]),
        ("target_kl", "0.02", 0.02),
        ("normalize_obs", "False", False),
        ("compile", True, "on"),
        ("env_kwargs", "{forward_reward_weight: 2.0}", {"forward_reward_weight": 2.0}),
        ("encoders", "{scan: {widths: [8], use: critic}}", {"scan": {"widths": [8], "use": "critic"}}),
        ("clip_epsilon", "0.1", 0.1),
        ("mini_batch_size", "32", 32),
        ("vf_coef", "1", 1.0),
    ],
)
def test_values_as_people_write_them(name: str, text: Any, value: Any) -> None:
    flat = {k: v for section in load_config(None, {name: text}).to_dict().values() for k, v in section.items()}
    assert value in flat.values()


LONG_RUN = """
total_timesteps: 15B
checkpoint_freq: 1M
keep_checkpoints: all
log_freq: 1k
"""


@pytest.mark.parametrize("text", [LONG_RUN, "checkpoint: {checkpoint_freq: 1M, keep_checkpoints: all}\nlog_freq: 1000"])
def test_a_file_for_a_long_run(text: str, tmp_path: Path) -> None:
    config = load_config(write(tmp_path, text))
    assert (config.checkpoint.checkpoint_freq, config.checkpoint.keep_checkpoints) == (1_000_000, 0)
    assert config.track.log_every == 1000
    assert config.run.total_timesteps == (15_000_000_000 if text is LONG_RUN else 1_000_000)


@pytest.mark.parametrize("text", ["all", "ALL", 0, "0"])
def test_all_checkpoints_are_kept_by_a_word_or_by_0(text: Any) -> None:
    assert load_config(None, {"keep_checkpoints": text}).checkpoint.keep_checkpoints == 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"lerning_rate": 1}, "Did you mean learning_rate"),
        ({"gamma": 1.2}, "gamma is 1.2, but it must be <= 1"),
        ({"gamma": "x"}, "gamma is 'x', but it must be a number"),
        ({"gamma": "nan"}, "must be a number"),
        ({"num_envs": 0}, "num_envs is 0, but it must be >= 1"),
        ({"num_envs": 1.5}, "must be a whole number"),
        ({"keep_checkpoints": "some"}, "keep_checkpoints is 'some', but it must be a whole number, or all"),
        ({"keep_checkpoints": -1}, "keep_checkpoints is -1, but it must be >= 0"),
        ({"checkpoint_freq": "1Q"}, "checkpoint_freq is '1Q', but it must be a whole number"),
        ({"lr_schedule": "cosin"}, "Did you mean cosine"),
        ({"normalize_obs": "maybe"}, "must be True or False"),
        ({"env_kwargs": "3"}, "must be a mapping"),
        ({"env_kwargs": "{a: "}, "env_kwargs is not valid YAML"),
        ({"learning_rate": "inf"}, "must be a finite number"),
        ({"hidden_sizes": "64,0"}, "must be >= 1"),
        ({"action_hold_seconds": -0.1}, "action_hold_seconds is -0.1, but it must be >= 0"),
        ({"action_hold_random": "-0.1 0.2"}, "action_hold_random is -0.1, but it must be >= 0"),
        ({"action_hold_fraction": 0}, "action_hold_fraction is 0, but it must be > 0"),
        ({"clip_range": 1e39}, r"clip_range is 1e\+39, but it must be a finite number of at most 3.4e38"),
        ({"clip_obs": "1e400"}, "clip_obs is inf, but it must be a finite number"),
        ({"learning_rate": "1e39"}, "at most 3.4e38"),
        ({"adam_eps": 1e-50}, "adam_eps is 1e-50, but as float32 that is 0"),
        ({"max_episode_steps": 2**63}, "max_episode_steps is 9223372036854775808, but it must be a whole number below"),
        ({"max_episode_steps": 2**31}, r"max_episode_steps is 2.14748e\+09, but it must be < 2.14748e\+09"),
        ({"seed": "9" * 401}, "seed is '9999.*, but it must be a whole number below 2"),
        ({"seed": int("9" * 4000)}, "seed is a number of 3322 hexadecimal digits, but"),
        ({"seed": "9" * 6000}, "seed is '9999.*, but it must be a whole number below 2"),
        ({"hidden_sizes": "1000000000"}, r"hidden_sizes is 1e\+09, but it must be <= 65536"),
        ({"name": "a\0b"}, "name is 'a.x00b', but it must be text without NUL"),
        ({"name": "\udcff"}, "in UTF-8"),
        ({"name": ["a"]}, r"name is \['a'\], but it must be text"),
        ({"env": None}, "env is None, but it must be text"),
        ({"lr": 3e-4, "learning_rate": 1e-4}, "lr and learning_rate are the same option: give one of them"),
        ({"env_kwargs": "[" * 200 + "]" * 200}, "nests deeper than 50"),
    ],
)
def test_bad_values_are_named(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_config(None, overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"initial_std": 9.0}, "between min_std 0.01 and max_std 4"),
        ({"min_std": [0.5, 5.0]}, "between min_std 5 and max_std 4"),
        ({"min_std": [0.5, 0.4, 0.1]}, "min_std has 3 numbers"),
        ({"weight_decay": 0.1}, "use optimizer adamw"),
        ({"name": "a/b"}, "usable as one folder's name"),
        ({"name": ".."}, "usable as one folder's name"),
        ({"std_mode": "state", "min_std": 1, "max_std": 1}, "use std_mode fixed"),
    ],
)
def test_contradictions_are_named(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_config(None, overrides).validate()


def test_of_a_recurrent_policy_minibatches_are_of_sequences() -> None:
    config = load_config(None, {"rnn": "gru", "num_envs": 4, "num_steps": 100, "minibatch_size": 5})
    assert (config.sequence_length, config.num_sequences, config.num_minibatches) == (24, 20, 4)
    assert load_config(None, {"rnn": "gru", "num_steps": 8}).sequence_length == 8
    assert load_config(None, {"num_steps": 8}).num_sequences == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ppo:\n  gama: 1\n", "there is no option 'gama'. Did you mean gamma"),
        ("ppo:\n  num_envs: 3\n", "'num_envs' belongs in section 'env'"),
        ("distill:\n  clip_range: 0.1\n", "'clip_range' belongs in section 'ppo'"),
        ("ppo: [unclosed\n", "is not valid YAML at line 2"),
        ("just words\n", "must hold options"),
        ("ppo: 5\n", "ppo is a section"),
        ("run:\n  seed: -1\n", "seed is -1, but it must be >= 0"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_config(write(tmp_path, text))


def test_a_missing_file_offers_its_neighbour(tmp_path: Path) -> None:
    near = write(tmp_path, "")
    with pytest.raises(UsageError, match=f"does not exist, nor a preset of this name. Did you mean {near}"):
        load_config(tmp_path / "som.yaml")


def test_a_config_survives_its_own_yaml() -> None:
    config = load_config(None, {"env_kwargs": {"a": 1}, "target_kl": 0.5, "hidden_sizes": [3]})
    assert config_from_dict(config.to_dict(), source="test") == config


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lerning_rate", "learning_rate"),
        ("gama", "gamma"),
        ("entropy", "entropy_coef"),
        ("num-env", "num_envs"),
        ("warm_from", None),
        ("foo", None),
        ("x", None),
    ],
)
def test_a_suggestion_is_near_or_none(typed: str, meant: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        load_config(None, {typed: 1})
    assert str(caught.value).startswith(f"there is no option {typed!r}.")
    assert ("Did you mean" in str(caught.value)) == (meant is not None)
    assert meant is None or f"Did you mean {meant}?" in str(caught.value)


def test_errors_name_the_flag_the_file_or_the_keyword_that_was_used(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("gamma: 2\n")
    with pytest.raises(UsageError, match=f"^{tmp_path}/x.yaml: gamma is 2, but"):
        load_config(tmp_path / "x.yaml")
    with pytest.raises(UsageError, match=r"^gamma is 2, but"):
        load_config(None, {"gamma": 2})


@pytest.mark.parametrize("content", [b"name: caf\xe9", b"[" * 5000, b"- a"])
def test_hostile_config_files_are_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(UsageError, match=r"^config file") as caught:
        load_config(tmp_path / "x.yaml")
    assert "\n" not in str(caught.value)


def test_options_say_what_a_resume_may_change() -> None:
    by_rule = {rule: {o.name for o in all_options().values() if o.resume == rule} for rule in ("fixed", "free")}
    sections = {name: {o.name for o in options_of(name, cls)} for name, cls in SECTIONS.items()}
    weights_and_states = {"algorithm", "env", "env_kwargs", "wrappers", "num_envs", "seed", "normalize_obs"}
    weights_and_states |= {"init_from", "teacher", "teacher_settings", "teacher_share"}
    assert by_rule["fixed"] == weights_and_states | sections["policy"]
    names = {"total_timesteps", "name", "preset", "runs_dir", "env_file", "ray_address"}
    assert by_rule["free"] == names | sections["checkpoint"] | sections["track"]


def test_options_say_whether_they_matter_for_a_comparison() -> None:
    left_out = {o.name for o in all_options().values() if not o.compared}
    sections = {name: {o.name for o in options_of(name, cls)} for name, cls in SECTIONS.items()}
    where = {"name", "preset", "seed", "runs_dir", "device", "num_threads", "env_file", "teacher_settings"}
    where |= sections["cluster"] - {"overlap"}
    assert left_out == where | sections["checkpoint"] | sections["evaluation"] | sections["track"]
    assert compared_options({"seed": 1, "gamma": 0.9, "of_another_version": 2}) == {
        "gamma": 0.9,
        "of_another_version": 2,
    }


def test_a_keyword_of_an_env_can_be_given_like_an_option(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "env: {rom: a.nes, env_kwargs: {world: 1}}\n"))
    assert config.env.env_kwargs == {"world": 1, "rom": "a.nes"}
    assert load_config(None, {"rom": "b.nes"}, base=config).env.env_kwargs == {"world": 1, "rom": "b.nes"}
    assert load_config(None, {"rom": "none"}, base=config).env.env_kwargs == {"world": 1}
    assert "env_kwargs" in load_config(None, {"rom": "b.nes"}).set_options()  # what --auto-resume passes on


def test_a_config_from_when_rom_was_an_option_is_read() -> None:
    old = Config().to_dict()
    assert config_from_dict(old | {"env": old["env"] | {"rom": None}}, source="test") == Config()
    config = config_from_dict(old | {"env": old["env"] | {"rom": "a.nes"}}, source="test")
    assert config.env.env_kwargs == {"rom": "a.nes"}


def test_where_the_game_file_lies_matters_to_neither_resume_nor_comparison() -> None:
    one, two = (load_config(None, {"env_kwargs": {"world": 1}, "rom": rom}) for rom in ("a.nes", "b.nes"))
    assert not changes_at_resume(one, two)
    assert compared_options(one.flat()) == compared_options(two.flat())
    assert compared_options(one.flat() | {"rom": None}) == compared_options(two.flat())  # of an older version
    other = load_config(None, {"env_kwargs": {"world": 2}})
    assert [opt.name for opt, _, _ in changes_at_resume(one, other)] == ["env_kwargs"]
    assert compared_options(one.flat()) != compared_options(other.flat())


def test_an_object_is_stored_by_its_name_where_a_part_can_be_given() -> None:
    part = object()
    config = load_config(None, {"loggers": [part, "mine:Logger"]})
    assert [type(name) for name in config.track.loggers] == [str, str] and config.track.loggers[1] == "mine:Logger"
    assert find_part(config.track.loggers[0]) is part
    assert load_config(None, {"loggers": part}).track.loggers == config.track.loggers[:1]
    assert config_from_dict(config.to_dict(), source="").track.loggers == config.track.loggers
