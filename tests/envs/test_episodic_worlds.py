"""`EpisodicVecEnv`: ends of episodes, time limits, holds, `aux`, and old states of format 3."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from proxima.envs.action_hold import Hold
from proxima.envs.contract import Obs
from proxima.envs.episodes import EpisodicVecEnv
from proxima.envs.make import make_env
from proxima.errors import UsageError
from tests.envs.synthetic_quadruped import SYNTHETIC


class Count(EpisodicVecEnv):
    """Observation is the step of the episode; env i ends its episodes after `lengths[i]` steps."""

    observation_space = spaces.Dict({"obs": spaces.Box(0.0, np.inf, (1,), np.float64)})
    action_space = spaces.Discrete(2)

    def __init__(self, lengths: list[int] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.lengths = None if lengths is None else self._array(torch.tensor(lengths))
        self.count = self._zeros
        self.observed = 0

    def _seed(self, seed: int | None) -> None:
        pass

    def _start(self, started: Any) -> None:
        assert not bool((started & (self.episode_length != 0)).any())
        self.count = self._where(started, 0, self.count)

    def _advance(self, action: Tensor, moving: Any) -> tuple[Any, Any]:
        self.count = self.count + (1 if moving is None else moving * 1)
        return self.count * self._array(torch.tensor(0.5).double()), None if self.lengths is None else self.is_over()

    def is_over(self) -> Any:
        return self.count >= self.lengths

    def _observe(self, started: Any = None) -> Obs:
        self.observed += 1
        return {"obs": self._tensor(self.count).double()[:, None]}

    def _aux(self) -> dict[str, Tensor]:
        count = self._tensor(self.count)
        return {"count": count, "pair": torch.stack([count, -count], -1)}

    def _get_world(self) -> dict[str, Any]:
        return {"count": self._tensor(self.count).clone()}

    def _set_world(self, state: dict[str, Any]) -> Obs:
        self.count = self._array(state["count"].clone())
        return self._observe()


class NumpyCount(Count):
    uses_numpy = True


class NeverAsks(Count):
    """On the CPU, with the code path of a GPU."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._on_cpu = False


WORLDS = [Count, NumpyCount, NeverAsks]
ACTION = torch.zeros(3, dtype=torch.long)


@pytest.mark.parametrize("world", WORLDS)
def test_ends_limits_and_statistics(world: type[Count]) -> None:
    env = world([2, 5, 9], num_envs=3, max_episode_steps=4)
    assert env.reset(0)["obs"].tolist() == [[0.0]] * 3
    rows = []
    for _ in range(4):
        step = env.step(ACTION)
        ended = step.ended
        final = [] if step.final_obs is None else step.final_obs["obs"][ended, 0].tolist()
        rows.append((step.obs["obs"][:, 0].tolist(), step.terminated.tolist(), step.truncated.tolist(), final))
        assert step.reward.dtype == torch.float64 and step.duration is None
    no, all_ = [False] * 3, [True] * 3
    assert rows[0] == ([1, 1, 1], no, no, []) and rows[2] == ([1, 3, 3], no, no, [])
    assert rows[1] == ([0, 2, 2], [True, False, False], no, [2])
    assert rows[3] == ([0, 0, 0], [True, False, False], [False, True, True], [2, 4, 4])
    assert ended.tolist() == all_
    assert step.episodes.return_.tolist() == [1.5, 5.0, 5.0] and step.episodes.length.tolist() == [2, 4, 4]


@pytest.mark.parametrize("world", WORLDS)
def test_a_hold_stops_where_the_episode_does(world: type[Count]) -> None:
    env = world([2, 5, 9], num_envs=3, max_episode_steps=8)
    env.hold = Hold(3, 3, 0.5)
    env.reset(0)
    step = env.step(ACTION)
    assert step.duration is not None and step.duration.tolist() == [2, 3, 3]
    assert step.reward.tolist() == [0.5 + 0.5, 0.5 + 0.5 + 0.375, 1.375]
    assert step.obs["obs"][:, 0].tolist() == [0, 3, 3] and step.ended.tolist() == [True, False, False]
    env.step(ACTION)
    step = env.step(ACTION)
    assert step.duration is not None and step.duration.tolist() == [2, 3, 2]
    assert step.truncated.tolist() == [False, False, True] and step.episodes.length[2] == 8
    assert step.episodes.return_[2] == sum(range(1, 9)) / 2


@pytest.mark.parametrize("world", WORLDS)
def test_aux_is_of_the_step_that_ended_the_episode(world: type[Count]) -> None:
    env = world([2, 5, 9], num_envs=3)
    env.reset(0)
    env.step(ACTION)
    step = env.step(ACTION)
    assert step.obs["obs"][:, 0].tolist() == [0, 2, 2]
    assert step.aux["count"].tolist() == [2, 2, 2] and step.aux["pair"].tolist() == [[2, -2]] * 3
    assert "aux" not in env.get_state()


def test_other_worlds_have_no_aux() -> None:
    for env_id in ("HalfCheetah-v5", "proxima/Recall-v0", "CartPole-v1"):
        env = make_env(env_id, num_envs=1)
        env.reset(0)
        shape = (1, *env.action_space.shape) if isinstance(env.action_space, spaces.Box) else (1,)
        assert env.step(torch.zeros(shape, dtype=torch.float32 if len(shape) > 1 else torch.long)).aux == {}


@pytest.mark.parametrize(
    ("world", "lengths", "options", "observations"),
    [
        (Count, None, {}, 12 + 3),
        (NeverAsks, None, {}, 24),
        (NeverAsks, [9, 9, 9], {}, 24),
        (NeverAsks, None, {"spread_episodes": True}, 24),
        (Count, None, {"spread_episodes": True}, 12 + 9),
    ],
)
def test_a_step_observes_twice_only_where_an_episode_may_have_ended(
    world: type[Count], lengths: list[int] | None, options: dict[str, Any], observations: int
) -> None:
    env = world(lengths, num_envs=3, max_episode_steps=4, **options)
    env.reset(0)
    env.observed = 0
    for _ in range(12):
        env.step(ACTION)
    assert env.observed == observations


@pytest.mark.parametrize("hold", [Hold(), Hold(1, 4, 0.9), Hold(3, 3, 0.9)])
@pytest.mark.parametrize("env_id", [SYNTHETIC, "proxima/Recall-v0"])
def test_the_code_for_a_gpu_gives_the_same_bits(env_id: str, hold: Hold) -> None:
    """On the CPU, but without testing whether an episode ended."""
    one, two = (make_env(env_id, num_envs=4, max_episode_steps=13, spread_episodes=True) for _ in range(2))
    two._on_cpu = False  # type: ignore[attr-defined]
    for env in (one, two):
        env.hold = hold
        env.reset(3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        move = torch.rand(4, 12, generator=generator) if "Quad" in env_id else torch.ones(4, dtype=torch.long)
        a, b = one.step(move), two.step(move)
        assert all(torch.equal(a.obs[key], b.obs[key]) for key in a.obs)
        assert torch.equal(a.reward, b.reward) and torch.equal(a.terminated, b.terminated)
        ended = a.ended
        assert torch.equal(ended, b.ended) and (a.final_obs is not None) == bool(ended.any())
        if a.final_obs is not None:
            assert b.final_obs is not None
            assert all(torch.equal(a.final_obs[key][ended], b.final_obs[key][ended]) for key in a.obs)
            assert torch.equal(a.episodes.return_[ended], b.episodes.return_[ended])
            assert torch.equal(a.episodes.length[ended], b.episodes.length[ended])


# ---- states


def format_3(state: dict[str, Any]) -> dict[str, Any]:
    """A state as checkpoints of format 3 have it: flat for MuJoCo, with counters for worlds on tensors."""
    world = state["world"]
    if "physics" in world:
        kept = {name: state[name] for name in ("length", "limit", "left", "return", "hold")}
        return {"env_id": state["name"], **kept, **world}
    counters = {name: state[name] for name in ("length", "return")}
    counters |= {"seed": world["seed"], "episode": world["episode"]}
    counters["head_start"] = state["limit"] - state["left"] - state["length"]
    return {"type": state["name"], "counters": counters, "world": world["state"], "hold": state["hold"]}


@pytest.mark.parametrize("env_id", ["Hopper-v5", SYNTHETIC])
def test_states_of_format_3_go_on_exactly(env_id: str) -> None:
    env, other = (make_env(env_id, num_envs=3, max_episode_steps=20, spread_episodes=True) for _ in range(2))
    env.hold = Hold(1, 3, 0.9)
    env.reset(5)
    moves = torch.rand(40, 3, *env.action_space.shape, generator=torch.Generator().manual_seed(1))  # type: ignore[misc]
    for move in moves[:9]:
        env.step(move)
    other.set_state(format_3(env.get_state()))  # type: ignore[attr-defined]
    for move in moves[9:]:
        one, two = env.step(move), other.step(move)
        assert all(torch.equal(one.obs[key], two.obs[key]) for key in one.obs)
        assert torch.equal(one.reward, two.reward) and torch.equal(one.truncated, two.truncated)
        ended = one.ended
        assert torch.equal(one.episodes.return_[ended], two.episodes.return_[ended])


@pytest.mark.parametrize("world", [Count, NumpyCount])
def test_a_new_time_limit_holds_for_the_episodes_in_flight(world: type[Count]) -> None:
    env, longer = world(num_envs=3, max_episode_steps=4), world(num_envs=3, max_episode_steps=6)
    env.reset(0)
    for _ in range(3):
        env.step(ACTION)
    longer.set_state(env.get_state())
    assert [bool(longer.step(ACTION).truncated.all()) for _ in range(3)] == [False, False, True]


def test_what_is_no_state_of_the_world_is_refused() -> None:
    env = Count(num_envs=3)
    with pytest.raises(UsageError, match="call reset before the first step"):
        env.step(ACTION)
    with pytest.raises(UsageError, match="a state of 2 envs of Count does not fit 3 envs of Count"):
        env.set_state(Count(num_envs=2).get_state())
    with pytest.raises(UsageError, match="a state with physics is not one of Count"):
        env.set_state({"physics": 1})
