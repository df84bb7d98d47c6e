"""The local rollout source: owns the envs, steps them with the policy, and fills rollouts.

It is the only caller of `env.step` in training. Whoever trains asks it for rollouts, counts, episode statistics and
state, and never the envs.
"""

import logging
import math
from typing import Any

import torch
from torch import Generator, Tensor

from proxima.algo.adam import FlatParameters
from proxima.compiling import is_toolchain_failure, report_failure
from proxima.data.frames import newest
from proxima.data.generators import restore_generator
from proxima.data.rollout import Rollout, as_stored
from proxima.envs.action_hold import Hold
from proxima.envs.contract import ExactState, Step, VecEnv
from proxima.envs.gymnasium.snapshot import NotPlain
from proxima.errors import NonFiniteError, UsageError
from proxima.nets.policy import Policy
from proxima.training.actor import Actor, Record, Rows, compile_actor
from proxima.training.endings import EndingBuffer, Endings
from proxima.training.episode_statistics import EpisodeStatistics
from proxima.training.hold_schedule import HoldSchedule

log = logging.getLogger("proxima")


class Collector:
    """Steps the envs with the policy and fills the rollout in place.

    A NaN or an infinity is looked for once the rollout is whole: to look at every step would make a GPU wait.
    """

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
    ):
        """With the policy's parameters in `flat`, acting is compiled on its first use.

        The recurrent state is stored every `sequence_length` steps. Stacks of frames are stored whole where actions may
        be held: between two actions several frames pass. With `store_values`, log-probabilities and values are stored
        while acting.
        """
        self.env, self.num_steps = env, num_steps
        self.hold_schedule = hold_schedule
        holds_actions = hold_schedule is not None and hold_schedule.active
        self.set_progress(0.0)
        self.obstacle: str | None = None
        """Why a resume from `get_state` cannot be exact; None where it can, or where nobody asked."""
        self.generator = Generator(device).manual_seed(seed)
        self.episodes = EpisodeStatistics(env.episode_info)
        self.global_step = 0
        """Env steps, over all envs."""
        self.in_old_episodes = True
        """Whether the last `set_state` went on with the episodes of that state."""
        self.decisions = 0
        """Actions that were chosen: as many as env steps, unless they are held."""
        frames = {key: policy.spec.obs[key].frames for key in policy.keys}
        stacks = {key: count for key, count in frames.items() if count > 1 and not holds_actions}
        self._actor, self._flat = Actor(policy, env.device, stacks), flat
        self._record: Record | None = None
        self.no_toolchain = False
        """Whether compilation failed in a way that leaves no hope for any other."""
        self._now = env.reset(env_seed)
        """What the policy acts on next, in the env's own dtypes."""
        obs = as_stored({key: self._now[key].to(device) for key in policy.keys})
        action = policy.act(obs).action
        first_state = policy.first_state(env.num_envs)
        self._state: Rows = () if first_state is None else (first_state,)
        """The recurrent state `[N, S]`, if there is one: zero where an episode begins."""
        self._ending_buffer = None if env.device.type == "cpu" else EndingBuffer()
        try:
            self._noise = torch.zeros(num_steps, env.num_envs, policy.noise_size, device=device)
            self.rollout = Rollout(
                num_steps=num_steps,
                num_envs=env.num_envs,
                obs=obs,
                action=action,
                device=device,
                sequence_length=sequence_length,
                state_size=policy.state_size,
                stacks=stacks,
                store_values=store_values,
            )
        except (MemoryError, RuntimeError) as error:
            raise UsageError(
                f"a rollout of num_steps {num_steps} x num_envs {env.num_envs} does not fit into memory "
                f"({str(error).splitlines()[0]}): lower one of them."
            ) from None
        everyone = torch.arange(env.num_envs)
        self._check_obs(torch.full_like(everyone, -1), everyone, obs)
        # Views of every step, made once: to index costs as much as to copy.
        obs_rows = zip(*(self.rollout.obs[key].unbind() for key in self._actor.keys), strict=True)
        fields = (self._noise, self.rollout.action, self.rollout.reward)
        kept: list[Tensor | None] = [None] * num_steps
        if self.rollout.state is not None:
            kept[::sequence_length] = self.rollout.state.unbind()
        values = [x.unbind() for x in (self.rollout.log_prob, self.rollout.value) if x is not None]
        value_rows = list(zip(*values, strict=True)) or [()] * num_steps
        self._rows = list(zip(*(x.unbind() for x in fields), obs_rows, kept, value_rows, strict=False))

    def set_progress(self, progress: float) -> None:
        """Hold actions for as long as this share of the run asks for."""
        if self.hold_schedule is not None:
            self.env.hold = self.hold_schedule.at(progress)

    @property
    def hold(self) -> Hold:
        """For how long actions are held just now."""
        return self.env.hold

    def metrics(self, progress: float) -> dict[str, float]:
        """Episodes, restarted workers and the hold."""
        held = {} if self.hold_schedule is None else self.hold_schedule.metrics(progress, decisions=self.decisions)
        return {**self.episodes.metrics(), **self.env.counters(), **held}

    def text(self) -> str:
        """The envs and the hold in a few words, for the first line of a run."""
        held = "" if self.hold_schedule is None else self.hold_schedule.text()
        return f"{self.env.num_envs} envs ({type(self.env).__name__}), {held}"

    @property
    def physics_threads(self) -> int | None:
        """Native threads of the envs; None where they have none of their own."""
        return getattr(self.env, "num_threads", None)

    def close(self) -> None:
        """Free the envs. Calling it twice is harmless."""
        self.env.close()

    @property
    def compiles(self) -> bool:
        """Whether acting is, or is to be, compiled."""
        return self._flat is not None and self._record is not self._actor

    @torch.no_grad()
    def collect(self) -> Rollout:
        """`num_steps` decisions of every env."""
        rollout, keys, taken = self.rollout, self._actor.keys, 0
        rollout.clear()
        rollout.begin(self._now)
        self._noise.normal_(generator=self.generator)
        try:
            for t, (noise, action, reward, obs, kept, values) in enumerate(self._rows):
                if kept is not None:
                    kept.copy_(*self._state)
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
                taken += 1
        except Exception:
            self._check_finite(taken)  # a NaN on the way to an env is the better explanation
            raise
        for key, stored in rollout.obs.items():
            stored[-1] = newest(self._now[key], rollout.stacks.get(key, 1))
        for state in self._state:
            rollout.last_state = state.clone()
        self._check_finite(taken)
        if self._ending_buffer is not None and (ends := self._ending_buffer.take()) is not None:
            self._take_in(ends)
        self.decisions += rollout.size
        self.global_step += rollout.size if rollout.duration is None else int(rollout.duration.sum())
        return rollout

    def _make_record(self, seen: Rows, noise: Tensor, obs: Rows, action: Tensor, values: Rows) -> Record:
        """The actor, compiled if that is wanted and can be done."""
        self._record = self._actor
        if self._flat is not None:
            try:
                self._record = compile_actor(self._actor, self._flat, seen, noise, obs, action, self._state, values)
            except Exception as error:  # the compiler and the toolchain raise whatever they like
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
            self._take_in(Endings.of_step(t, step, seen, state))
        if state is not None:
            state.masked_fill_(step.ended.to(state.device)[:, None], 0.0)

    def _take_in(self, ends: Endings) -> None:
        success = None if ends.success is None else ends.success.tolist()
        info = {name: x.tolist() for name, x in ends.info.items()}
        self.episodes.add(ends.return_.tolist(), ends.length.tolist(), success, info)
        self._check_obs(ends.time, ends.env, ends.final_obs)
        if bool(ends.cut.any()):
            final_obs = {key: x[ends.cut] for key, x in ends.final_obs.items()}
            state = None if ends.state is None else ends.state[ends.cut.to(ends.state.device)]
            self.rollout.add_final(ends.time[ends.cut], ends.env[ends.cut], final_obs, state)

    def _put_duration(self, t: int, duration: Tensor) -> None:
        if self.rollout.duration is None:
            self.rollout.duration = torch.ones_like(self.rollout.reward, dtype=torch.long)
        self.rollout.duration[t] = duration

    def _check_finite(self, steps: int) -> None:
        """Of the first `steps` steps as they were stored: a number too large for float32 counts as infinite."""
        reward = self.rollout.reward[:steps]
        bad = [(int(t), int(env), f"a reward of {float(reward[t, env])}") for t, env in _non_finite(reward)[:1]]
        for key, x in self.rollout.obs.items():
            seen = x[: steps + 1]
            for t, env, *place in _non_finite(seen)[:1].tolist():
                bad.append((t - 1, env, f"an observation {key!r} with {float(seen[(t, env, *place)])}"))
        if bad:
            self._raise(*min(bad))

    def _check_obs(self, times: Tensor, envs: Tensor, obs: dict[str, Tensor]) -> None:
        for key, x in obs.items():
            for row, *place in _non_finite(x).tolist():
                what = f"an observation {key!r} with {float(x[(row, *place)])}"
                self._raise(int(times[row]), int(envs[row]), what)

    def _raise(self, t: int, env: int, what: str) -> None:
        duration, taken = self.rollout.duration, (t + 1) * self.env.num_envs
        if duration is None:
            where = f"step {self.global_step // self.env.num_envs + t + 1}"
        else:
            where, taken = f"decision {self.decisions // self.env.num_envs + t + 1}", int(duration[: t + 1].sum())
        raise NonFiniteError(
            f"env {env} gave {what} at global step {self.global_step + taken} ({where} of that env): check the env, or "
            "scale its output."
        )

    # State -----------------------------------------------------------------------------------------------------------

    def try_exactness(self) -> str | None:
        """Why a resume from `get_state` cannot be exact, tried on the envs; None where it can."""
        self.obstacle = self.env.why_inexact()
        return self.obstacle

    def get_state(self) -> dict[str, Any]:
        """The envs, the generator, counters, episode statistics, the next observation and the recurrent state."""
        can = isinstance(self.env, ExactState) and self.obstacle is None
        return {
            "collector": {
                "generator": self.generator.get_state(),
                "global_step": self.global_step,
                "decision_count": self.decisions,
                "episodes": self.episodes.get_state(),
                "obs": {key: x.clone() for key, x in self._now.items()},
                "recurrent_state": [state.clone() for state in self._state],
            },
            "env": self.env.get_state() if can else None,  # type: ignore[attr-defined]
            "env_type": type(self.env).__name__,
        }

    def set_state(self, state: dict[str, Any], *, new_episodes_seed: int) -> list[str]:
        """Put back what `get_state` gave; where the envs cannot be, start new episodes with this seed.

        Returns what is not as it was, in words.
        """
        ours, different = state["collector"], []
        if not restore_generator(self.generator, ours["generator"], otherwise=ours["global_step"]):
            different.append("the generators of another device do not fit this one")
        self.global_step, self.decisions = ours["global_step"], ours["decision_count"]
        self.episodes.set_state(ours["episodes"])
        self.in_old_episodes = self._restore_envs(state)
        self._now = ours["obs"] if self.in_old_episodes else self.env.reset(new_episodes_seed)
        for current, saved in zip(self._state, ours.get("recurrent_state", ours.get("memory")), strict=True):
            current.copy_(saved if self.in_old_episodes else torch.zeros_like(saved))
        return different

    def _restore_envs(self, state: dict[str, Any]) -> bool:
        fits = state["env"] is not None and _share_states(type(self.env).__name__, state["env_type"])
        if not fits or not isinstance(self.env, ExactState):
            return False
        try:
            self.env.set_state(state["env"])
        except NotPlain as error:
            log.warning("The envs' state cannot be put back: %s.", error)
            return False
        return True


def _share_states(one: str, two: str) -> bool:
    """Whether a state of one back end fits another: sync and async have the same envs, batch has its own."""
    gymnasium_envs = {"SyncVecEnv", "AsyncVecEnv"}
    return one == two or {one, two} <= gymnasium_envs


def _non_finite(x: Tensor) -> Tensor:
    """Places of NaNs and infinities `[K, axes]`. One sum tells in nearly every case that there are none."""
    if not x.is_floating_point() or math.isfinite(float(x.sum())):
        return x.new_zeros((0, x.ndim), dtype=torch.long)
    return (~torch.isfinite(x)).nonzero()
