"""The schedule of held actions."""

import numpy as np

from proxima.config import Config
from proxima.config.sections import EnvOptions
from proxima.envs.action_hold import Hold, steps_of
from proxima.errors import UsageError


class HoldSchedule:
    """Converts the options in seconds, with the env's time step, to the `Hold` of each iteration."""

    def __init__(self, config: Config, step_seconds: float | None):
        _check(config.env)
        self._env = config.env
        self._gamma = config.discount
        self.active = config.env.holds_actions
        """Whether an option of held actions is used, even if the hold is only one step."""
        if self.active and step_seconds is None:
            raise UsageError(
                f"actions cannot be held for seconds in {config.env.env}: it does not say how long a step takes. Give "
                "the env an attribute dt, or render_fps in its metadata, or leave the action_hold options out."
            )
        self._step_seconds = step_seconds or 1.0

    def seconds(self, progress: float) -> tuple[float, float]:
        """Shortest and longest hold at `progress` (0 to 1) of the run; equal unless the hold is random."""
        env = self._env
        if env.action_hold_random is not None:
            low, high = env.action_hold_random
            return low, high
        start, end = env.action_hold_start_seconds, env.action_hold_end_seconds
        if start is None or end is None:
            return env.action_hold_seconds, env.action_hold_seconds
        share = min(1.0, progress / env.action_hold_fraction) if env.action_hold_anneal else 0.0
        now = start + share * (end - start)
        return now, now

    def at(self, progress: float) -> Hold:
        """The hold in env steps at `progress`."""
        low, high = (steps_of(seconds, self._step_seconds) for seconds in self.seconds(progress))
        return Hold(low, high, self._gamma)

    def metrics(self, progress: float, *, policy_steps: int) -> dict[str, float]:
        """Metrics of the hold, means if it is random; none if no action is held."""
        if not self.active:
            return {}
        return {
            "action_hold_seconds": sum(self.seconds(progress)) / 2,
            "action_hold_steps": self.at(progress).mean,
            "decisions": policy_steps,
            "decisions_per_second": 0.0,
        }

    def changed_by_resume(self, before: Hold, progress: float) -> list[str]:
        """A warning if the run is longer now, and its annealed hold therefore increases again."""
        now = self.at(min(1.0, progress))
        if now.high <= before.high:
            return []
        return [
            f"The hold goes from {before.high} back to {now.high} env steps: it is annealed over total_timesteps, "
            "which are more now. Give action_hold_start_seconds the value it had reached to continue from there."
        ]

    def steps_per_action(self) -> float:
        """Mean env steps per action over the complete run, if no episode ends during a hold."""
        return 1.0 / float(np.mean([1.0 / self.at(progress).mean for progress in np.linspace(0.0, 1.0, 101)]))

    def text(self) -> str:
        """For the first line of a run; empty if no action is held."""
        if not self.active:
            return ""
        start, end = self.at(0.0), self.at(1.0)
        word, last = (" to ", start.high) if start.low < start.high else (" -> ", end.low)
        steps = list(dict.fromkeys([start.low, last]))  # one number if both are equal
        seconds = word.join(f"{count * self._step_seconds:.3g}" for count in steps)
        return f"actions held for {seconds} s ({word.join(map(str, steps))} env step{'s' * (steps != [1])}), "


def _check(env: EnvOptions) -> None:
    """Check that only one of the three ways to give a hold is used, and completely."""
    start, end, between = env.action_hold_start_seconds, env.action_hold_end_seconds, env.action_hold_random
    if (start is None) != (end is None):
        given, missing = ("start", "end") if end is None else ("end", "start")
        raise UsageError(
            f"action_hold_{given}_seconds is set, but action_hold_{missing}_seconds is not: give both, or "
            "action_hold_seconds for a fixed hold."
        )
    ways = {
        "action_hold_seconds": bool(env.action_hold_seconds),
        "action_hold_start_seconds": start is not None,
        "action_hold_random": between is not None,
    }
    used = [name for name, is_used in ways.items() if is_used]
    if len(used) > 1:
        raise UsageError(f"{' and '.join(used)} are set, but an action has one hold: leave all but one of them out.")
    if start is None and (env.action_hold_fraction != 1 or not env.action_hold_anneal):
        raise UsageError(
            "action_hold_fraction or action_hold_anneal is set, but no start and end of the hold: give both."
        )
    if between is not None and (len(between) != 2 or between[0] > between[1]):
        raise UsageError(
            f"action_hold_random is {between}, but it must be the shortest and the longest hold in seconds, such as "
            "action_hold_random 0.05 0.2."
        )
