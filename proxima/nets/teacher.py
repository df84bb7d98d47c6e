"""Policies of distillation: the teacher, which labels rollouts, and the behaviour, which collects them."""

import torch
from torch import Tensor, nn

from proxima.algo.distributions import Distribution
from proxima.data.frames import gather_stacks
from proxima.data.rollout import Rollout
from proxima.nets.policy import Acted, Policy
from proxima.nets.trunk import Obs


class Teacher(nn.Module):
    """A frozen policy that labels every step of consecutive rollouts with its most likely action."""

    state: Tensor
    """`[N, S]`, its recurrent state after the last rollout; zero where an episode begins."""

    def __init__(self, policy: Policy, num_envs: int):
        super().__init__()
        self.policy = policy.eval().requires_grad_(False)
        first = policy.return_scale.new_zeros(num_envs, policy.actor_state_size)
        self.register_buffer("state", first, persistent=False)

    @torch.no_grad()
    def label(self, rollout: Rollout) -> Tensor:
        """Actions `[T, N, A]` in the env's units, step by step as the teacher would act in the student's place."""
        keys, ended = self.policy.actor_keys, rollout.ended
        stacks = {key: rows.unflatten(0, ended.shape) for key, rows in rollout.stack_rows().items() if key in keys}
        labels = []
        for t in range(rollout.num_steps):
            obs = {key: rollout.obs[key][t] for key in keys if key not in stacks}
            obs |= {key: gather_stacks(rollout.frames[key].flatten(0, 1), rows[t]) for key, rows in stacks.items()}
            acted = self.policy.act(obs, None, self.state if self.policy.actor_state_size else None)
            labels.append(acted.env_action)
            if acted.state is not None:
                self.state.copy_(acted.state.masked_fill(ended[t][:, None], 0.0))
        return torch.stack(labels)


class Behaviour(Policy):
    """Acts as the student, in each step with probability `share` as the teacher; sees the keys of both.

    Only with `mixes` does it ask the teacher; the state `[N, S]` is then the student's followed by the teacher's.
    """

    share: Tensor
    """[], to be changed in place."""
    values_are_cheap = False

    def __init__(self, student: Policy, teacher: Policy, *, mixes: bool):
        nn.Module.__init__(self)  # no normaliser of its own
        self.student, self.teacher, self.mixes = student, teacher, mixes
        self.spec, self.normalizer, self.image_keys = student.spec, student.normalizer, student.image_keys
        self.keys = list(dict.fromkeys([*student.keys, *teacher.actor_keys]))
        self.actor_keys = self.keys
        self.noise_size = student.noise_size + mixes
        self.state_size = student.state_size + (teacher.actor_state_size if mixes else 0)
        self.actor_state_size = self.state_size
        self.register_buffer("return_scale", student.return_scale, persistent=False)
        self.register_buffer("share", student.return_scale.new_zeros(()), persistent=False)

    @torch.no_grad()
    def act(
        self, obs: Obs, noise: Tensor | None = None, state: Tensor | None = None, *, with_value: bool = False
    ) -> Acted:
        """Raw action, state and value are the student's; the env's action may be the teacher's, if noise is given."""
        if not self.mixes:
            return self.student.act(obs, noise, state, with_value=with_value)
        own, others = self._split(state)
        acted = self.student.act(obs, None if noise is None else noise[:, :-1], own, with_value=with_value)
        taught = self.teacher.act(obs, None, others)
        after = [x for x in (acted.state, taught.state) if x is not None]
        acted = acted._replace(state=torch.cat(after, -1) if after else None)
        if noise is None:
            return acted
        takes = torch.special.ndtr(noise[:, -1:]) < self.share  # [N, 1]
        return acted._replace(env_action=torch.where(takes, taught.env_action, acted.env_action))

    def forward(
        self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[Distribution, Tensor]:
        """The student's."""
        distribution, value = self.student(obs, self._split(state)[0], start)
        return distribution, value

    def value(self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """The student's."""
        return self.student.value(obs, self._split(state)[0], start)

    def to_env(self, action: Tensor) -> Tensor:
        """Raw actions of the student in the env's units and within its bounds."""
        return self.student.to_env(action)

    def _split(self, state: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The student's and the teacher's columns; None for one without recurrence."""
        if state is None:
            return None, None
        own, others = state.tensor_split([self.student.state_size], -1)
        return own if self.student.state_size else None, others if others.shape[-1] else None
