"""Whole episodes of a trained policy, in parallel."""

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
from proxima.envs.make import make_env
from proxima.errors import UsageError
from proxima.evaluate.limits import MOST_EPISODES, check_number
from proxima.evaluate.restored import restore_policy
from proxima.evaluate.statistics import Summary
from proxima.evaluate.world import chosen_env
from proxima.nets.encoders import is_image
from proxima.nets.policy import Policy
from proxima.nets.spec import Spec

LONGEST_EPISODE = 100_000
"""Decisions after which an episode counts as endless."""
# Each env of a vector env runs as many episodes as the others; so many envs at most.
MOST_ENVS = 64


@dataclass
class Trace:
    """What happened in an episode, one row a decision: a step, or as many as the action was held for."""

    obs: dict[str, np.ndarray]  # [L, ...], as the policy takes them; without images, which would fill the memory
    action: np.ndarray  # [L, A] or [L], in the env's units
    reward: np.ndarray  # [L], of a held action as its critic counts it: discounted within the hold, or not
    duration: np.ndarray  # [L], env steps
    value: np.ndarray  # [L], what the critic expected, in units of the reward
    entropy: np.ndarray  # [L], of the policy, in nats
    final_value: float
    """The critic's for the observation after the last step; counts only if the episode was truncated."""


@dataclass
class Episode:
    """One finished episode."""

    return_: float
    length: int
    terminated: bool
    """Ended by the task itself, and not by a time limit."""
    success: bool | None
    """As the env reports it; None where it does not."""
    trace: Trace | None = None
    info: dict[str, float] = field(default_factory=dict)
    """The env's own numbers, those that it told."""


@dataclass
class Evaluation:
    """The evaluated episodes and what they come to."""

    env: str
    checkpoint: str
    episodes: list[Episode]
    seconds: float
    deterministic: bool
    seed: int
    hold: Hold
    """How long actions were held."""
    returns: Summary = field(init=False)
    lengths: Summary = field(init=False)
    info: dict[str, Summary] = field(init=False)
    """Of the env's own numbers, over the episodes in which it told them."""

    def __post_init__(self) -> None:
        self.returns = Summary.of([episode.return_ for episode in self.episodes])
        self.lengths = Summary.of([episode.length for episode in self.episodes])
        self.info = {
            name: Summary.of([value for value in values if value is not None]) for name, values in self.infos.items()
        }

    @property
    def infos(self) -> dict[str, list[float | None]]:
        """The env's own numbers, one an episode; None where it did not tell."""
        names = dict.fromkeys(name for episode in self.episodes for name in episode.info)
        return {name: [episode.info.get(name) for episode in self.episodes] for name in names}

    @property
    def shares(self) -> dict[str, float]:
        """Success, and those of the env's own numbers that are only ever 1 or 0, as shares of the episodes.

        Left out is what equals success in every episode. What is always 0 may as well be a score: it is a number.
        """
        success = self.success_rate
        yes_or_no = {name for name, values in self.infos.items() if {1.0} <= set(values) <= {0.0, 1.0, None}}
        shares = {} if success is None else {"success": success}
        return shares | {name: self.info[name].mean for name in self.info if name in yes_or_no - self._doubles}

    @property
    def rows(self) -> list[tuple[str, Summary]]:
        """Return, length and the env's own numbers that are not shares, for a table."""
        others = [item for item in self.info.items() if item[0] not in self.shares.keys() | self._doubles]
        return [("return", self.returns), ("length", self.lengths), *others]

    @property
    def _doubles(self) -> set[str]:
        """Names of numbers that say what success says already."""
        success = [episode.success for episode in self.episodes]
        return {name for name, values in self.infos.items() if values == success}

    @property
    def success_rate(self) -> float | None:
        """Share of the episodes that the env calls a success; None where it says nothing."""
        known = [episode.success for episode in self.episodes if episode.success is not None]
        return sum(known) / len(known) if known else None

    @property
    def steps_per_second(self) -> float:
        """Env steps a second, those of the evaluated episodes only."""
        return sum(episode.length for episode in self.episodes) / self.seconds

    def text(self) -> str:
        """A small table for people."""
        width = max(8, *(len(name) + 2 for name, _ in self.rows))
        lines = [
            f"{self.env}, {len(self.episodes)} episodes, {'deterministic' if self.deterministic else 'stochastic'}, "
            f"seed {self.seed}, {self.hold.text()}{self.steps_per_second:,.0f} steps/s",
            f"{'':<{width}}{'mean':>10}{'std':>10}{'median':>10}{'IQM':>10}{'95% interval':>22}{'min':>10}{'max':>10}",
        ]
        for name, s in self.rows:
            mean, std, median, iqm, interval, low, high = s.cells()
            lines.append(f"{name:<{width}}{mean:>10}{std:>10}{median:>10}{iqm:>10}{interval:>22}{low:>10}{high:>10}")
        return "\n".join([*lines, *(f"{name} {share:.1%}" for name, share in self.shares.items())])

    def to_dict(self) -> dict[str, Any]:
        """The same for programs."""
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
    env: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    trace: bool = False,
) -> Evaluation:
    """Run `episodes` episodes of a checkpoint's policy; with `trace`, keep every step of them.

    `env` is another env than the policy was trained on, and `env_kwargs` other keywords for it.
    """
    check_number("episodes", episodes, least=1, most=MOST_EPISODES)
    check_number("seed", seed, least=0)
    saved = restore_policy(path)
    policy = saved.policy
    env_id, kwargs, limit = chosen_env(saved.config, env, env_kwargs)
    world = make_env(env_id, num_envs=min(episodes, MOST_ENVS), env_kwargs=kwargs, max_episode_steps=limit)
    world.hold = saved.hold
    try:
        policy.spec.check_fit(Spec.from_spaces(world.observation_space, world.action_space), env_id)
        start = time.perf_counter()
        with process_settings_kept():
            if not any(is_image(spec.shape) for spec in policy.spec.obs.values()):
                torch.set_num_threads(1)  # for so little, threads cost more than they give
            done = run_episodes(policy, world, episodes=episodes, seed=seed, deterministic=deterministic, trace=trace)
        seconds = time.perf_counter() - start
    finally:
        world.close()
    return Evaluation(env_id, str(saved.checkpoint.path), done, seconds, deterministic, seed, saved.hold)


@torch.no_grad()
def run_episodes(
    policy: Policy, env: VecEnv, *, episodes: int, seed: int, deterministic: bool, trace: bool = False
) -> list[Episode]:
    """The first `episodes` episodes, the same number in each env give or take one: short ones are not favoured."""
    wanted = [len(range(i, episodes, env.num_envs)) for i in range(env.num_envs)]
    finished: list[list[Episode]] = [[] for _ in wanted]
    steps: list[list[dict[str, Any]]] = [[] for _ in wanted]
    generator = Generator().manual_seed(seed)
    obs, state = as_stored(env.reset(seed)), policy.first_state(env.num_envs)
    lasted = np.zeros(env.num_envs, int)
    while any(len(mine) < count for mine, count in zip(finished, wanted, strict=True)):
        noise = None if deterministic else torch.randn(env.num_envs, policy.noise_size, generator=generator)
        _, action, after, *_ = policy.act(obs, noise, state)
        step = env.step(action)
        if trace:
            _keep(steps, policy, obs, state, action, step)
        lasted += 1
        if lasted.max() > LONGEST_EPISODE:
            raise UsageError(
                f"an episode has not ended after {LONGEST_EPISODE:,} decisions: give the env a time limit, by "
                "--max-episode-steps in training or where it is registered."
            )
        lasted[step.ended.numpy()] = 0
        for i in step.ended.nonzero().flatten().tolist():
            if len(finished[i]) < wanted[i]:
                finished[i].append(_episode(i, step, policy, steps[i], after))
            steps[i] = []
        obs = as_stored(step.obs)
        state = None if after is None else after.masked_fill(step.ended[:, None], 0.0)
    # In the order in which a single env after another would have started them.
    return [finished[n % env.num_envs][n // env.num_envs] for n in range(episodes)]


def _keep(
    steps: list[list[dict[str, Any]]],
    policy: Policy,
    obs: dict[str, Tensor],
    state: Tensor | None,
    action: Tensor,
    step: Step,
) -> None:
    distribution, value = policy(policy.normalizer(obs), state)
    columns = {
        "action": action.numpy(),
        "reward": step.reward.numpy(),
        "duration": np.ones(len(steps), int) if step.duration is None else step.duration.numpy(),
        "value": (value * policy.return_scale).numpy(),
        "entropy": distribution.entropy().numpy(),
    }
    vectors = {key: x for key, x in obs.items() if not is_image(tuple(x.shape[1:]))}
    for i, mine in enumerate(steps):
        row: dict[str, Any] = {name: column[i].copy() for name, column in columns.items()}
        mine.append(row | {"obs": {key: x[i].numpy().copy() for key, x in vectors.items()}})


def _episode(i: int, step: Step, policy: Policy, steps: list[dict[str, Any]], state: Tensor | None) -> Episode:
    """The one that ended in env `i`; `state` is the recurrent state of all before its last observation."""
    success = None
    if step.episodes.success is not None and not bool(step.episodes.success[i].isnan()):
        success = bool(step.episodes.success[i])
    trace = None
    if steps:
        assert step.final_obs is not None
        last = as_stored({key: x[i : i + 1] for key, x in step.final_obs.items()})
        trace = Trace(
            obs={key: np.stack([row["obs"][key] for row in steps]) for key in steps[0]["obs"]},
            **{name: np.stack([row[name] for row in steps]) for name in steps[0] if name != "obs"},
            final_value=_value(policy, last, None if state is None else state[i : i + 1]),
        )
    return Episode(
        return_=float(step.episodes.return_[i]),
        length=int(step.episodes.length[i]),
        terminated=bool(step.terminated[i]),
        success=success,
        trace=trace,
        info={name: float(x[i]) for name, x in step.episodes.info.items() if bool(x[i].isfinite())},
    )


@torch.no_grad()
def _value(policy: Policy, obs: dict[str, Tensor], state: Tensor | None) -> float:
    """Of one raw observation, in units of the env's own reward."""
    return float(policy.value(policy.normalizer(obs), state) * policy.return_scale)
