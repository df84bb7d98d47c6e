"""The rollout source: steps the envs with the policy and fills rollouts. The only caller of `env.step` in training."""

import logging
import math
from typing import Any

import torch
from torch import Generator, Tensor

from proxima.algo.adam import FlatParameters
from proxima.algo.learner import restore_generator
from proxima.compiling import is_toolchain_failure, report_failure
from proxima.cuda_graphs import Tape
from proxima.data.frames import newest
from proxima.data.rollout import Rollout, as_stored
from proxima.envs.action_hold import Hold
from proxima.envs.contract import ExactState, Step, VecEnv
from proxima.envs.episodes import EpisodicVecEnv
from proxima.envs.gymnasium.snapshot import NotPlain
from proxima.errors import EnvFailure, NonFiniteError, ProximaError, UsageError
from proxima.masks import ACTION_MASK
from proxima.nets.policy import Policy
from proxima.training.actor import Actor, Record, Rows, compile_actor
from proxima.training.endings import EndingBuffer, Endings
from proxima.training.episode_statistics import EpisodeStatistics
from proxima.training.hold_schedule import HoldSchedule

log = logging.getLogger("proxima")


class Collector:
    """Steps the envs with the policy and fills the rollout in place.

    Rewards and observations are checked for NaN and infinity once per rollout: in every step a GPU would have to wait.
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
        """Given the policy's parameters in `flat`, acting is compiled on first use.

        With a `hold_schedule` that is active, frame stacks are stored completely, because several frames pass between
        two actions.
        `sequence_length` and `store_values`: see `Rollout`.
        """
        self.env, self.hold_schedule = env, hold_schedule
        holds_actions = hold_schedule is not None and hold_schedule.active
        self.set_progress(0.0)
        self.obstacle: str | None = None
        """Why a resume from `get_state` cannot be exact, if that is known: the envs' state is then not saved."""
        self.generator = Generator(device).manual_seed(seed)
        self.episodes = EpisodeStatistics(env.episode_info, env.num_envs)
        self.global_step = 0
        """Env steps, over all envs."""
        self.in_old_episodes = True
        """Whether the last `set_state` could continue the saved episodes."""
        self.policy_steps = 0
        """Actions chosen, over all envs: the same as env steps, unless actions are held."""
        frames = {key: policy.spec.obs[key].frames for key in policy.keys}
        stacks = {key: count for key, count in frames.items() if count > 1 and not holds_actions}
        self._actor, self._flat = Actor(policy, env.device, stacks), flat
        self._record: Record | None = None
        self.no_toolchain = False
        """Whether compilation failed because no compiler works here."""
        self._now = env.reset(env_seed)
        """The observations to act on next, in the env's own dtypes."""
        obs = as_stored({key: self._now[key].to(device) for key in policy.keys})
        action = policy.act(obs).action
        first_state = policy.first_state(env.num_envs)
        self._state: Rows = () if first_state is None else (first_state,)
        """The recurrent state `[N, S]`, zero where an episode begins; empty without recurrence."""
        self._ending_buffer = None if env.device.type == "cpu" else EndingBuffer(num_steps)
        self._unseen = set(env.log_info)
        """Keys of `log_info` that no `info` has had yet; empty once that was said."""
        self._tape: Tape | None = None
        self._rehearsed = False
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
                skips=env.skips,
            )
        except (MemoryError, RuntimeError) as error:
            raise UsageError(
                f"a rollout of num_steps {num_steps} x num_envs {env.num_envs} does not fit into memory "
                f"({str(error).splitlines()[0]}): lower one of them."
            ) from None
        everyone = torch.arange(env.num_envs)
        self._check_obs(torch.full_like(everyone, -1), everyone, obs)
        # Views of every step, made once: indexing costs as much as copying.
        obs_rows = zip(*(self.rollout.obs[key].unbind() for key in self._actor.keys), strict=True)
        fields = (self._noise, self.rollout.action, self.rollout.reward)
        state_rows: list[Tensor | None] = [None] * num_steps
        if self.rollout.state is not None:
            state_rows[::sequence_length] = self.rollout.state.unbind()
        values = [x.unbind() for x in (self.rollout.log_prob, self.rollout.value) if x is not None]
        value_rows = list(zip(*values, strict=True)) or [()] * num_steps
        self._rows = list(zip(*(x.unbind() for x in fields), obs_rows, state_rows, value_rows, strict=False))

    @property
    def compiled(self) -> bool:
        """Whether acting is, or will be, compiled."""
        return self._flat is not None and self._record is not self._actor

    @torch.no_grad()
    def collect(self) -> Rollout:
        """`num_steps` policy steps of every env."""
        rollout = self.rollout
        rollout.clear()
        rollout.begin(self._now)
        self._noise.normal_(generator=self.generator)
        self._num_taken = 0
        try:
            self._run_steps()
        except Exception:
            self._check_finite(self._num_taken)  # a NaN explains the env's error better
            raise
        self._check_finite(len(self._rows))
        if self._ending_buffer is not None and (ends := self._ending_buffer.take(rollout.episode_ends)) is not None:
            self._add_endings(ends)
        self.policy_steps += rollout.size
        self.global_step += rollout.size if rollout.duration is None else int(rollout.duration.sum())
        if rollout.skipped is not None:
            self.global_step -= int(rollout.skipped.sum())
        return rollout

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
        success = None if ends.success is None else ends.success.tolist()
        info = {name: x.tolist() for name, x in ends.info.items()}
        self.episodes.add(ends.return_.tolist(), ends.length.tolist(), success, info)
        self._check_obs(ends.time, ends.env, ends.final_obs)
        rows = ends.truncated.nonzero()[:, 0]
        if len(rows):
            final_obs = {key: x[rows] for key, x in ends.final_obs.items()}
            state = None if ends.state is None else ends.state[rows.to(ends.state.device)]
            self.rollout.add_final(ends.time[rows], ends.env[rows], final_obs, state)

    def _put_duration(self, t: int, duration: Tensor) -> None:
        if self.rollout.duration is None:
            self.rollout.duration = torch.ones_like(self.rollout.reward, dtype=torch.long)
        self.rollout.duration[t] = duration

    def _check_finite(self, steps: int) -> None:
        """Check the first `steps` steps as stored: a number too large for float32 counts as infinite."""
        reward, stuck = self.rollout.reward[:steps], self._stuck(steps)
        if _are_finite([reward, stuck, *(x[: steps + 1] for x in self.rollout.obs.values())]):
            return
        for t, env in _non_finite(stuck)[:1].tolist():
            what, advice = f"an {ACTION_MASK} that allows no action", "at least one must be valid until an episode ends"
            self._raise(t - 1, env, what, advice, EnvFailure)
        bad = [(int(t), int(env), f"a reward of {float(reward[t, env])}") for t, env in _non_finite(reward)[:1]]
        for key, x in self.rollout.obs.items():
            seen = x[: steps + 1]
            for t, env, *place in _non_finite(seen)[:1].tolist():
                bad.append((t - 1, env, f"an observation {key!r} with {float(seen[(t, env, *place)])}"))
        if bad:
            self._raise(*min(bad))

    def _stuck(self, steps: int) -> Tensor:
        """`[steps + 1, N]`, infinite where the mask allows no choice in one of the action's columns."""
        spec = self._actor.policy.spec
        if not spec.has_masks:
            return self.rollout.reward[:0]
        columns = self.rollout.obs[ACTION_MASK][: steps + 1].split(spec.action.sizes, -1)
        return torch.stack([column.amax(-1) for column in columns]).amin(0).float().reciprocal()

    def _check_obs(self, times: Tensor, envs: Tensor, obs: dict[str, Tensor]) -> None:
        if _are_finite(list(obs.values())):
            return
        for key, x in obs.items():
            for row, *place in _non_finite(x).tolist():
                what = f"an observation {key!r} with {float(x[(row, *place)])}"
                self._raise(int(times[row]), int(envs[row]), what)

    def _raise(
        self,
        t: int,
        env: int,
        what: str,
        advice: str = "check the env, or scale its output",
        kind: type[ProximaError] = NonFiniteError,
    ) -> None:
        duration, taken = self.rollout.duration, (t + 1) * self.env.num_envs
        if duration is None:
            where = f"step {self.global_step // self.env.num_envs + t + 1}"
        else:
            where, taken = f"policy step {self.policy_steps // self.env.num_envs + t + 1}", int(duration[: t + 1].sum())
        raise kind(f"env {env} gave {what} at global step {self.global_step + taken} ({where} of that env): {advice}.")

    # What the trainer asks ------------------------------------------------------------------------------------------

    @property
    def hold(self) -> Hold:
        """For how many env steps actions are held now."""
        return self.env.hold

    def set_progress(self, progress: float) -> None:
        """Set the hold for this fraction of the run."""
        if self.hold_schedule is not None:
            self.env.hold = self.hold_schedule.at(progress)

    def set_weights(self, name: str, weights: dict[str, Tensor]) -> None:
        """Hand the weights of a network that is part of the env to the envs."""
        self.env.set_weights(name, weights)

    def call_envs(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the envs; see `VecEnv.call`."""
        self._tape = None  # a recording has the numbers from before
        return self.env.call(method, *args, **kwargs)

    def metrics(self, progress: float) -> dict[str, float]:
        """Episode statistics, counters of the envs, numbers from their `info` and the hold."""
        means = self.env.take_info()
        self._note_unseen(means)
        info = {f"info_{name}": mean for name, mean in means.items()}
        held = self.hold_schedule.metrics(progress, policy_steps=self.policy_steps) if self.hold_schedule else {}
        return {**self.episodes.metrics(), **self.env.counters(), **info, **held}

    def _note_unseen(self, means: dict[str, float]) -> None:
        self._unseen -= {name for name, mean in means.items() if not math.isnan(mean)}
        if self._unseen and self.episodes.count:
            names, self._unseen = sorted(self._unseen), set()
            log.warning("log_info: the info of the first episodes had no number %s.", " and no number ".join(names))

    def try_exactness(self) -> str | None:
        """Try on the envs whether a resume can be exact; None, or why it cannot."""
        self.obstacle = self.env.why_inexact()
        return self.obstacle

    @property
    def num_threads(self) -> int | None:
        """Threads of the batch physics; None for envs without."""
        return getattr(self.env, "num_threads", None)

    def text(self) -> str:
        """The envs, masks and the hold, in words."""
        held = self.hold_schedule.text() if self.hold_schedule else ""
        masked = "invalid actions masked, " if self._actor.policy.spec.has_masks else ""
        return f"{self.env.num_envs} envs ({type(self.env).__name__}), {masked}{held}"

    def close(self) -> None:
        """Close the envs; may be called twice."""
        self.env.close()

    # State -----------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """The envs, the generator, counters, episode statistics, the next observation and the recurrent state."""
        can = isinstance(self.env, ExactState) and self.obstacle is None
        return {
            "collector": {
                "generator": self.generator.get_state(),
                "global_step": self.global_step,
                "policy_steps": self.policy_steps,
                "episodes": self.episodes.get_state(),
                "obs": {key: x.clone() for key, x in self._now.items()},
                "recurrent_state": [state.clone() for state in self._state],
            },
            "env": self.env.get_state() if can else None,  # type: ignore[attr-defined]
            "env_type": type(self.env).__name__,
        }

    def set_state(self, state: dict[str, Any], *, new_episodes_seed: int) -> list[str]:
        """Load what `get_state` returned; if the envs cannot be restored, start new episodes with this seed.

        Returns messages about what could not be restored.
        """
        ours, different = state["collector"], []
        self._tape = None
        if not restore_generator(self.generator, ours["generator"], otherwise=ours["global_step"]):
            different.append("the generators of another device do not fit this one")
        self.global_step = ours["global_step"]
        # Older checkpoints have decision_count and memory.
        self.policy_steps = ours["policy_steps"] if "policy_steps" in ours else ours["decision_count"]
        self.episodes.set_state(ours["episodes"])
        self.in_old_episodes = self._restore_envs(state)
        if self.in_old_episodes:
            self._now = {key: x.to(self.env.device) for key, x in ours["obs"].items()}
        else:
            self._now = self.env.reset(new_episodes_seed)
        for current, saved in zip(self._state, ours.get("recurrent_state", ours.get("memory")), strict=True):
            current.copy_(saved if self.in_old_episodes else torch.zeros_like(saved))
        return different

    def _restore_envs(self, state: dict[str, Any]) -> bool:
        types = {type(self.env).__name__, state["env_type"]}
        fits = len(types) == 1 or types <= {"SyncVecEnv", "AsyncVecEnv"}  # both have the same envs
        if state["env"] is None or not fits or not isinstance(self.env, ExactState):
            return False
        try:
            self.env.set_state(state["env"])
        except NotPlain as error:
            log.warning("The envs' state cannot be restored: %s.", error)
            return False
        return True


def _are_finite(tensors: list[Tensor]) -> bool:
    """Whether there is no NaN and no infinity, as finite sums show, which are read at once; False may be wrong."""
    sums = [x.sum().float() for x in tensors if x.is_floating_point()]
    return not sums or math.isfinite(float(torch.stack(sums).sum()))


def _non_finite(x: Tensor) -> Tensor:
    """Indices `[K, axes]` of NaNs and infinities."""
    return (~torch.isfinite(x)).nonzero()
