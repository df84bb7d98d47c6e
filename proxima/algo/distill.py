"""Distillation: regression of a student's mean action on a teacher's, through time (Agarwal et al. 2022).

The student has acted and the teacher labels what it saw (DAgger, Ross et al. 2011); only the newest rollout is kept.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from proxima.algo.extra_loss import ExtraLoss, example_sequence
from proxima.algo.learner import Learner, Weights
from proxima.algo.peers import Peers
from proxima.config import Config
from proxima.data.batch import Inputs, SequenceLayout, Tensors
from proxima.data.rollout import Rollout

if TYPE_CHECKING:
    from proxima.nets.actor_critic import ActorCritic


class Lesson(NamedTuple):
    """A labelled rollout."""

    inputs: Inputs
    label: Tensor  # [T * N, A], scaled: -1..1 is the env's range, if it has one


class LessonMinibatch(NamedTuple):
    """`B` sequences of a lesson, time-major, `[L * B, ...]`."""

    obs: Tensors  # normalised
    state: Tensor | None  # [B, S], the recurrent state before the first step
    start: Tensor | None  # [L * B] bool: an episode begins
    label: Tensor  # [L * B, A]
    weight: Tensor | None = None  # 1 for a step and 0 for padding; None without padding


class DistillLearner(Learner):
    """Trains the layers that the mean action depends on; the std and the critic's own layers stay as they are."""

    def __init__(
        self,
        policy: "ActorCritic",
        config: Config,
        *,
        device: torch.device,
        seed: int,
        num_iterations: int,
        peers: Peers | None = None,
    ):
        """`peers`: the ranks, of which this is one."""
        self.policy, peers = policy, peers or Peers((config.env.num_envs,))
        policy.freeze_all_but_mean()
        self.joint_errors = tuple(f"action_error_{i}" for i in range(policy.spec.action.sizes[0]))
        self.loss_terms = ("loss", *self.joint_errors)
        self.layout = SequenceLayout(config.ppo.num_steps, peers.own_envs, config.sequence_length)
        if (name := config.algorithm.extra_loss) is not None:
            self.extra = ExtraLoss(name, policy, self._example())
            self.loss_terms = (*self.loss_terms, *self.extra.names)
        super().__init__(
            policy,
            config,
            device=device,
            seed=seed,
            num_updates=num_iterations * config.ppo.update_epochs * config.num_minibatches,
            peers=peers,
            gather_outside="always" if policy.image_keys else "never",
            build_apart=config.sequence_length > 1,
        )

    @torch.no_grad()
    def prepare(self, rollout: Rollout, label: Tensor) -> Lesson:
        """Normalise the observations, and scale the labels `[T, N, A]`, which are in the env's units.

        Of stored states `[C, N, S]`, the first columns are the student's.
        """
        policy, seen = self.policy, rollout.step_obs()
        obs = policy.normalizer({key: seen[key] for key in policy.keys})
        obs |= {key: x for key, x in rollout.frames.items() if key in obs}
        state = None
        if policy.state_size:
            assert rollout.state is not None
            state = rollout.state[..., : policy.state_size]
        return Lesson(Inputs.of(rollout, obs, state), policy.action_head.from_env(label).flatten(0, 1))

    def update(self, lesson: Lesson) -> dict[str, float]:
        """All epochs over the lesson. Action errors are those of the first epoch, in which every sample is new."""
        epochs = []
        for _ in range(self.config.ppo.update_epochs):
            metrics = self.flat.vector.new_zeros(len(self.step_metrics))
            for order in self.minibatches(self.layout):
                metrics = metrics + self.run_epoch(lesson, order) / self.config.num_updates
            epochs.append(metrics)
        host = [dict(zip(self.step_metrics, row, strict=True)) for row in self.to_host(torch.stack(epochs))]
        self.check_finite({f"epoch {number} of the update": row for number, row in enumerate(host, start=1)})
        errors = {name: host[0][name] for name in self.joint_errors}
        return {
            "distill_loss": sum(row["loss"] for row in host) / len(host),
            "gradient_norm": sum(row["gradient_norm"] for row in host) / len(host),
            "learning_rate": float(self.learning_rate),
            "action_error": sum(errors.values()) / len(errors),
            **errors,
            **{name: sum(row[name] for row in host) / len(host) for name in (self.extra.names if self.extra else ())},
        }

    # The minibatch step ----------------------------------------------------------------------------------------------

    def gather(self, data: Lesson, index: Tensor) -> LessonMinibatch:
        """The sequences `index`."""
        label = data.label.index_select(0, self.layout.rows(index))
        return LessonMinibatch(*data.inputs.gather(self.layout, index), label, self.layout.weight(index))

    def count(self, minibatch: LessonMinibatch) -> Tensor | int:
        """Number of steps without padding."""
        return len(minibatch.label) if minibatch.weight is None else minibatch.weight.sum()

    def loss(self, weights: Weights, minibatch: LessonMinibatch) -> tuple[Tensor, Tensor]:
        """Mean over steps and joints; and the absolute error of every joint, in the env's units."""
        distribution, value = self.apply(weights, minibatch.obs, minibatch.state, minibatch.start)
        head, weight = self.policy.action_head, minibatch.weight
        action = head.scaled(distribution.mode())
        if self.config.distill.distill_loss == "huber":
            each = F.huber_loss(action, minibatch.label, reduction="none")
        else:
            each = (action - minibatch.label).square()
        error = (action - minibatch.label).abs() * head.bounds[1]  # [L * B, A]

        def mean(x: Tensor) -> Tensor:
            return x.mean(0) if weight is None else (x * weight[:, None]).sum(0) / weight.sum()

        loss = fit = mean(each).mean()
        own: list[Tensor] = []
        if self.extra is not None:
            added, own = self.extra(minibatch, distribution, value)
            loss = fit + added
        return loss, torch.cat((fit[None], mean(error), *(x[None] for x in own))).detach()

    @torch.no_grad()
    def _example(self) -> LessonMinibatch:
        """A made-up minibatch of one sequence."""
        sequence, distribution, value = example_sequence(self.policy, self.layout.length)
        weight = self.layout.weight(torch.zeros(1, dtype=torch.long, device=value.device))
        return LessonMinibatch(*sequence, distribution.mode(), weight)
