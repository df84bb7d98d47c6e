"""Running statistics against the statistics of everything seen so far."""

import torch

from proxima.algo.normalize import ObsNormalizer, RewardNormalizer, RunningMoments


def test_moments_of_batches_are_the_moments_of_all() -> None:
    torch.manual_seed(0)
    moments, seen = RunningMoments((3,)), []
    for size in (5, 1, 100):
        batch = torch.randn(size, 3) * 4 + 100
        moments.update(batch)
        seen.append(batch.double())
        everything = torch.cat(seen)
        torch.testing.assert_close(moments.mean, everything.mean(0))
        torch.testing.assert_close(moments.var, everything.var(0, correction=0))
    assert float(moments.count) == 106


def test_obs_are_untouched_before_the_first_update_and_white_after() -> None:
    torch.manual_seed(0)
    normalizer = ObsNormalizer({"a.b": (2,)}, clip=5.0)
    obs = {"a.b": torch.randn(1000, 2) * 30 + 7, "image": torch.zeros(1000, 1, dtype=torch.uint8)}
    assert torch.equal(normalizer(obs)["a.b"], obs["a.b"].clamp(-5, 5))
    normalizer.update(obs)
    white = normalizer(obs)["a.b"]
    torch.testing.assert_close(white.mean(0), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(white.std(0), torch.ones(2), atol=1e-2, rtol=0)
    assert normalizer(obs)["image"] is obs["image"]
    assert float(normalizer({"a.b": torch.full((1, 2), 1e9)})["a.b"].max()) == 5.0


def test_obs_statistics_travel_in_the_state_dict() -> None:
    one, two = ObsNormalizer({"obs": (2,)}, clip=10.0), ObsNormalizer({"obs": (2,)}, clip=10.0)
    one.update({"obs": torch.randn(50, 2) * 3})
    two.load_state_dict(one.state_dict())
    x = {"obs": torch.randn(4, 2)}
    assert torch.equal(one(x)["obs"], two(x)["obs"])


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return() -> None:
    torch.manual_seed(0)
    reward, ended, gamma = torch.rand(30, 2) + 1, torch.rand(30, 2) < 0.2, 0.9
    normalizer = RewardNormalizer(2, clip=10.0)
    normalizer.update(reward[:11], ended=ended[:11], discount=gamma)
    normalizer.update(reward[11:], ended=ended[11:], discount=gamma)
    scaled = normalizer(reward[11:])
    # By hand: the running return of each env, over both calls, zeroed after an end.
    returns, running = [], [0.0, 0.0]
    for t in range(30):
        for n in range(2):
            running[n] = gamma * running[n] + float(reward[t, n])
            returns.append(running[n])
            if ended[t, n]:
                running[n] = 0.0
    std = torch.tensor(returns, dtype=torch.float64).std(correction=0)
    torch.testing.assert_close(scaled, (reward[11:].double() / std).float(), rtol=1e-5, atol=1e-6)


def test_held_rewards_are_as_far_apart_as_the_earlier_one_took() -> None:
    torch.manual_seed(0)
    reward, ended, gamma = torch.rand(30, 2) + 1, torch.rand(30, 2) < 0.2, 0.9
    duration = torch.randint(1, 5, (30, 2))
    normalizer = RewardNormalizer(2, clip=10.0)
    normalizer.update(reward[:11], ended=ended[:11], discount=gamma ** duration[:11])
    normalizer.update(reward[11:], ended=ended[11:], discount=gamma ** duration[11:])
    # By hand: every earlier reward of the episode, discounted by the env steps between the two decisions.
    returns = []
    for n in range(2):
        past: list[tuple[int, float]] = []
        clock = 0
        for t in range(30):
            past.append((clock, float(reward[t, n])))
            returns.append(sum(gamma ** (clock - begun) * r for begun, r in past))
            clock += int(duration[t, n])
            if ended[t, n]:
                past = []
    expected = torch.tensor(returns, dtype=torch.float64).std(correction=0)
    torch.testing.assert_close(normalizer.scale, expected, rtol=1e-6, atol=1e-6)


def test_rewards_are_clipped() -> None:
    normalizer = RewardNormalizer(1, clip=2.0)
    reward = torch.tensor([[0.1], [-0.1], [0.1], [50.0]])
    normalizer.update(reward, ended=torch.ones(4, 1, dtype=torch.bool), discount=0.9)
    assert float(reward.max() / normalizer.scale) > 2.0 == float(normalizer(reward).max())
