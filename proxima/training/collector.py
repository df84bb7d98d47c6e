"""The rollout source with envs in this process, and the only caller of `env.step` in training."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxima.algo.adam import FlatParameters
from proxima.compiling import is_toolchain_failure, report_failure
from proxima.cuda_graphs import Tape
from proxima.data.frames import newest
from proxima.data.rollout import as_stored
from proxima.envs.contract import ExactState, Step, VecEnv
from proxima.envs.episodes import EpisodicVecEnv
from proxima.envs.gymnasium.snapshot import NotPlain
from proxima.nets.policy import Policy
from proxima.training.actor import Actor, Record, Rows, compile_actor
from proxima.training.checks import RolloutChecks
from proxima.training.endings import EndingBuffer, Endings
from proxima.training.hold_schedule import HoldSchedule
from proxima.training.partition import one_state
from proxima.training.source import EnvState, Gather, Share, Source, Table, log


class Collector(Source):
    """Steps the envs with the policy and fills the rollout in place."""

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        *,
        num_steps: int,
        device: torch.device,
        env_seed: int,
        seed: int,
        hold_schedule: HoldSchedule | None = None,
        flat: FlatParameters | None = None,
        sequence_length: int = 1,
        store_values: bool = False,
        share: Share | None = None,
        gather: Gather | None = None,
    ):
        """Given the policy's parameters in `flat`, acting is compiled on first use.

        `sequence_length` and `store_values`: see `Rollout`. `share`: which of all envs these are.
        """
        share = share or Share(0, env.num_envs, env.num_envs)
        super().__init__(env, policy, seed=seed, device=device, share=share, hold_schedule=hold_schedule, gather=gather)
        env.become_part(share.first, share.total)
        self._actor, self._flat = Actor(policy, env.device, self.stacks), flat
        self._record: Record | None = None
        self._now = env.reset(env_seed + share.first)
        """The observations to act on next, in the env's own dtypes."""
        first_state = policy.first_state(env.num_envs)
        self._state: Rows = () if first_state is None else (first_state,)
        """The recurrent state `[N, S]`, zero where an episode begins; empty without recurrence."""
        self._ending_buffer = None if env.device.type == "cpu" else EndingBuffer(num_steps)
        self._ended: list[Table] = []
        self._none_ended = np.empty((0, 2 + len(self.episodes.names)))
        self._tape: Tape | None = None
        self._rehearsed = False
        self.rollout = self.make_rollout(
            self._now, num_steps=num_steps, device=device, sequence_length=sequence_length, store_values=store_values
        )
        self.noise = torch.zeros(num_steps, env.num_envs, policy.noise_size, device=device)
        """`[T, n, A]`, of the rollout that is collected."""
        self._checks = RolloutChecks(self)
        everyone = torch.arange(env.num_envs)
        first = as_stored({key: self._now[key].to(device) for key in policy.keys})
        self._checks.check_obs(torch.full_like(everyone, -1), everyone, first)
        # Views of every step, made once: indexing costs as much as copying.
        obs_rows = zip(*(self.rollout.obs[key].unbind() for key in self._actor.keys), strict=True)
        fields = (self.noise, self.rollout.action, self.rollout.reward)
        state_rows: list[Tensor | None] = [None] * num_steps
        if self.rollout.state is not None:
            state_rows[::sequence_length] = self.rollout.state.unbind()
        values = [x.unbind() for x in (self.rollout.log_prob, self.rollout.value) if x is not None]
        value_rows = list(zip(*values, strict=True)) or [()] * num_steps
        self._rows = list(zip(*(x.unbind() for x in fields), obs_rows, state_rows, value_rows, strict=False))

    @property
    def compiled(self) -> bool:  # type: ignore[override]
        """Whether acting is, or will be, compiled."""
        return self._flat is not None and self._record is not self._actor

    def _collect(self) -> Table:
        self.draw_noise(self.noise)
        return self.fill()

    @torch.no_grad()
    def fill(self) -> Table:
        """Fill the rollout with the actions that `noise` chooses; returns the episodes that ended."""
        rollout = self.rollout
        rollout.clear()
        rollout.begin(self._now)
        self._num_taken = 0
        self._ended = []
        try:
            self._run_steps()
        except Exception:
            self._checks.check(self._num_taken)  # a NaN explains the env's error better
            raise
        self._checks.check(len(self._rows))
        if self._ending_buffer is not None and (ends := self._ending_buffer.take(rollout.episode_ends)) is not None:
            self._add_endings(ends)
        return np.concatenate(self._ended) if self._ended else self._none_ended

    def _run_steps(self) -> None:
        """Fill the rollout. On a GPU the second rollout is recorded, and from then on replayed."""
        env = self.env
        if not isinstance(env, EpisodicVecEnv) or (tensors := env.tensors()) is None or not self._rehearsed:
            self._take_steps()
            self._rehearsed, self._tape = True, None  # a recording would go on from the state before
            return
        if self._tape is None:
            self._tape = self._record_steps(env, tensors)
        self._tape.replay()

    def _record_steps(self, env: EpisodicVecEnv, tensors: dict[str, Tensor]) -> Tape:
        """Record a rollout whose last state is put where its first state was read from."""
        self._now = {key: x.clone() for key, x in self._now.items()}
        now, tape = dict(self._now), Tape()
        # Copies, because several names may share one tensor.
        tensors = {name: x.clone() for name, x in tensors.items()}
        env.set_tensors(tensors)
        with tape.record():
            self._take_steps()
            after = env.tensors()
            assert after is not None
            for name, x in (tensors | now).items():
                x.copy_(after[name] if name in tensors else self._now[name])
        env.set_tensors(tensors)
        self._now = now
        return tape

    def _take_steps(self) -> None:
        rollout, keys = self.rollout, self._actor.keys
        for t, (noise, action, reward, obs, state_row, values) in enumerate(self._rows):
            if state_row is not None:
                state_row.copy_(*self._state)
            seen = tuple([self._now[key] for key in keys])
            record = self._record or self._make_record(seen, noise, obs, action, values)
            step = self.env.step(record(seen, noise, obs, action, self._state, values))
            self._now = step.obs
            reward.copy_(step.reward)
            if step.duration is not None:
                self._put_duration(t, step.duration)
            if step.aux:
                rollout.put_aux(t, step.aux)
            if step.final_obs is not None:
                self._end_episodes(t, step)
            if step.skipped is not None:
                self._skip(t, step.skipped)
            self._num_taken = t + 1
        for key, stored in rollout.obs.items():
            stored[-1] = newest(self._now[key], rollout.stacks.get(key, 1))
        if rollout.last_state is not None:
            rollout.last_state.copy_(self._state[0])

    def _make_record(self, seen: Rows, noise: Tensor, obs: Rows, action: Tensor, values: Rows) -> Record:
        """The actor, compiled if possible."""
        self._record = self._actor
        if self._flat is not None:
            try:
                self._record = compile_actor(self._actor, self._flat, seen, noise, obs, action, self._state, values)
            except Exception as error:  # the compiler and the toolchain raise all kinds of exceptions
                report_failure("policy", error)
                self.no_toolchain = is_toolchain_failure(error)
        return self._record

    def _end_episodes(self, t: int, step: Step) -> None:
        self.rollout.terminated[t] = step.terminated
        self.rollout.truncated[t] = step.truncated
        state = self._state[0] if self._state else None
        assert step.final_obs is not None
        seen = {key: step.final_obs[key] for key in self._actor.keys}
        if self._ending_buffer is not None:
            self._ending_buffer.add(t, step, seen, state)
        else:
            self._add_endings(Endings.of_step(t, step, seen, state))
        if state is not None:
            state.masked_fill_(step.ended.to(state.device)[:, None], 0.0)

    def _skip(self, t: int, skipped: Tensor) -> None:
        """Rows in which an env only started an episode; what the policy made of the final observation is forgotten."""
        self.rollout.skip(t, skipped)
        for state in self._state:
            state.masked_fill_(skipped.to(state.device)[:, None], 0.0)

    def _add_endings(self, ends: Endings) -> None:
        self._ended.append(ends.table(self.episodes.names, self.share.first))
        self._checks.check_obs(ends.time, ends.env, ends.final_obs)
        rows = ends.truncated.nonzero()[:, 0]
        if len(rows):
            final_obs = {key: x[rows] for key, x in ends.final_obs.items()}
            state = None if ends.state is None else ends.state[rows.to(ends.state.device)]
            self.rollout.add_final(ends.time[rows], ends.env[rows], final_obs, state)

    def _put_duration(self, t: int, duration: Tensor) -> None:
        if self.rollout.duration is None:
            self.rollout.duration = torch.ones_like(self.rollout.reward, dtype=torch.long)
        self.rollout.duration[t] = duration

    # What the trainer asks -------------------------------------------------------------------------------------------

    def set_weights(self, name: str, weights: dict[str, Tensor]) -> None:
        """Hand the weights of a network that is part of the env to the envs."""
        self.env.set_weights(name, weights)

    def call_envs(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the envs; see `VecEnv.call`."""
        self._tape = None  # a recording has the numbers from before
        return self.env.call(method, *args, **kwargs)

    # State -----------------------------------------------------------------------------------------------------------

    def get_envs(self) -> EnvState:
        """The state of the envs, copied."""
        can = isinstance(self.env, ExactState) and self.obstacle is None
        return EnvState(
            {key: x.clone() for key, x in self._now.items()},
            [state.clone() for state in self._state],
            self.env.get_state() if can else None,  # type: ignore[attr-defined]
        )

    def set_envs(self, state: EnvState) -> bool:
        """Continue from a state; False if it does not fit."""
        self._tape = None
        if not isinstance(self.env, ExactState):
            return False
        try:
            self.env.set_state(one_state(state.env, self.env))
        except NotPlain as error:
            log.warning("The envs' state cannot be restored: %s.", error)
            return False
        self._now = {key: x.to(self.env.device) for key, x in state.obs.items()}
        for current, saved in zip(self._state, state.recurrent, strict=True):
            current.copy_(saved)
        return True

    def reset_envs(self, seed: int) -> None:
        """Start new episodes, and with them a new recurrent state."""
        self._tape = None
        self._now = self.env.reset(seed)
        for state in self._state:
            state.zero_()
