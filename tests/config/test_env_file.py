"""Env files of muscle control: XML and YAML alike, names of packaged files, and mistakes as one line each."""

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from proxima.config import changes_at_resume, load_config
from proxima.config.env_file import MUSCLE_ENV, env_file_options, env_files, find_env_file, read_env_file
from proxima.config.muscle_settings import Control, Joint, MuscleSettings, parse_settings, to_dict
from proxima.envs.muscle.env import MuscleVecEnv
from proxima.errors import UsageError
from proxima.evaluation.world import chosen_env

YAML = """
model: planar_legs
control: {mode: hierarchical, rate: 60, simulation_rate: 240, action_scale: 0.2, kp: 150, kv: 12.5}
joints:
  hip_r: {curve: hip, phase: 0.25, kp: 90}
  knee_l: {curve: knee, sign: -1, kv: 3}
  ankle_l:
feet: [foot_l, foot_r]
reference: {motion: walk, period: 1.3, random_start: false}
reward: {pose: 1.5, metabolic: 0}
termination: {height: 0.6, seconds: 2.5}
hidden_sizes: [16, 8]
"""
XML = """<?xml version="1.0" encoding="utf-8"?>
<!-- The same, with values as attributes and as elements. -->
<env model="planar_legs">
  <control mode="hierarchical" rate="60" simulation_rate="240"><action_scale>0.2</action_scale>
    <kp>150</kp><kv> 12.5 </kv></control>
  <joints>
    <hip_r curve="hip" phase="0.25" kp="90"/>
    <knee_l curve="knee"><sign>-1</sign><kv>3</kv></knee_l>
    <ankle_l/>
  </joints>
  <feet>foot_l, foot_r</feet>
  <reference motion="walk" period="1.3" random_start="false"/>
  <reward pose="1.5" metabolic="0"/>
  <termination height="0.6" seconds="2.5"/>
  <hidden_sizes>16 8</hidden_sizes>
</env>
"""


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """The same settings in two files."""
    (tmp_path / "legs.yaml").write_text(YAML)
    (tmp_path / "legs.xml").write_text(XML)
    return tmp_path / "legs.yaml", tmp_path / "legs.xml"


def write(text: str, name: str = "wrong.yaml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def test_xml_and_yaml_are_the_same_settings(both: tuple[Path, Path]) -> None:
    one, two = (read_env_file(path) for path in both)
    assert one == two
    assert one.control == Control(rate=60.0, simulation_rate=240.0, action_scale=0.2, kp=150.0, kv=12.5)
    assert one.joints["hip_r"] == Joint("hip", 0.25, kp=90.0) and one.joints["ankle_l"] == Joint()
    assert one.joints["knee_l"] == Joint("knee", sign=-1.0, kv=3.0)
    assert one.feet == ("foot_l", "foot_r") and one.hidden_sizes == (16, 8)
    assert one.reward.pose == 1.5 and one.reward.root == 10.0 and one.reference.random_start is False
    assert one.substeps == 4 and one.max_episode_steps == 150


def test_xml_and_yaml_are_the_same_trajectories(both: tuple[Path, Path]) -> None:
    found = []
    for path in both:
        env = MuscleVecEnv(num_envs=2, num_threads=1, **to_dict(read_env_file(path)))
        rng = torch.Generator().manual_seed(0)
        weights = {name: 0.3 * torch.randn(x.shape, generator=rng) for name, x in env.network.weights.items()}
        env.set_weights("muscle", weights)
        rows = [env.reset(3)["obs"].clone()]
        for _ in range(20):
            step = env.step(torch.randn(2, 6, generator=rng))
            rows += [step.obs["obs"].clone(), step.reward.clone(), *(x.clone() for x in step.aux.values())]
        found.append(rows)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert not torch.equal(found[0][0], found[0][-4])


def test_packaged_files_by_name_and_by_the_usual_path() -> None:
    assert {"base_lonly", "A2", "torque_legs", "myolegs26"} == set(env_files())
    packaged = env_files()["base_lonly"]
    for name in ("base_lonly", "base_lonly.xml", "data/env/base_lonly.xml", Path("data/env/base_lonly.xml")):
        assert find_env_file(name) == packaged
    with pytest.raises(UsageError, match=r"there is no env file 'data/env/A2.xml'"):  # the packaged one is A2.yaml
        find_env_file("data/env/A2.xml")
    own = Path("data/env/base_lonly.xml")
    own.parent.mkdir(parents=True)
    own.write_text("<env><reward pose='7'/></env>")
    assert read_env_file("data/env/base_lonly.xml").reward.pose == 7.0  # a file that exists comes first
    assert find_env_file("base_lonly") == packaged


@pytest.mark.parametrize("name", sorted(env_files()))
def test_settings_survive_as_plain_data(name: str) -> None:
    settings = read_env_file(name)
    plain = to_dict(settings)
    assert parse_settings(plain) == settings
    assert parse_settings(yaml.safe_load(yaml.safe_dump(plain))) == settings  # as in metadata.yaml
    assert to_dict(parse_settings(plain)) == plain


def test_an_empty_file_is_all_defaults() -> None:
    assert read_env_file(write("")) == read_env_file(write("<env/>", "empty.xml")) == MuscleSettings()


MISTAKES = {
    "negative gain": ("control: {kp: -1}", "control.kp is -1, but it must be at least 0"),
    "negative gain of a joint": ("joints: {hip_r: {kv: -2}}", "joints.hip_r.kv is -2, but it must be at least 0"),
    "missing model": ("model: gone.xml", "there is no model 'gone.xml': give planar_legs, myolegs26, or the path"),
    "unknown key": ("rewrad: {pose: 1}", "there is no setting rewrad.*reward"),
    "unknown nested key": ("control: {action_scal: 1}", r"there is no setting control\.action_scal\..*action_scale"),
    "broken YAML": ("control: {kp: 1", "is not valid YAML at line"),
    "no mapping": ("- 1", "must hold 'name: value' lines"),
    "text for a number": ("control: {kp: stiff}", "control.kp is 'stiff', but it must be a number"),
    "NaN": ("control: {kp: .nan}", "control.kp is nan, but it must be a number"),
    "bool for a number": ("control: {kp: true}", "control.kp is True, but it must be a number"),
    "number for a bool": ("reference: {random_start: 3}", "random_start is 3, but it must be true or false"),
    "unknown choice": ("control: {mode: torque}", "'torque', but it must be one of hierarchical, direct"),
    "number for a list": ("feet: 3", "feet is 3, but it must be a list"),
    "no list": ("hidden_sizes: []", "hidden_sizes is .*, but it must be a list"),
    "fraction of a unit": ("hidden_sizes: [1.5]", "hidden_sizes is 1.5, but it must be a whole number"),
    "infinite": ("hidden_sizes: [.inf]", "hidden_sizes is inf, but it must be a whole number"),
    "no units": ("hidden_sizes: [0]", "hidden_sizes is 0, but it must be at least 1"),
    "number for a section": ("control: 3", "control is 3, but it must hold 'name: value' lines"),
    "list of joints": ("joints: [hip_r]", "joints is .*it must hold 'name: value' lines"),
    "rates": ("control: {rate: 30, simulation_rate: 500}", "simulation_rate is 500, but it must be a multiple of"),
    "slower physics": ("control: {rate: 60, simulation_rate: 30}", "must be a multiple of control.rate 60"),
    "no rate": ("control: {rate: 0}", "control.rate is 0, but it must be above 0"),
    "given twice": ("control: {kp: 1}\ncontrol: {kp: 2}", "at line 2, column 1: control is given twice"),
}
XML_MISTAKES = {
    "broken XML": ("<env><control></env>", "is not valid XML: mismatched tag"),
    "nothing": ("", "is not valid XML"),
    "DOCTYPE": ('<!DOCTYPE env [<!ENTITY a "aa">]><env>&a;</env>', "has a DOCTYPE: leave it out"),
    "two children": ("<env><reward pose='1'/><reward pose='2'/></env>", "<env> has reward twice"),
    "attribute and child": ("<env><reward pose='1'><pose>2</pose></reward></env>", "<reward> has pose twice"),
    "text beside entries": ("<env>legs<reward pose='1'/></env>", "<env> has text 'legs' beside its entries"),
    "negative gain": ("<env><control kp='-1'/></env>", "control.kp is -1, but it must be at least 0"),
    "unknown key": ("<env><control mass='1'/></env>", r"there is no setting control\.mass"),
    "text for a section": ("<env><control>stiff</control></env>", "control is 'stiff', but it must hold"),
    "unknown encoding": ("<?xml version='1.0' encoding='klingon'?><env/>", "is not valid XML"),
}


def refused(path: Path, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        env_file_options(path, {})
    text = str(error.value)
    assert "\n" not in text and text.startswith("env file ") and path.name in text


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_yaml_is_one_line(case: str) -> None:
    text, message = MISTAKES[case]
    refused(write(text), message)


@pytest.mark.parametrize("case", XML_MISTAKES)
def test_a_mistake_in_xml_is_one_line(case: str) -> None:
    text, message = XML_MISTAKES[case]
    refused(write(text, "wrong.xml"), message)


def test_a_doctype_in_another_encoding_is_refused_too(tmp_path: Path) -> None:
    bomb = "<?xml version='1.0' encoding='utf-16'?><!DOCTYPE env [<!ENTITY a 'planar_legs'>]><env model='&a;'/>"
    (tmp_path / "wrong.xml").write_bytes(bomb.encode("utf-16"))
    refused(tmp_path / "wrong.xml", "has a DOCTYPE")


def test_a_deep_or_large_file_is_refused() -> None:
    refused(write("<a>" * 60 + "</a>" * 60, "wrong.xml"), "nests deeper than 50 levels")
    refused(write("<env>" + " " * 2**22 + "</env>", "wrong.xml"), "bytes, but at most")


def test_no_file_of_this_name() -> None:
    known = re.escape(", ".join(env_files()))
    for name in ("legs", "data/env/legs.xml", "elsewhere/base_lonly.xml"):
        with pytest.raises(UsageError, match=f"there is no env file '{name}': give a path, or one of {known}"):
            find_env_file(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("joints: {hip_x: {curve: hip}}", "joints.hip_x: the model planar_legs has no driven joint 'hip_x'; it has"),
        ("feet: [foot_r, paw]", "feet: the model planar_legs has no body 'paw'"),
    ],
)
def test_joints_and_feet_are_checked_once_the_model_is_built(text: str, message: str) -> None:
    settings = to_dict(read_env_file(write(text)))
    with pytest.raises(UsageError, match=message) as error:
        MuscleVecEnv(num_envs=1, **settings)
    assert "\n" not in str(error.value)


def test_a_model_is_looked_for_beside_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "bodies"
    folder.mkdir()
    (folder / "body.xml").write_text("<mujoco/>")
    (folder / "file.yaml").write_text("model: body.xml\nreward: {pose: 4}")
    settings = read_env_file("bodies/file.yaml")
    assert settings.model == str((folder / "body.xml").resolve()) and settings.reward.pose == 4.0


def test_options_that_follow_from_a_file() -> None:
    options = env_file_options("base_lonly", {"reward": {"pose": 3}, "hidden_sizes": [8]})
    assert (options["env"], options["name"], options["algorithm"]) == (MUSCLE_ENV, "base_lonly", "PPO+muscle")
    plain = to_dict(read_env_file("base_lonly"))
    changed = {**plain, "reward": {**plain["reward"], "pose": 3.0}, "hidden_sizes": [8]}
    assert options["env_kwargs"] == changed
    assert env_file_options("torque_legs", {})["algorithm"] == "PPO"
    with pytest.raises(UsageError, match=r"reward\.pose is -1"):
        env_file_options("base_lonly", {"reward": {"pose": -1}})


def configured(**options: Any) -> Any:
    return load_config(None, {"env_file": "base_lonly", **options})


def test_a_config_with_an_env_file() -> None:
    config = configured(env_kwargs={"control": {"kp": 100}}, name="mine")
    assert config.env.env == MUSCLE_ENV and config.name == "mine"
    assert config.env.env_kwargs["control"]["kp"] == 100.0 and config.env.env_kwargs["control"]["rate"] == 30.0
    assert configured().name == "base_lonly"
    with pytest.raises(UsageError, match="env is Hopper-v5 and env_file is base_lonly: give one of them"):
        configured(env="Hopper-v5")


PRESETS = {  # muscle_batch_size: preset, samples per batch, minibatch size, envs
    64: ("ppo_mini", 256, 64, 1),
    None: ("ppo_small_pc", 8192, 512, 16),
    512: ("ppo_small_pc", 8192, 512, 16),
    1024: ("ppo_medium_pc", 65536, 1024, 32),
    4096: ("ppo_large_pc", 262144, 4096, 32),
}


@pytest.mark.parametrize("size", PRESETS)
def test_the_preset_follows_the_batch_size_of_the_muscle_network(size: int | None) -> None:
    name, batch, minibatch, envs = PRESETS[size]
    for config in (configured(**({} if size is None else {"muscle_batch_size": size})), load_config(name)):
        assert config.rollout_size == batch and config.env.num_envs == envs
        assert config.algorithm.minibatch_size == minibatch == config.muscle.muscle_batch_size
        assert config.algorithm.gamma == config.ppo.gae_lambda == 0.99
        assert (config.optimizer.learning_rate, config.optimizer.lr_schedule) == (1e-4, "constant")
        assert (config.ppo.update_epochs, config.ppo.clip_range) == (4, 0.2)
        assert (config.ppo.value_loss_coef, config.ppo.entropy_coef) == (1.0, 0.0)
        assert config.algorithm.algorithm == "PPO+muscle" and config.name == "base_lonly"
    assert configured(**({} if size is None else {"muscle_batch_size": size})).run.preset == name


def test_a_preset_that_is_named_or_refused_is_not_replaced(tmp_path: Path) -> None:
    assert configured(preset="ppo_mini", muscle_batch_size=4096).run.preset == "ppo_mini"
    assert configured(preset="none").env.num_envs == 8
    (tmp_path / "mine.yaml").write_text("num_envs: 3")
    assert load_config(tmp_path / "mine.yaml", {"env_file": "A2"}).env.num_envs == 3
    refused = load_config(tmp_path / "mine.yaml", {"env_file": "A2", "preset": "none"})
    assert refused.run.preset == "none" and refused.ppo.num_steps == configured(preset="none").ppo.num_steps
    assert np.isclose(configured(preset="none", learning_rate=3e-4).optimizer.learning_rate, 3e-4)


def test_single_settings_can_be_changed_in_evaluation_and_at_a_resume() -> None:
    config = load_config(None, {"env_file": "A2"})
    env_id, kwargs, _ = chosen_env(config, None, {"control": {"kp": 220}})
    assert env_id == "proxima/Muscle-v0" and kwargs["control"] == {**config.env.env_kwargs["control"], "kp": 220}
    after = load_config(None, {"env_kwargs": {"control": {"kp": 220}}}, base=copy.deepcopy(config))
    assert [(option.name, new) for option, _, new in changes_at_resume(config, after)] == [("control.kp", 220)]


def test_an_env_beside_an_env_file_is_refused() -> None:
    with pytest.raises(UsageError, match=r"env is HalfCheetah-v5 and env_file is A2: give one of them"):
        load_config("halfcheetah", {"env_file": "A2"})
