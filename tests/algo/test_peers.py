"""Several ranks, each with its part of every minibatch, learn what one rank with all of it learns."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from proxima.algo.normalize import RunningMoments
from proxima.algo.peers import Peers
from proxima.algo.ppo import PPOLearner
from proxima.algo.regression import MuscleLearner, Tuples
from proxima.config import Config, load_config
from proxima.data.batch import Rows
from proxima.data.rollout import Rollout
from proxima.envs.make import make_env
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.muscle_net import MuscleNet
from proxima.nets.spec import Spec
from proxima.training.collector import Collector

COUNTS = (3, 2)  # envs of each rank: not the same
CPU = torch.device("cpu")


class Threads:
    """Ranks as threads of this process, which sum in the same order everywhere."""

    def __init__(self, size: int):
        self._size, self._given = size, [torch.empty(0)] * size
        self._barrier = threading.Barrier(size)

    def peers(self, rank: int, counts: tuple[int, ...] = COUNTS) -> Peers:
        def add(x: Tensor) -> Tensor:
            self._given[rank] = x.clone()
            self._barrier.wait(30)
            x.copy_(sum(self._given[1:], self._given[0]))
            self._barrier.wait(30)
            return x

        return Peers(counts, rank, add)

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """What `work(rank)` returns on every rank."""
        found: list[Any] = [None] * self._size

        def one(rank: int) -> None:
            try:
                found[rank] = work(rank)
            except BaseException as error:
                found[rank] = error
                self._barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self._size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in found:
            if isinstance(result, BaseException):
                raise result
        return found


RECURRENT = {"rnn": "gru", "rnn_size": 8, "hidden_sizes": [8], "bptt_length": 6, "minibatch_size": 5}
CASES: dict[str, dict[str, Any]] = {
    "mlp": {},
    "discrete": {"env": "CartPole-v1"},
    "recurrent, padded": RECURRENT,
    "advantages of the batch": {"normalize_advantage": "batch"},
    "advantages as they are": {"normalize_advantage": "off", "clip_value_loss": True},
    "recomputed, adaptive": {"recompute_advantage": True, "lr_schedule": "adaptive", "desired_kl": 0.001},
    "accumulated": {"gradient_accumulation": 2},
    "stopped by KL": {"target_kl": 1e-5, "learning_rate": 1e-2},
}


def options_of(case: str) -> Config:
    sizes = {"num_envs": sum(COUNTS), "num_steps": 20, "minibatch_size": 25, "update_epochs": 5, "preset": "none"}
    shared = {"env": "Hopper-v5", "hidden_sizes": [8, 8], "compile": "off", "max_episode_steps": 9}
    return load_config(None, sizes | shared | CASES[case])


def make(config: Config, seed: int = 0) -> tuple[Collector, ActorCritic]:
    env = make_env(config.env.env, num_envs=sum(COUNTS), max_episode_steps=config.env.max_episode_steps)
    spec = Spec.from_spaces(env.observation_space, env.action_space)
    torch.manual_seed(seed)
    policy = ActorCritic(spec, config.policy, config.normalize)
    length = config.sequence_length
    return Collector(env, policy, num_steps=20, device=CPU, env_seed=1, seed=2, sequence_length=length), policy


def part_of(rollout: Rollout, collector: Collector, first: int, count: int) -> Rollout:
    """The rollout of some of the envs."""
    block = rollout.to_block()
    columns = slice(first, first + count)
    for group in ("fields", "obs", "aux"):
        block[group] = {name: x[:, columns] for name, x in block[group].items()}
    own = (block["ends"]["env"] >= first) & (block["ends"]["env"] < first + count)
    block["ends"] = {name: x[own] for name, x in block["ends"].items()}
    block["ends"]["env"] = block["ends"]["env"] - first
    block["final_obs"] = {key: x[own] for key, x in block["final_obs"].items()}
    obs = {key: x[0, columns] for key, x in rollout.obs.items()}
    length = 1 if rollout.state is None else -(-rollout.num_steps // len(rollout.state))
    size = 0 if rollout.state is None else rollout.state.shape[-1]
    part = Rollout(
        num_steps=rollout.num_steps,
        num_envs=count,
        obs=obs,
        action=rollout.action[0, columns],
        device=CPU,
        sequence_length=length,
        state_size=size,
    )
    part.put_block(block, 0)
    return part


class Whole(PPOLearner):
    """One rank with all envs, whose minibatches are those of the ranks put together."""

    def minibatches(self, layout: Any) -> Any:
        sizes = [layout._replace(num_envs=count).num_sequences for count in COUNTS]
        parts = [
            list(Peers(COUNTS, rank).minibatches(sizes, self.config.num_updates, fork(self.generator)))
            for rank in range(len(COUNTS))
        ]
        list(Peers(COUNTS).minibatches(sizes, self.config.num_updates, self.generator))  # advances the generator
        first = 0
        rows: list[list[Tensor]] = []
        for count, orders in zip(COUNTS, parts, strict=True):
            own = [order for stack in orders for order in stack]
            rows.append([order // count * sum(COUNTS) + first + order % count for order in own])
            first += count
        for minibatch in zip(*rows, strict=True):
            yield torch.cat(minibatch)[None]


def fork(generator: torch.Generator) -> torch.Generator:
    other = torch.Generator()
    other.set_state(generator.get_state())
    return other


@pytest.mark.parametrize("case", CASES)
def test_ranks_with_parts_of_the_minibatches_equal_one_with_all(case: str) -> None:
    """To 1e-6 after 10 updates and more, with the statistics and decisions of one rank."""
    config = options_of(case)
    collector, policy = make(config)
    whole = Whole(policy, config, device=CPU, seed=5)
    rollouts = [collector.collect()]
    assert rollouts[0].truncated.any(), "a test of nothing"
    parts = [part_of(rollouts[0], collector, first, count) for first, count in ((0, 3), (3, 2))]
    expected = learn(whole, rollouts[0])
    threads = Threads(len(COUNTS))

    policies = [make(config)[1] for _ in COUNTS]

    def work(rank: int) -> tuple[Any, ...]:
        learner = PPOLearner(policies[rank], config, device=CPU, seed=5, peers=threads.peers(rank))
        return learner, *learn(learner, parts[rank])

    found = threads.run(work)
    exact = "accumulated" not in case
    for learner, metrics, first_ratio in found:
        assert first_ratio == 0.0  # its logarithm
        assert int(learner.state.steps) == int(whole.state.steps)
        assert int(whole.state.steps) >= 10 or "KL" in case
        if exact:
            torch.testing.assert_close(learner.state.param, whole.state.param, rtol=0, atol=1e-6)
            assert metrics == pytest.approx(expected[0], rel=1e-4, abs=1e-6)
        ours, theirs = learner.policy.state_dict(), policy.state_dict()
        for name, x in ours.items():
            if "moments" in name or "return_scale" in name:
                torch.testing.assert_close(x, theirs[name], rtol=1e-9, atol=1e-12)
        assert torch.equal(learner.generator.get_state(), whole.generator.get_state())
    one, two = found  # their rounding may differ in a norm; the trainer makes them equal after every iteration
    torch.testing.assert_close(one[0].state.param, two[0].state.param, rtol=0, atol=1e-7)
    assert one[1] == pytest.approx(two[1], rel=1e-6)
    assert torch.equal(one[0].learning_rate, two[0].learning_rate)


def learn(learner: PPOLearner, rollout: Rollout) -> tuple[dict[str, float], float]:
    batch = learner.prepare(rollout)
    with torch.no_grad():
        minibatch = learner.gather(batch.rows, torch.arange(learner.layout.num_sequences))
        now = learner.policy(minibatch.obs, minibatch.state, minibatch.start)[0].log_prob(minibatch.action)
        weight = 1.0 if minibatch.weight is None else minibatch.weight
        first = float(((now - minibatch.old_log_prob).abs() * weight).max())
    metrics = learner.update(batch)
    learner.update_normalizer(rollout)
    return metrics, first


def test_the_muscle_network_learns_from_the_tuples_of_all_ranks() -> None:
    config = load_config(None, {"num_envs": 5, "muscle_batch_size": 20, "muscle_num_epochs": 3, "compile": "off"})
    shape = {"joint": [0, 0, 1], "muscle": [0, 1, 1], "num_joints": 2, "num_muscles": 2, "hidden_sizes": [8, 8]}
    torch.manual_seed(0)
    tuples = Tuples(200 * torch.randn(50, 3), 100 * torch.randn(50, 2))
    threads = Threads(2)

    nets = [net(shape), net(shape)]

    def work(rank: int) -> tuple[dict[str, float], Tensor]:
        learner = MuscleLearner(nets[rank], config, device=CPU, seed=1, num_iterations=1, peers=threads.peers(rank))
        own = slice(0, 30) if rank == 0 else slice(30, 50)
        return learner.update(Tuples(*(x[own] for x in tuples))), learner.state.param

    (one, weights), (two, others) = threads.run(work)
    assert one == pytest.approx(two)
    torch.testing.assert_close(weights, others, rtol=0, atol=1e-7)
    alone = MuscleLearner(net(shape), config, device=CPU, seed=1, num_iterations=1)
    before = alone._errors(tuples)
    assert one["muscle_torque_error"] + one["muscle_improvement"] == pytest.approx(before, rel=1e-5)


def net(shape: dict[str, Any]) -> MuscleNet:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return MuscleNet(**shape)


def test_moments_of_uneven_batches() -> None:
    data = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)) * 3 + 1
    whole, threads = RunningMoments((4,)), Threads(2)
    whole.update(data[:5])
    whole.update(data[5:])

    def work(rank: int) -> RunningMoments:
        moments, add = RunningMoments((4,)), threads.peers(rank).sum
        moments.update(data[:3] if rank == 0 else data[3:5], add)
        moments.update(data[5:6] if rank == 0 else data[6:], add)
        return moments

    for moments in threads.run(work):
        for name in ("mean", "var", "count"):
            torch.testing.assert_close(getattr(moments, name), getattr(whole, name), rtol=1e-12, atol=1e-12)


def test_advantages_are_normalised_over_the_parts_of_all_ranks_however_they_are_stacked() -> None:
    """One rank's minibatches have one size, the other's two: sums must still be those of the same minibatch."""
    counts, steps = (2, 1), 20
    sizes = {"num_envs": 3, "num_steps": steps, "minibatch_size": 4, "gradient_accumulation": 2}
    shared = {"env": "Hopper-v5", "hidden_sizes": [8], "compile": "off", "preset": "none"}
    config = load_config(None, sizes | shared)
    threads, policies = Threads(2), [make(config)[1] for _ in counts]
    advantage = torch.randn(3 * steps, generator=torch.Generator().manual_seed(0))

    def work(rank: int) -> tuple[list[Tensor], Tensor]:
        learner = PPOLearner(policies[rank], config, device=CPU, seed=5, peers=threads.peers(rank, counts))
        own = advantage[:40] if rank == 0 else advantage[40:]
        rows = Rows(None, *[own] * 6)._replace(mirrored=None, weight=None)  # type: ignore[arg-type]
        orders = list(learner.minibatches(learner.layout))
        return orders, learner._normalized(rows, orders).advantage

    found = threads.run(work)
    assert [len(orders) for orders, _ in found] == [1, 2], "a test of nothing"
    parts: list[list[Tensor]] = []
    for orders, normalized in found:
        minibatches = [order for stack in orders for order in stack]
        parts.append([normalized[part] for order in minibatches for part in order.tensor_split(2)])
    for one, two in zip(*parts, strict=True):
        both = torch.cat((one, two))
        assert float(both.mean()) == pytest.approx(0.0, abs=1e-5)
        assert float(both.std(correction=0)) == pytest.approx(1.0, abs=1e-4)
