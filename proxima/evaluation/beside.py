"""Two policies in the same envs from the same seeds, for example a student and its teacher."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxima.envs.contract import VecEnv
from proxima.envs.make import make_env, num_envs_of
from proxima.evaluation.episodes import MOST_ENVS, Episode, Evaluation, run_episodes
from proxima.evaluation.limits import MOST_EPISODES, check_number
from proxima.evaluation.restored import Restored, restore_policy
from proxima.evaluation.statistics import FEWEST, mean_interval
from proxima.evaluation.world import chosen_env, view_options
from proxima.nets.spec import Spec
from proxima.text import number

_COLUMNS = ("policy", "beside", "difference", "95% interval")


@dataclass
class Pair:
    """Evaluations of two policies; episode k of both started from `seed + k`."""

    policy: Evaluation
    beside: Evaluation

    @property
    def rows(self) -> dict[str, list[tuple[float, float]]]:
        """Return, length and the numbers that the env reports: pairs of the episodes that have them in both."""
        pairs = list(zip(self.policy.episodes, self.beside.episodes, strict=True))
        found = {"return": [(a.return_, b.return_) for a, b in pairs]}
        found["length"] = [(float(a.length), float(b.length)) for a, b in pairs]
        success = [(a.success, b.success) for a, b in pairs]
        found["success"] = [(float(a), float(b)) for a, b in success if a is not None and b is not None]
        for name in dict.fromkeys([*self.policy.infos, *self.beside.infos]):
            found[name] = [(a.info[name], b.info[name]) for a, b in pairs if name in a.info and name in b.info]
        return {name: values for name, values in found.items() if values}

    def text(self) -> str:
        """A table of means for the terminal, with the mean difference of paired episodes and its interval."""
        one, count = self.policy, len(self.policy.episodes)
        how = "deterministic" if one.deterministic else "stochastic"
        lines = [
            f"{one.env}, {count} episodes, {how}; episode k of both starts from seed {one.seed} + k",
            f"policy  {one.checkpoint}",
            f"beside  {self.beside.checkpoint}",
        ]
        cells = {"": _COLUMNS} | {name: _cells(values) for name, values in self.rows.items()}
        width = max(8, *(len(name) + 2 for name in cells))
        lines += [f"{name:<{width}}{a:>10}{b:>10}{c:>12}{d:>26}" for name, (a, b, c, d) in cells.items()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"policy": self.policy.to_dict(), "beside": self.beside.to_dict()}


def evaluate_beside(
    path: str | Path,
    beside: str | Path,
    *,
    env: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
) -> Pair:
    """Run episodes of two checkpoints' policies in the env of the first, each with its own hold.

    The env may have observation keys that one of the policies does not know.
    """
    check_number("episodes", episodes, least=1, most=MOST_EPISODES)
    check_number("seed", seed, least=0)
    policies = restore_policy(path), restore_policy(beside)
    env_id, kwargs, limit = chosen_env(policies[0].config, env, env_kwargs)
    count, view = num_envs_of(env_id) or min(episodes, MOST_ENVS), view_options(policies[0].config)
    world = make_env(env_id, num_envs=count, env_kwargs=kwargs, max_episode_steps=limit, **view)
    found = []
    try:
        spec = Spec.from_spaces(world.observation_space, world.action_space)
        for saved in policies:
            saved.policy.spec.check_fit(spec, env_id, keys=saved.policy.actor_keys)
        for saved in policies:
            start = time.perf_counter()
            done = _run(saved, world, episodes, seed=seed, deterministic=deterministic)
            seconds = time.perf_counter() - start
            where = str(saved.checkpoint.path)
            found.append(Evaluation(env_id, where, done, seconds, deterministic, seed, saved.hold))
    finally:
        world.close()
    return Pair(*found)


def _run(saved: Restored, world: VecEnv, episodes: int, *, seed: int, deterministic: bool) -> list[Episode]:
    """One episode per env and reset: the start of a second one can depend on the first, as with a curriculum."""
    world.hold = saved.hold
    saved.hand_networks(world)
    done: list[Episode] = []
    while len(done) < episodes:
        count = min(world.num_envs, episodes - len(done))
        done += run_episodes(saved.policy, world, episodes=count, seed=seed + len(done), deterministic=deterministic)
    return done


def _cells(values: list[tuple[float, float]]) -> tuple[str, str, str, str]:
    """One text per column."""
    ours, theirs = (sum(column) / len(values) for column in zip(*values, strict=True))
    interval = "too few"
    if len(values) >= FEWEST:
        low, high = mean_interval([one - other for one, other in values])
        interval = f"{number(low)} to {number(high)}"
    return number(ours), number(theirs), number(ours - theirs), interval
