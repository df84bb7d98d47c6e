"""For how long actions are held at each moment of a run."""

import numpy as np

from proxima.config import Config
from proxima.envs.action_hold import Hold, steps_of
from proxima.errors import UsageError


class HoldSchedule:
    """From the options in seconds, and the env's own time step, to the `Hold` of each iteration."""

    def __init__(self, config: Config, step_seconds: float | None):
        self._env = config.env
        self._gamma = config.ppo.gamma if config.ppo.smdp else 1.0
        self.active = config.env.holds_actions
        """Whether any option asks for a hold; one may still come to a single step."""
        if self.active and step_seconds is None:
            raise UsageError(
                f"actions cannot be held for seconds in {config.env.env}: it does not say how long a step takes. Give "
                "the env an attribute dt, or render_fps in its metadata, or leave the action_hold options out."
            )
        self._step_seconds = step_seconds or 1.0

    def seconds(self, progress: float) -> tuple[float, float]:
        """Shortest and longest hold when `progress` (0 to 1) of the run is over; the same but for a random hold."""
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
        """In env steps."""
        low, high = (steps_of(seconds, self._step_seconds) for seconds in self.seconds(progress))
        return Hold(low, high, self._gamma)

    def metrics(self, progress: float, *, decisions: int) -> dict[str, float]:
        """What is logged: the means of the range where the hold is random; nothing where there is none."""
        if not self.active:
            return {}
        return {
            "action_hold_seconds": sum(self.seconds(progress)) / 2,
            "action_hold_steps": self.at(progress).mean,
            "decisions": decisions,
            "decisions_per_second": 0.0,
        }

    def steps_a_decision(self) -> float:
        """Env steps of a decision, over the whole run and if no episode ends in a hold."""
        return 1.0 / float(np.mean([1.0 / self.at(progress).mean for progress in np.linspace(0.0, 1.0, 101)]))

    def text(self) -> str:
        """For the first line of a run, empty where nothing is held."""
        if not self.active:
            return ""
        start, end = self.at(0.0), self.at(1.0)
        word, last = (" to ", start.high) if start.low < start.high else (" -> ", end.low)
        steps = list(dict.fromkeys([start.low, last]))  # one number where both are the same
        seconds = word.join(f"{count * self._step_seconds:.3g}" for count in steps)
        return f"actions held for {seconds} s ({word.join(map(str, steps))} env step{'s' * (steps != [1])}), "
