"""Distillation's iteration: the student acts, the teacher labels, the student learns by regression."""

from typing import Any, ClassVar

from proxima.algo.distill import DistillLearner
from proxima.config import config_from_dict
from proxima.errors import UsageError
from proxima.evaluation.restored import Restored, check_weights, restore_policy
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.policy import Policy
from proxima.nets.spec import Spec
from proxima.nets.teacher import Behaviour, Teacher
from proxima.training.algorithm import Algorithm, Files, Read
from proxima.training.saving import copies
from proxima.training.seeding import stream_seed
from proxima.training.setup import Parts, build_policy

TEACHER = "teacher.pt"


class Distillation(Algorithm):
    """Collect a rollout, label it, update, then update the student's observation statistics.

    Checkpoints that can be resumed contain the teacher's weights (`teacher.pt`) and recurrent state, and the config
    describes its networks: a resume does not need the teacher's own checkpoint.
    """

    phases: ClassVar[tuple[str, ...]] = ("collect", "label", "update")

    def __init__(self, parts: Parts):
        super().__init__(parts)
        config, action = parts.config, parts.spec.action
        assert isinstance(self.policy, ActorCritic)
        if action.kind != "box":
            raise UsageError(
                f"distillation needs continuous (Box) actions, but those of {config.env.env} are {action.kind}."
            )
        self._can_label = not config.distill.teacher_settings
        """Whether the teacher has its weights: from its own checkpoint, or from the one of this run."""
        teacher = _load(parts) if self._can_label else _rebuild(parts)
        _check_fit(teacher, parts)
        self.teacher = Teacher(teacher.to(parts.device), parts.share.count)
        self.distill = DistillLearner(
            self.policy,
            config,
            device=parts.device,
            seed=stream_seed(config.run.seed, "minibatches"),
            num_iterations=max(1, round(parts.num_policy_steps / config.rollout_size)),
            peers=parts.ranks.peers(parts.share.total),
        )
        self.learners = {"learner": self.distill}
        self._share = config.distill.teacher_share[0]
        self.behaviour = Behaviour(self.policy, teacher, mixes=any(config.distill.teacher_share))
        self.source = self.make_source(
            config.ppo.num_steps, behaviour=self.behaviour, sequence_length=config.sequence_length
        )

    def text(self) -> str:
        """The teacher, and what each of them sees."""
        settings = self.config.distill.teacher_settings
        return (
            f"Teacher {settings['checkpoint']}: sees {', '.join(self.teacher.policy.actor_keys)}; the student sees "
            f"{', '.join(self.policy.actor_keys)}."
        )

    def set_progress(self, progress: float) -> None:
        """Also the share of the teacher's actions."""
        super().set_progress(progress)
        first, last = self.config.distill.teacher_share[0], self.config.distill.teacher_share[-1]
        self._share = first + (last - first) * progress
        self.behaviour.share.fill_(self._share)

    def iterate(self) -> dict[str, float]:
        """One rollout, its labels, and the update."""
        if not self._can_label:
            raise UsageError("the teacher has no weights: teacher_settings are for a resume, leave the option out.")
        rollout = self.timed("collect", self.source.collect)
        for rows in self.source.restarted:
            self.teacher.state[rows] = 0.0
        label = self.timed("label", self.teacher.label, rollout)
        lesson = self.timed("label", self.distill.prepare, rollout, label)
        metrics = self.timed("update", self.distill.update, lesson)
        self.timed("update", self.policy.normalizer.update, rollout.step_obs(), self.distill.peers.sum)
        return metrics | {"teacher_share": self._share}

    def get_state(self) -> tuple[Files, dict[str, Any]]:
        """With the teacher, whose weights are copied only when they are written: they never change."""
        files, state = super().get_state()
        files[TEACHER] = lambda: copies(self.teacher.policy.state_dict())
        return files, state | {"teacher_state": self.teacher.state.clone()}

    def set_state(self, read: Read, state: dict[str, Any], *, new_episodes_seed: int) -> list[str]:
        """With the teacher; in new episodes its recurrent state begins at zero."""
        different = super().set_state(read, state, new_episodes_seed=new_episodes_seed)
        weights, policy = read(TEACHER), self.teacher.policy
        if not isinstance(weights, dict):
            raise ValueError(f"it has no {TEACHER}")
        check_weights(weights, policy.state_dict(), file_name=TEACHER)
        policy.load_state_dict(weights)
        self._can_label = True
        self.teacher.state.copy_(state["teacher_state"])
        if not self.source.in_old_episodes:
            self.teacher.state.zero_()
        return different


def _load(parts: Parts) -> Policy:
    """The teacher of a new run; writes to the config what a resume builds it from."""
    distill = parts.config.distill
    assert distill.teacher is not None
    saved = restore_policy(distill.teacher)
    distill.teacher_settings = _settings(saved)
    theirs, ours = saved.config.env, parts.config.env
    names = sorted({*theirs.env_kwargs, *ours.env_kwargs})
    different = [name for name in names if theirs.env_kwargs.get(name) != ours.env_kwargs.get(name)]
    if theirs.env != ours.env:
        parts.notices.append(f"The teacher was trained on {theirs.env}, the student learns on {ours.env}.")
    elif different:
        parts.notices.append(f"The teacher's env had other env_kwargs: {', '.join(different)}.")
    return saved.policy


def _settings(saved: Restored) -> dict[str, Any]:
    """Where the teacher comes from, its spaces, and the options of its networks; plain data."""
    options = saved.config.to_dict()
    kept = {name: options[name] for name in ("policy", "normalize")}
    kept["algorithm"] = {"algorithm": saved.config.algorithm.algorithm}
    return {"checkpoint": str(saved.checkpoint.path), "spec": saved.policy.spec.to_dict(), "options": kept}


def _rebuild(parts: Parts) -> Policy:
    """The teacher of a run that is resumed, without its weights."""
    settings = parts.config.distill.teacher_settings
    try:
        spec = Spec.from_dict(settings["spec"])
        return build_policy(spec, config_from_dict(settings["options"], source="teacher_settings"), parts.device)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"teacher_settings do not describe a policy ({type(error).__name__}: {error}): the checkpoint is damaged, "
            "use an older one."
        ) from None


def _check_fit(teacher: Policy, parts: Parts) -> None:
    """Refuse a teacher of another action space, or one that sees what the env does not show."""
    try:
        teacher.spec.check_fit(parts.spec, parts.config.env.env, keys=teacher.actor_keys)
    except UsageError as error:
        raise UsageError(
            f"teacher {parts.config.distill.teacher} cannot label this env: {error} Use the teacher's env, with more "
            "observation keys if need be."
        ) from None
