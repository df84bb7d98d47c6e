"""Advantages against computations by hand and by brute force."""

import torch

from proxima.algo.gae import gae, next_values


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None]


def flags(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool)[:, None]


def test_by_hand_without_ends() -> None:
    advantage = gae(
        column(1.0, 2.0),
        column(0.5, 0.25),
        column(0.25, 4.0),
        terminated=flags(0, 0),
        ended=flags(0, 0),
        discount=0.5,
        lambda_=0.5,
    )
    last = 2.0 + 0.5 * 4.0 - 0.25
    first = 1.0 + 0.5 * 0.25 - 0.5 + 0.5 * 0.5 * last
    assert advantage.flatten().tolist() == [first, last]


def test_termination_ignores_the_next_value_and_truncation_uses_it() -> None:
    def first(terminated: int) -> float:
        advantage = gae(
            column(1.0, 100.0),
            column(0.5, 7.0),
            column(8.0, 0.0),
            terminated=flags(terminated, 0),
            ended=flags(1, 0),
            discount=0.5,
            lambda_=1.0,
        )
        return float(advantage[0])

    assert first(1) == 1.0 - 0.5
    assert first(0) == 1.0 + 0.5 * 8.0 - 0.5


def test_nothing_flows_back_over_an_end() -> None:
    def first(later_reward: float) -> float:
        reward = column(1.0, later_reward)
        zeros = column(0.0, 0.0)
        ends = flags(1, 0)
        return float(gae(reward, zeros, zeros, terminated=ends, ended=ends, discount=0.9, lambda_=0.9)[0])

    assert first(0.0) == first(1e6)


def test_durations_by_hand() -> None:
    discount = 0.9 ** column(1.0, 3.0)
    advantage = gae(
        column(1.0, 2.0),
        column(0.5, 0.25),
        column(0.25, 4.0),
        terminated=flags(0, 0),
        ended=flags(0, 0),
        discount=discount,
        lambda_=0.8,
    )
    last = 2.0 + 0.9**3 * 4.0 - 0.25
    first = 1.0 + 0.9 * 0.25 - 0.5 + 0.9 * 0.8 * last
    torch.testing.assert_close(advantage.flatten(), torch.tensor([first, last]))


def test_lambda_one_is_the_discounted_return_of_random_episodes() -> None:
    torch.manual_seed(0)
    steps, envs, gamma = 40, 5, 0.97
    reward, value, following = (torch.randn(steps, envs, dtype=torch.float64) for _ in range(3))
    terminated, truncated = torch.rand(steps, envs) < 0.1, torch.rand(steps, envs) < 0.1
    truncated &= ~terminated
    ended = terminated | truncated
    # V(s_{t+1}) is the next row's value but at the ends of episodes and of the rollout.
    inner = ~ended
    inner[-1] = False
    following = torch.where(inner, torch.cat((value[1:], value[:1])), following)
    advantage = gae(reward, value, following, terminated=terminated, ended=ended, discount=gamma, lambda_=1.0)
    for n in range(envs):
        for t in range(steps):
            total, weight = 0.0, 1.0
            for k in range(t, steps):
                total += weight * float(reward[k, n])
                weight *= gamma
                if ended[k, n] or k == steps - 1:
                    total += 0.0 if terminated[k, n] else weight * float(following[k, n])
                    break
            assert abs(float(advantage[t, n]) - (total - float(value[t, n]))) < 1e-9


def test_held_actions_have_the_discounted_returns_of_their_single_steps() -> None:
    """A random semi-Markov process, written out step by step: lambda 1 gives its returns, whatever the durations."""
    torch.manual_seed(0)
    decisions, envs, gamma = 25, 4, 0.9
    duration = torch.randint(1, 6, (decisions, envs))
    single = torch.randn(decisions, envs, 5, dtype=torch.float64)  # the rewards of a hold; those beyond it do not count
    value, following = (torch.randn(decisions, envs, dtype=torch.float64) for _ in range(2))
    terminated, truncated = torch.rand(decisions, envs) < 0.1, torch.rand(decisions, envs) < 0.1
    truncated &= ~terminated
    ended = terminated | truncated
    inner = ~ended
    inner[-1] = False
    following = torch.where(inner, torch.cat((value[1:], value[:1])), following)

    weight = gamma ** torch.arange(5, dtype=torch.float64)
    taken = torch.arange(5) < duration[..., None]
    advantage = gae(
        (single * weight * taken).sum(-1),
        value,
        following,
        terminated=terminated,
        ended=ended,
        discount=gamma ** duration.double(),
        lambda_=1.0,
    )
    for n in range(envs):
        for t in range(decisions):
            total, clock = 0.0, 0
            for k in range(t, decisions):
                for i in range(int(duration[k, n])):
                    total += gamma**clock * float(single[k, n, i])
                    clock += 1
                if ended[k, n] or k == decisions - 1:
                    total += 0.0 if terminated[k, n] else gamma**clock * float(following[k, n])
                    break
            assert abs(float(advantage[t, n]) - (total - float(value[t, n]))) < 1e-9


def test_next_values_put_final_observations_in_place() -> None:
    value = torch.arange(6.0).view(3, 2)
    following = next_values(
        value, torch.tensor([60.0, 70.0]), torch.tensor([-1.0]), torch.tensor([1]), torch.tensor([1])
    )
    assert following.tolist() == [[2.0, 3.0], [4.0, -1.0], [60.0, 70.0]]
