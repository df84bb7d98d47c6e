"""Collects experience: the only caller of `env.step` in training."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from proxima.algo.flat import FlatParameters
from proxima.compiling import is_toolchain_failure, report_failure
from proxima.data.frames import newest
from proxima.data.generators import restore_generator
from proxima.data.rollout import Rollout, as_stored
from proxima.envs.contract import Step, VecEnv
from proxima.errors import NonFiniteError, UsageError
from proxima.nets.make import Agent
from proxima.training.actor import Actor, Record, Rows, compile_actor
from proxima.training.endings import DeferredEndings, Endings

EPISODE_WINDOW = 100


class EpisodeStatistics:
    """Returns, lengths and what else the env tells of the last 100 finished episodes.

    A success or a number of the env's own is NaN where an episode ended without it.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names` are those of the env's own numbers."""
        self.returns: deque[float] = deque(maxlen=EPISODE_WINDOW)
        self.lengths: deque[int] = deque(maxlen=EPISODE_WINDOW)
        self.success: deque[float] = deque(maxlen=EPISODE_WINDOW)
        """Empty until the env has told of one."""
        self.info: dict[str, deque[float]] = {name: deque(maxlen=EPISODE_WINDOW) for name in names}
        self.count = 0

    def add(
        self,
        returns: list[float],
        lengths: list[int],
        success: list[float] | None = None,
        info: Mapping[str, list[float]] | None = None,
    ) -> None:
        """Take in finished episodes."""
        self.returns.extend(returns)
        self.lengths.extend(lengths)
        if success is not None and (self.success or not all(map(math.isnan, success))):
            self.success.extend(success)
        for name, window in self.info.items():
            window.extend((info or {}).get(name, []))
        self.count += len(returns)

    def metrics(self) -> dict[str, float]:
        """Means and extremes of the window, NaN before the first episode ends."""
        returns, lengths = (list(window) or [math.nan] for window in (self.returns, self.lengths))
        return {
            "episode_return": sum(returns) / len(returns),
            "episode_return_min": min(returns),
            "episode_return_max": max(returns),
            "episode_length": sum(lengths) / len(lengths),
            "episode_length_min": min(lengths),
            "episode_length_max": max(lengths),
            "episodes": self.count,
            **({"episode_success": _mean(self.success)} if self.success else {}),
            **{f"episode_{name}": _mean(window) for name, window in self.info.items()},
        }

    def get_state(self) -> dict[str, Any]:
        """The windows and the count."""
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "success": list(self.success),
            "info": {name: list(window) for name, window in self.info.items()},
            "count": self.count,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Put back what `get_state` gave; a state of before there were successes and infos will do."""
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])
        self.success.extend(state.get("success", []))
        for name, window in self.info.items():
            window.extend(state.get("info", {}).get(name, []))
        self.count = state["count"]


def _mean(window: Iterable[float]) -> float:
    """Of the numbers that are known; NaN where none is."""
    known = [value for value in window if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


class Collector:
    """Steps the envs with the policy and fills the rollout in place.

    A NaN or an infinity is looked for once the rollout is whole: to look at every step would make a GPU wait.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Agent,
        *,
        num_steps: int,
        device: torch.device,
        env_seed: int,
        seed: int,
        flat: FlatParameters | None = None,
        sequence_length: int = 1,
        holds_actions: bool = False,
        judges: bool = False,
    ):
        """With the policy's parameters in `flat`, acting is compiled on its first use.

        The policy's memory is stored every `sequence_length` steps. Stacks of frames are stored whole where actions may
        be held: between two decisions several frames pass. One that `judges` also stores log-probabilities and values.
        """
        self.env, self.num_steps = env, num_steps
        self.generator = Generator(device).manual_seed(seed)
        self.episodes = EpisodeStatistics(env.episode_info)
        self.global_step = 0
        """Env steps, over all envs."""
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
        action = policy.act(obs)[0]
        first_state = policy.first_state(env.num_envs)
        self._state: Rows = () if first_state is None else (first_state,)
        """The policy's memory `[N, S]`, if it has one: zero where an episode begins."""
        self._deferred = None if env.device.type == "cpu" else DeferredEndings(num_steps)
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
                judged=judges,
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
        judged = [x.unbind() for x in (self.rollout.log_prob, self.rollout.value) if x is not None]
        judged_rows = list(zip(*judged, strict=True)) or [()] * num_steps
        self._rows = list(zip(*(x.unbind() for x in fields), obs_rows, kept, judged_rows, strict=False))

    @property
    def counts(self) -> tuple[int, int]:
        """Env steps and decisions so far."""
        return self.global_step, self.decisions

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
            for t, (noise, action, reward, obs, kept, judged) in enumerate(self._rows):
                if kept is not None:
                    kept.copy_(*self._state)
                seen = tuple([self._now[key] for key in keys])
                record = self._record or self._make_record(seen, noise, obs, action, judged)
                step = self.env.step(record(seen, noise, obs, action, self._state, judged))
                self._now = step.obs
                reward.copy_(step.reward)
                if step.duration is not None:
                    self._put_duration(t, step.duration)
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
        if self._deferred is not None:
            self._take_in(self._deferred.take(rollout.ended))
        self.decisions += rollout.size
        self.global_step += rollout.size if rollout.duration is None else int(rollout.duration.sum())
        return rollout

    def _make_record(self, seen: Rows, noise: Tensor, obs: Rows, action: Tensor, judged: Rows) -> Record:
        """The actor, compiled if that is wanted and can be done."""
        self._record = self._actor
        if self._flat is not None:
            try:
                self._record = compile_actor(self._actor, self._flat, seen, noise, obs, action, self._state, judged)
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
        if self._deferred is not None:
            self._deferred.keep(t, step, seen, state)
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
            index = (ends.time * self.env.num_envs + ends.env)[ends.cut]
            final_obs = {key: x[ends.cut] for key, x in ends.final_obs.items()}
            state = None if ends.state is None else ends.state[ends.cut.to(ends.state.device)]
            self.rollout.add_final(index, final_obs, state)

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

    def get_state(self) -> dict[str, Any]:
        """Generator, counters, episode statistics, the observation to act on next and the memory of those before."""
        return {
            "generator": self.generator.get_state(),
            "global_step": self.global_step,
            "decision_count": self.decisions,
            "episodes": self.episodes.get_state(),
            "obs": {key: x.clone() for key, x in self._now.items()},
            "memory": [state.clone() for state in self._state],
        }

    def set_state(self, state: dict[str, Any], *, new_episodes_seed: int | None) -> bool:
        """Put back what `get_state` gave; with a seed, start new episodes instead of going on with the old.

        Returns whether the generator could be put back: one of another device cannot.
        """
        same_device = restore_generator(self.generator, state["generator"], otherwise=state["global_step"])
        self.global_step, self.decisions = state["global_step"], state["decision_count"]
        self.episodes.set_state(state["episodes"])
        self._now = state["obs"] if new_episodes_seed is None else self.env.reset(new_episodes_seed)
        for ours, saved in zip(self._state, state["memory"], strict=True):
            ours.copy_(saved if new_episodes_seed is None else torch.zeros_like(saved))
        return same_device


def _non_finite(x: Tensor) -> Tensor:
    """Places of NaNs and infinities `[K, axes]`. One sum tells in nearly every case that there are none."""
    if not x.is_floating_point() or math.isfinite(float(x.sum())):
        return x.new_zeros((0, x.ndim), dtype=torch.long)
    return (~torch.isfinite(x)).nonzero()
