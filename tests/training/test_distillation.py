"""Distillation: labels, acting, learning, checkpoints, resume, and teachers that do not fit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from proxima import train
from proxima.config import load_config
from proxima.data.rollout import Rollout
from proxima.envs.make import make_env
from proxima.errors import UsageError
from proxima.nets.policy import Acted
from proxima.nets.teacher import Behaviour, Teacher
from proxima.runs import checkpoint
from proxima.training.collector import Collector
from proxima.training.distill import Distillation
from proxima.training.trainer import Trainer, TrainResult
from tests.envs.hidden_goal import HIDDEN_GOAL, saved, straight, untrained
from tests.training.runs import SMALL, metrics
from tests.training.test_killed_runs import assert_same_end

GRU = {"rnn": "gru", "rnn_size": 8, "hidden_sizes": [8]}
STUDENT = {"encoders": {"state": {"use": "none"}}}
OPTIONS = SMALL | STUDENT | {"env": HIDDEN_GOAL, "algorithm": "distillation", "total_timesteps": 256}
RECURRENT = OPTIONS | GRU | {"bptt_length": 12, "minibatch_size": 5}


@pytest.fixture
def teacher(tmp_path: Path) -> str:
    """A recurrent teacher with random weights."""
    return str(saved(tmp_path / "teacher", *untrained(**GRU, initial_std=0.5)))


def with_teacher(path: str, **options: Any) -> dict[str, Any]:
    return RECURRENT | {"teacher": path} | options


@pytest.mark.parametrize("options", [GRU, GRU | {"rnn": "lstm", "share_trunk": "off"}, {"hidden_sizes": [8]}])
def test_labels_equal_the_teacher_acting_step_by_step_over_rollouts(options: dict[str, Any]) -> None:
    envs, steps = 3, 10
    env = make_env(HIDDEN_GOAL, num_envs=envs)
    teacher, _ = untrained(**options)
    student, _ = untrained(encoders={"state": {"use": "none"}})
    labelling = Teacher(teacher, envs)
    behaviour = Behaviour(student, teacher, mixes=False)
    source = Collector(env, behaviour, num_steps=steps, device=torch.device("cpu"), env_seed=1, seed=2)
    states: list[torch.Tensor | None] = [None] * envs  # each env on its own, with the state of the policy's contract
    ended = 0
    for _ in range(3):
        rollout = source.collect()
        label = labelling.label(rollout)
        for t in range(steps):
            for i in range(envs):
                _, action, states[i], *_ = teacher.act({"state": rollout.obs["state"][t, i : i + 1]}, None, states[i])
                torch.testing.assert_close(label[t, i], action[0])
                if rollout.ended[t, i]:
                    states[i], ended = None, ended + 1
    assert ended > 4
    assert not any(p.requires_grad for p in teacher.parameters())


def test_the_teacher_acts_as_often_as_its_share_says() -> None:
    teacher, student = untrained(**GRU)[0], untrained(**GRU | STUDENT)[0]
    behaviour = Behaviour(student, teacher, mixes=True)
    torch.manual_seed(0)
    obs = {"state": torch.randn(1000, 4), "view": torch.randn(1000, 4)}
    noise, state = torch.randn(1000, behaviour.noise_size), behaviour.first_state(1000)
    assert state is not None and state.shape == (1000, 16)
    state.normal_()
    own = student.act(obs, noise[:, :-1], state[:, :8])
    theirs = teacher.act(obs, None, state[:, 8:])
    for share in (0.0, 0.3, 1.0):
        behaviour.share.fill_(share)
        acted = behaviour.act(obs, noise, state)
        taught = (acted.env_action == theirs.env_action).all(-1)
        assert float(taught.float().mean()) == pytest.approx(share, abs=0.05)
        assert torch.equal(acted.env_action[~taught], own.env_action[~taught])
        assert torch.equal(acted.state, torch.cat((own.state, theirs.state), -1))  # type: ignore[arg-type]
    assert torch.equal(behaviour.act(obs, None, state).env_action, student.act(obs, None, state[:, :8]).env_action)


@pytest.mark.parametrize("rnn", [{}, {"rnn": "none", "minibatch_size": 32}])
def test_a_run_in_which_the_teacher_helps_at_first(teacher: str, rnn: dict[str, Any]) -> None:
    result = train(**with_teacher(teacher, teacher_share=[0.5, 0.0], **rnn))
    assert [row["teacher_share"] for row in metrics(result.run_dir)] == [0.5, 0.25]


def test_the_statistics_of_the_student_are_those_of_what_it_saw(teacher: str) -> None:
    trainer = Trainer(load_config(None, with_teacher(teacher)))
    assert isinstance(trainer.algorithm, Distillation)
    before = {name: x.clone() for name, x in trainer.algorithm.teacher.policy.state_dict().items()}
    trainer.iterate()
    seen = trainer.source.rollout.obs
    assert set(seen) == {"view", "state"}
    moments = trainer.policy.normalizer.moments["key_0"]
    torch.testing.assert_close(moments.mean.float(), seen["view"][:-1].flatten(0, 1).mean(0))
    after = trainer.algorithm.teacher.policy.state_dict()
    assert all(torch.equal(x, after[name]) for name, x in before.items())
    trainer.close()


@pytest.mark.slow
@pytest.mark.parametrize("rnn", [{}, {"rnn": "none", "minibatch_size": 32}])
def test_a_student_learns_from_pictures_that_the_teacher_never_saw(tmp_path: Path, rnn: dict[str, Any]) -> None:
    path = str(saved(tmp_path / "teacher", *straight()))
    sees = {"env_kwargs": {"camera": True, "blind": True}, "cnn_features": 16, "learning_rate": 3e-3}
    rows = metrics(train(**with_teacher(path, **sees | rnn, total_timesteps=128 * 12)).run_dir)
    assert rows[-1]["action_error"] < 0.5 * rows[0]["action_error"]


class Stacked(torch.nn.Module):
    """In place of a policy: its action is what it sees."""

    actor_keys = ("frames",)
    actor_state_size = 0

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("return_scale", torch.ones(()))

    def act(self, obs: dict[str, torch.Tensor], noise: None, state: None) -> Acted:
        return Acted(obs["frames"], obs["frames"], None)


def test_a_teacher_that_sees_frame_stacks_gets_them_rebuilt() -> None:
    steps, envs, frames = 6, 2, 3
    stacks = torch.zeros(envs, frames, 8, 8, dtype=torch.uint8)
    rollout = Rollout(
        num_steps=steps,
        num_envs=envs,
        obs={"frames": stacks},
        action=torch.zeros(envs, 1),
        device=torch.device("cpu"),
        stacks={"frames": frames},
    )
    rollout.frames["frames"].copy_(
        torch.arange(steps + frames).view(-1, 1, 1, 1, 1).expand_as(rollout.frames["frames"])
    )
    rollout.truncated[2, 1] = True
    label = Teacher(Stacked(), envs).label(rollout)[..., 0, 0]  # type: ignore[arg-type]  # [T, N, F]
    assert label[:, 0].tolist() == [[t, t + 1, t + 2] for t in range(steps)]
    assert label[2:5, 1].tolist() == [[2, 3, 4], [5, 5, 5], [5, 5, 6]]


@pytest.mark.slow
def test_a_student_with_memory_learns_and_a_blind_one_cannot(tmp_path: Path) -> None:
    path = str(saved(tmp_path / "teacher", *straight()))
    sizes = {"num_envs": 64, "num_steps": 24, "minibatch_size": 32, "update_epochs": 4, "total_timesteps": 64 * 24 * 20}
    learning = {"learning_rate": 3e-3, "rnn_size": 32, "hidden_sizes": [32]}
    errors = {}
    for blind in (False, True):
        result = train(**with_teacher(path, env_kwargs={"blind": blind}, **sizes | learning))
        rows = metrics(result.run_dir)
        errors[blind] = rows[0]["action_error"] / rows[-1]["action_error"]
        assert rows[-1]["distill_loss"] < rows[0]["distill_loss"]
    assert errors[False] > 10 and errors[True] < 4


# Checkpoints ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [[0.0], [0.6, 0.2]])
def test_a_resume_without_the_teachers_folder_ends_with_the_same_bits(teacher: str, share: list[float]) -> None:
    options = with_teacher(teacher, total_timesteps=512, checkpoint_freq=256, teacher_share=share)
    whole = train(**options)
    first, *_ = checkpoint.list_checkpoints(whole.run_dir)
    assert checkpoint.Checkpoint(first).global_step == 256
    shutil.rmtree(Path(teacher).parent)
    resumed = train(resume_from=first, total_timesteps=512)
    assert whole.checkpoint is not None and resumed.checkpoint is not None
    assert_same_end(whole.checkpoint, resumed.checkpoint)
    assert metrics(whole.run_dir)[2:] == metrics(resumed.run_dir)


def finished(teacher: str, **options: Any) -> TrainResult:
    result = train(**with_teacher(teacher, **options))
    assert result.checkpoint is not None
    return result


def test_the_state_of_the_teacher_is_saved_and_zeroed_in_new_episodes(teacher: str) -> None:
    done = finished(teacher)
    state = checkpoint.read(done.checkpoint, "training_state.pt")
    assert state["teacher_state"].shape == (4, 8) and state["teacher_state"].any()
    for type_ in ("HiddenGoal", "AnotherWorld"):
        state["env_type"] = type_
        trainer = Trainer(load_config(None, with_teacher(teacher)))
        trainer.algorithm.set_state(
            lambda name: checkpoint.read(done.checkpoint, name), dict(state), new_episodes_seed=1
        )
        assert isinstance(trainer.algorithm, Distillation)
        assert trainer.algorithm.teacher.state.any() == (type_ == "HiddenGoal")
        trainer.close()


def test_only_what_can_be_resumed_has_the_teacher(teacher: str) -> None:
    for keeps in (True, False):
        done = finished(teacher, save_optimizer=keeps)
        assert checkpoint.Checkpoint(done.checkpoint).has("teacher.pt") == keeps


def test_a_student_can_be_a_teacher(teacher: str) -> None:
    done = finished(teacher)
    again = finished(str(done.run_dir), encoders={}, rnn_size=4)
    settings = checkpoint.Checkpoint(again.checkpoint).config.distill.teacher_settings
    assert settings["checkpoint"] == str(done.checkpoint) and settings["options"]["policy"]["rnn_size"] == 8


def test_a_teacher_of_another_env_is_noticed(teacher: str) -> None:
    notices = Trainer(load_config(None, with_teacher(teacher, env_kwargs={"blind": True}))).notices
    assert any("The teacher's env had other env_kwargs: blind." in notice for notice in notices)
    assert not any("teacher" in notice.lower() for notice in Trainer(load_config(None, with_teacher(teacher))).notices)


def test_a_resume_cannot_change_the_teacher(teacher: str, tmp_path: Path) -> None:
    done = finished(teacher)
    other = str(saved(tmp_path / "other", *straight()))
    with pytest.raises(UsageError, match="a resume cannot change teacher"):
        train(resume_from=done.run_dir, teacher=other, total_timesteps=512)


def test_a_new_run_with_saved_options_reads_its_teacher_again(teacher: str) -> None:
    done = finished(teacher)
    config = load_config(done.run_dir / "config.yaml")
    assert config.distill.teacher == teacher and config.distill.teacher_settings == {}
    with pytest.raises(UsageError, match="the teacher has no weights"):
        Trainer(checkpoint.Checkpoint(done.checkpoint).config).iterate()


@pytest.mark.parametrize("settings", [{"spec": {}}, {"spec": 3, "options": {}}, {"options": []}])
def test_damaged_settings_of_a_teacher_are_one_line(teacher: str, settings: dict[str, Any]) -> None:
    config = load_config(None, with_teacher(teacher))
    config.distill.teacher_settings = settings
    with pytest.raises(UsageError, match="teacher_settings do not describe a policy"):
        Trainer(config)


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"teacher": None}, "needs a teacher: give --teacher"),
        ({"teacher": "nowhere"}, "nowhere does not exist"),
        ({"teacher_share": [0.1, 0.2, 0.3]}, "teacher_share has 3 numbers"),
        ({"std_mode": "state"}, "std_mode is state"),
        ({"distribution": "beta"}, "distribution beta"),
        ({"lr_schedule": "adaptive"}, "distillation has no KL"),
        ({"env": "CartPole-v1", "encoders": {}}, r"needs continuous \(Box\) actions, but those of CartPole-v1"),
        ({"env": "InvertedPendulum-v5", "encoders": {}}, "cannot label this env: .* observation 'state' is missing"),
    ],
)
def test_what_cannot_be_distilled_is_one_line(teacher: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train(**with_teacher(teacher) | options)


def test_a_teacher_of_other_actions_is_refused(tmp_path: Path) -> None:
    policy, config = untrained()
    path = saved(tmp_path / "teacher", policy, config)
    wide = json.loads(json.dumps(policy.spec.to_dict()))
    wide["action"]["high"] = [9.0, 9.0]
    metadata = checkpoint.read_metadata(path) | {"spec": wide}
    kept = {key: metadata[key] for key in ("config", "spec", "iteration", "global_step", "lineage")}
    other = checkpoint.save(path.parent, name="b", iteration=2, files={"agent.pt": policy.state_dict()}, metadata=kept)
    with pytest.raises(UsageError, match=r"cannot label this env: .* its action is box .* the policy's box .*9\.0"):
        train(**with_teacher(str(other)))


def test_a_key_that_the_teacher_does_not_use_may_be_missing(tmp_path: Path) -> None:
    policy, config = untrained(encoders={"state": {"use": "none"}})
    policy.spec.obs["state"] = policy.spec.obs["view"].__class__((7,), "float32")  # its run's env had another one
    path = saved(tmp_path / "teacher", policy, config)
    assert train(**with_teacher(str(path), encoders={})).global_step == 256
