"""Complete episodes of a trained policy, in parallel."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from proxima.compiling import process_settings_kept
from proxima.data.rollout import as_stored
from proxima.envs.action_hold import Hold
from proxima.envs.contract import Step, VecEnv
from proxima.envs.make import make_env, num_envs_of
from proxima.errors import UsageError
from proxima.evaluation.limits import MOST_EPISODES, check_number
from proxima.evaluation.restored import restore_policy
from proxima.evaluation.statistics import COLUMNS, Summary
from proxima.evaluation.world import chosen_env, view_options
from proxima.nets.encoders import is_image
from proxima.nets.policy import Policy
from proxima.nets.spec import Spec
from proxima.runs import checkpoint
from proxima.text import number

LONGEST_EPISODE = 100_000
"""Policy steps after which an episode counts as endless."""
MOST_ENVS = 64


@dataclass
class Trace:
    """One episode in `L` policy steps; a held action is one policy step of several env steps."""

    obs: dict[str, np.ndarray]  # [L, ...], raw; without images, which take too much memory
    action: np.ndarray  # [L, A] or [L], in the env's units
    reward: np.ndarray  # [L], of a held action discounted as in training
    duration: np.ndarray  # [L], env steps
    value: np.ndarray  # [L], of the critic, in units of the reward
    entropy: np.ndarray  # [L], of the policy, in nats
    final_value: float
    """The critic's value of the last observation, to bootstrap a truncated episode."""


@dataclass
class Episode:
    """One finished episode."""

    return_: float
    length: int
    terminated: bool
    """Ended by the task, not by a time limit."""
    success: bool | None
    """As the env reports it; None where it does not."""
    trace: Trace | None = None
    info: dict[str, float] = field(default_factory=dict)
    """Numbers that the env reported (`episode_info`)."""


@dataclass(repr=False)
class Evaluation:
    """The evaluated episodes and their statistics."""

    env: str
    checkpoint: str
    episodes: list[Episode]
    seconds: float
    deterministic: bool
    seed: int
    hold: Hold
    returns: Summary = field(init=False)
    lengths: Summary = field(init=False)
    info: dict[str, Summary] = field(init=False)
    """Of the numbers in `Episode.info`, over the episodes that have them."""

    def __post_init__(self) -> None:
        self.returns = Summary.of([episode.return_ for episode in self.episodes])
        self.lengths = Summary.of([episode.length for episode in self.episodes])
        self.info = {name: Summary.of([x for x in values if x is not None]) for name, values in self.infos.items()}

    @property
    def infos(self) -> dict[str, list[float | None]]:
        """The numbers in `Episode.info` by name, one per episode; None where it has none."""
        names = dict.fromkeys(name for episode in self.episodes for name in episode.info)
        return {name: [episode.info.get(name) for episode in self.episodes] for name in names}

    @property
    def success_rate(self) -> float | None:
        """Share of successes among the episodes for which the env reports it; None if it never does."""
        known = [episode.success for episode in self.episodes if episode.success is not None]
        return sum(known) / len(known) if known else None

    @property
    def shares(self) -> dict[str, float]:
        """The success rate, and the mean of numbers that are 1 or 0 in every episode, and 1 at least once."""
        success = {} if self.success_rate is None else {"success": self.success_rate}
        binary = [name for name, values in self.infos.items() if {1.0} <= set(values) <= {0.0, 1.0, None}]
        return success | {name: self.info[name].mean for name in binary if name in self._own}

    @property
    def rows(self) -> list[tuple[str, Summary]]:
        """Return, length and the reported numbers that are not shares, for a table."""
        others = [(name, self.info[name]) for name in self._own if name not in self.shares]
        return [("return", self.returns), ("length", self.lengths), *others]

    @property
    def _own(self) -> list[str]:
        """Names of the reported numbers, without those that equal success in every episode."""
        success = [episode.success for episode in self.episodes]
        return [name for name, values in self.infos.items() if values != success]

    @property
    def steps_per_second(self) -> float:
        """Env steps of the evaluated episodes per second."""
        return sum(episode.length for episode in self.episodes) / self.seconds

    def text(self) -> str:
        """A table for the terminal."""
        width = max(8, *(len(name) + 2 for name, _ in self.rows))
        lines = [
            f"{self.env}, {len(self.episodes)} episodes, {'deterministic' if self.deterministic else 'stochastic'}, "
            f"seed {self.seed}, {self.hold.text()}{self.steps_per_second:,.0f} steps/s"
        ]
        for name, cells in (("", COLUMNS), *((name, summary.cells()) for name, summary in self.rows)):
            padded = (
                f"{cell:>{22 if head == '95% interval' else 10}}" for head, cell in zip(COLUMNS, cells, strict=True)
            )
            lines.append(f"{name:<{width}}{''.join(padded)}")
        return "\n".join([*lines, *(f"{name} {share:.1%}" for name, share in self.shares.items())])

    def __repr__(self) -> str:
        mean, std = number(self.returns.mean), number(self.returns.std)
        return f"Evaluation({self.env}, {len(self.episodes)} episodes, return {mean} +/- {std}, {self.checkpoint})"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "env": self.env,
            "checkpoint": self.checkpoint,
            "deterministic": self.deterministic,
            "seed": self.seed,
            "action_hold_steps": self.hold.steps,
            "return": asdict(self.returns),
            "length": asdict(self.lengths),
            "success_rate": self.success_rate,
            "info": {name: asdict(summary) for name, summary in self.info.items()},
            "steps_per_second": self.steps_per_second,
            "returns": [episode.return_ for episode in self.episodes],
            "lengths": [episode.length for episode in self.episodes],
            "infos": self.infos,
        }


def evaluate(
    path: str | Path,
    *,
    best: bool = False,
    env: Any = None,
    env_kwargs: Mapping[str, Any] | None = None,
    episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    trace: bool = False,
) -> Evaluation:
    """Run episodes of a trained policy. `proxima.evaluate` is this function.

    Args:
        path: A checkpoint folder, or a run folder, whose newest checkpoint is used.
        best: Use the run's best checkpoint, not its newest.
        env: Another env than the policy was trained on, or the same object again where a run was trained on one that
            cannot be imported.
        env_kwargs: Keywords of the env to change.
        episodes: Number of episodes.
        seed: Of the envs, and of sampled actions.
        deterministic: Take the most likely action; False samples, as in training.
        trace: Keep every policy step, in `Episode.trace`.

    Example:
        >>> found = proxima.evaluate("runs/CartPole-v1", episodes=50)  # doctest: +SKIP
        >>> found.returns.mean, found.success_rate  # doctest: +SKIP
        (500.0, None)
    """
    check_number("episodes", episodes, least=1, most=MOST_EPISODES)
    check_number("seed", seed, least=0)
    saved = restore_policy(checkpoint.find(path, best=True) if best else path)
    policy = saved.policy
    env_id, kwargs, limit = chosen_env(saved.config, env, env_kwargs)
    count, view = num_envs_of(env_id) or min(episodes, MOST_ENVS), view_options(saved.config)
    world = make_env(env_id, num_envs=count, env_kwargs=kwargs, max_episode_steps=limit, **view)
    try:
        world.hold = saved.hold
        saved.hand_networks(world)
        policy.spec.check_fit(Spec.from_spaces(world.observation_space, world.action_space), env_id)
        start = time.perf_counter()
        done = run_episodes(policy, world, episodes=episodes, seed=seed, deterministic=deterministic, trace=trace)
        seconds = time.perf_counter() - start
    finally:
        world.close()
    return Evaluation(env_id, str(saved.checkpoint.path), done, seconds, deterministic, seed, saved.hold)


@torch.no_grad()
def run_episodes(
    policy: Policy, env: VecEnv, *, episodes: int, seed: int, deterministic: bool, trace: bool = False
) -> list[Episode]:
    """Run the same number of episodes in each env (+- 1): taking those that end first would favour short ones."""
    with process_settings_kept():
        if not policy.image_keys:
            torch.set_num_threads(1)  # faster for small networks
        return _run_episodes(policy, env, episodes, seed=seed, deterministic=deterministic, trace=trace)


def _run_episodes(
    policy: Policy, env: VecEnv, episodes: int, *, seed: int, deterministic: bool, trace: bool
) -> list[Episode]:
    wanted = [len(range(i, episodes, env.num_envs)) for i in range(env.num_envs)]
    finished: list[list[Episode]] = [[] for _ in wanted]
    rows: list[list[dict[str, np.ndarray]]] = [[] for _ in wanted]
    generator = Generator().manual_seed(seed)
    obs, state = as_stored(env.reset(seed)), policy.first_state(env.num_envs)
    lasted = np.zeros(env.num_envs, int)
    while any(len(mine) < count for mine, count in zip(finished, wanted, strict=True)):
        noise = None if deterministic else torch.randn(env.num_envs, policy.noise_size, generator=generator)
        _, action, after, *_ = policy.act(obs, noise, state)
        columns = _columns(policy, obs, state, action) if trace else {}  # before the step, which may overwrite `obs`
        step = env.step(action)
        if trace:
            duration = torch.ones(env.num_envs, dtype=torch.int64) if step.duration is None else step.duration
            columns |= {"reward": step.reward.numpy().copy(), "duration": duration.numpy().copy()}
            skipped = [False] * env.num_envs if step.skipped is None else step.skipped.tolist()
            for i, mine in enumerate(rows):
                if not skipped[i]:
                    mine.append({name: column[i] for name, column in columns.items()})
        lasted += 1
        if lasted.max() > LONGEST_EPISODE:
            raise UsageError(
                f"an episode has not ended after {LONGEST_EPISODE:,} policy steps: give the env a time limit, by "
                "--max-episode-steps in training or where it is registered."
            )
        lasted[step.ended.numpy()] = 0
        for i in step.ended.nonzero().flatten().tolist():
            if len(finished[i]) < wanted[i]:
                finished[i].append(_episode(i, step, _trace(i, step, policy, rows[i], after) if trace else None))
            rows[i] = []
        obs = as_stored(step.obs)
        begins = step.ended if step.skipped is None else step.ended | step.skipped
        state = None if after is None else after.masked_fill(begins[:, None], 0.0)
    # In the order in which they began.
    return [finished[n % env.num_envs][n // env.num_envs] for n in range(episodes)]


def _columns(policy: Policy, obs: dict[str, Tensor], state: Tensor | None, action: Tensor) -> dict[str, np.ndarray]:
    """What `Trace` stores of the policy in one step of all envs, `[N, ...]` each; observations as `obs KEY`."""
    distribution, value = policy(policy.normalizer(obs), state)
    columns = {"action": action, "value": value * policy.return_scale, "entropy": distribution.entropy()}
    columns |= {f"obs {key}": x for key, x in obs.items() if not is_image(tuple(x.shape[1:]))}
    return {name: x.numpy().copy() for name, x in columns.items()}


def _trace(i: int, step: Step, policy: Policy, rows: list[dict[str, np.ndarray]], state: Tensor | None) -> Trace:
    """Of the episode that ended in env `i`; `state` `[N, S]` is the recurrent state before the last observations."""
    assert step.final_obs is not None
    last = as_stored({key: x[i : i + 1] for key, x in step.final_obs.items()})
    value = policy.value(policy.normalizer(last), None if state is None else state[i : i + 1])
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    obs = {name.removeprefix("obs "): columns.pop(name) for name in rows[0] if name.startswith("obs ")}
    return Trace(obs=obs, final_value=float(value * policy.return_scale), **columns)


def _episode(i: int, step: Step, trace: Trace | None) -> Episode:
    """The one that ended in env `i`."""
    success = None if step.episodes.success is None else float(step.episodes.success[i])
    return Episode(
        return_=float(step.episodes.return_[i]),
        length=int(step.episodes.length[i]),
        terminated=bool(step.terminated[i]),
        success=None if success is None or math.isnan(success) else bool(success),
        trace=trace,
        info={name: float(x[i]) for name, x in step.episodes.info.items() if bool(x[i].isfinite())},
    )
