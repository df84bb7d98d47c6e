"""Envs on tensors: the same on every back end, exact after a restore, with episode statistics."""

import pytest
import torch

from proxima.envs.hashed_random import hash32
from proxima.envs.make import make_env
from proxima.errors import UsageError
from tests.envs.synthetic_quadruped import SYNTHETIC

QUADRUPED, RECALL = SYNTHETIC, "proxima/Recall-v0"


def actions(env: object, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return 2.0 * torch.rand(count, env.num_envs, 12, generator=generator) - 1.0  # type: ignore[attr-defined]


@pytest.mark.slow
def test_batch_sync_and_async_give_the_same_bits() -> None:
    runs = []
    for mode in ("batch", "sync", "async"):
        env = make_env(QUADRUPED, num_envs=3, mode=mode, spread_episodes=True, max_episode_steps=30)
        env.reset(seed=7)
        rows = []
        for action in actions(env, 70):
            step = env.step(action)
            seen = [step.obs[key].flatten() for key in sorted(step.obs)]
            if step.final_obs is not None:
                seen += [step.final_obs[key][step.ended].flatten() for key in sorted(step.obs)]
            rows.append(torch.cat([*seen, step.reward, step.terminated, step.truncated]).clone())
        env.close()
        runs.append(rows)
    for others in zip(*runs, strict=True):
        assert all(torch.equal(others[0], other) for other in others[1:])


def test_the_spaces_of_the_quadruped() -> None:
    env = make_env(QUADRUPED, num_envs=2)
    obs = env.reset(seed=0)
    assert {key: tuple(x.shape) for key, x in obs.items()} == {
        "proprioception": (2, 48),
        "scandots": (2, 132),
        "commands": (2, 3),
    }
    assert env.action_space.shape == (12,) and env.step_seconds == 0.02


@pytest.mark.parametrize("env_id", [QUADRUPED, RECALL])
def test_a_state_goes_on_exactly(env_id: str) -> None:
    env, other = (make_env(env_id, num_envs=3, max_episode_steps=9) for _ in range(2))
    env.reset(seed=1)
    moves = actions(env, 30) if env_id == QUADRUPED else torch.ones(30, 3, dtype=torch.long)
    for move in moves[:10]:
        env.step(move)
    obs = other.set_state(env.get_state())  # type: ignore[attr-defined]
    for move in moves[10:]:
        one, two = env.step(move), other.step(move)
        assert all(torch.equal(one.obs[key], two.obs[key]) for key in obs)
        assert torch.equal(one.reward, two.reward) and torch.equal(one.ended, two.ended)
    with pytest.raises(UsageError, match="does not fit 2 envs"):
        make_env(env_id, num_envs=2).set_state(env.get_state())  # type: ignore[attr-defined]


def test_recall_pays_for_the_first_sign_after_the_delay() -> None:
    env = make_env(RECALL, num_envs=64, env_kwargs={"delay": 5})
    obs = env.reset(seed=3)["obs"]
    for episode in range(3):
        cue = obs[:, 0]
        assert obs[:, 1].all() and 10 < int((cue > 0).sum()) < 54
        for t in range(7):
            right = torch.arange(64) % 2 == 0
            step = env.step(torch.where(right, cue > 0, cue < 0).long())
            assert bool(step.ended.all()) == (t == 6)
            assert torch.equal(step.reward > 0, right if t == 6 else torch.zeros(64, dtype=torch.bool))
            obs = step.obs["obs"]
            assert t == 6 or bool((obs[:, 2] > 0).all()) == (t == 5)
        assert torch.equal(step.episodes.return_, right.double()) and (step.episodes.length == 7).all(), episode


def test_random_numbers_are_spread_evenly() -> None:
    bits = hash32(torch.arange(100_000))
    assert len(bits.unique()) == 100_000 and int(bits.min()) >= 0 and int(bits.max()) < 2**32
    assert float((bits / 2**32).mean()) == pytest.approx(0.5, abs=0.01)
    env = make_env(QUADRUPED, num_envs=500)
    env.reset(seed=0)
    drawn = env.random(200)  # type: ignore[attr-defined]
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(torch.corrcoef(drawn.t()).triu(1).abs().max()) < 0.3


def test_velocities_are_hidden() -> None:
    assert make_env("proxima/CartPoleHidden-v1", num_envs=2).reset(seed=0)["obs"].shape == (2, 2)
    assert make_env("proxima/PendulumHidden-v1", num_envs=2).reset(seed=0)["obs"].shape == (2, 2)


def test_bad_options_are_named() -> None:
    with pytest.raises(UsageError, match="num_envs is 0"):
        make_env(RECALL, num_envs=0)
    with pytest.raises(UsageError, match="delay is -1, but it must be >= 0"):
        make_env(RECALL, env_kwargs={"delay": -1})
    with pytest.raises(UsageError, match=r"cannot build env 'proxima/Recall-v0': .*'length'"):
        make_env(RECALL, env_kwargs={"length": 3})


def test_every_back_end_knows_how_long_a_step_takes() -> None:
    for mode in ("batch", "sync"):
        env = make_env(SYNTHETIC, num_envs=1, mode=mode)
        assert env.step_seconds == 0.02
        env.close()
