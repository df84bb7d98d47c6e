import pytest
import torch

from proxima.data.batch import SequenceLayout, minibatch_indices
from proxima.data.rollout import Rollout


def make(num_envs: int = 2) -> Rollout:
    obs = {"obs": torch.zeros(num_envs, 3, dtype=torch.float64)}
    obs["image"] = torch.zeros(num_envs, 4, 4, 1, dtype=torch.uint8)
    action = torch.zeros(num_envs, 1)
    return Rollout(num_steps=5, num_envs=num_envs, obs=obs, action=action, device=torch.device("cpu"))


def test_floats_are_stored_in_single_precision_and_images_as_bytes() -> None:
    rollout = make()
    assert rollout.obs["obs"].dtype == torch.float32 and rollout.obs["image"].dtype == torch.uint8
    assert rollout.obs["obs"].shape == (6, 2, 3) and rollout.size == 10


def test_clear_forgets_what_ended() -> None:
    rollout = make()
    rollout.terminated[0, 0] = rollout.truncated[1, 1] = True
    rollout.add_final(torch.tensor([1]), torch.tensor([1]), {key: x[0, 1:] for key, x in rollout.obs.items()})
    rollout.clear()
    assert not rollout.ended.any() and len(rollout.final_time) == len(rollout.final_env) == 0


def test_final_observations_keep_their_place() -> None:
    rollout = make()
    final = {"obs": torch.tensor([[0.0] * 3, [1.0] * 3]), "image": torch.ones(2, 4, 4, 1, dtype=torch.uint8)}
    rollout.add_final(torch.tensor([0]), torch.tensor([1]), {key: x[1:] for key, x in final.items()})
    rollout.add_final(torch.tensor([3, 3]), torch.tensor([0, 1]), final)
    assert (rollout.final_time.tolist(), rollout.final_env.tolist()) == ([0, 3, 3], [1, 0, 1])
    assert rollout.bootstrap_obs()["obs"][2:, 0].tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 9])
def test_sequences_hold_the_steps_of_one_env_in_order(length: int) -> None:
    steps, envs = 7, 2
    layout = SequenceLayout(steps, envs, min(length, steps))
    order = torch.arange(layout.num_sequences)
    rows, weight = layout.rows(order).view(layout.length, -1), layout.weight(order)
    kept = torch.ones_like(rows, dtype=torch.bool) if weight is None else weight.view_as(rows).bool()
    assert (weight is None) == (steps % layout.length == 0)
    assert rows[kept].sort().values.tolist() == list(range(steps * envs))
    for q in range(layout.num_sequences):
        column = rows[:, q][kept[:, q]]
        assert torch.equal(column, column[0] + envs * torch.arange(len(column)))
        assert int(column[0]) == q // envs * layout.length * envs + q % envs
    back = torch.zeros(steps * envs)
    layout.scatter(order, rows.flatten() + 100.0 * ~kept.flatten(), back)
    assert back.tolist() == list(range(steps * envs))


def test_blocks_of_the_same_steps_make_a_rollout() -> None:
    one, two = make(), make()
    for number, rollout in enumerate((one, two)):
        for x in (*rollout.obs.values(), rollout.action, rollout.reward):
            x.copy_(torch.arange(x.numel()).view_as(x) + 100 * number)
        rollout.truncated[2 + number, number] = True
        final = {key: x[0, :1] + 7 for key, x in rollout.obs.items()}
        rollout.add_final(torch.tensor([2 + number]), torch.tensor([number]), final)
    two.duration = torch.full((5, 2), 3)
    joined = make(num_envs=4)
    joined.put_block(two.to_block(), 2)  # in any order
    joined.put_block(one.to_block(), 0)
    assert joined.num_envs == 4 and joined.size == 20
    for name in ("action", "reward", "terminated", "truncated"):
        assert torch.equal(getattr(joined, name), torch.cat((getattr(one, name), getattr(two, name)), 1))
    assert joined.duration is not None and joined.duration[0].tolist() == [1, 1, 3, 3]
    assert (joined.final_time.tolist(), joined.final_env.tolist()) == ([3, 2], [3, 0])
    ended = joined.truncated.nonzero()
    assert torch.equal(ended.flip(0), torch.stack((joined.final_time, joined.final_env), 1))
    expected = torch.cat((one.obs["obs"][-1], two.obs["obs"][-1], two.obs["obs"][0, :1] + 7, one.obs["obs"][0, :1] + 7))
    assert torch.equal(joined.bootstrap_obs()["obs"], expected)


def test_episodes_begin_after_those_that_ended() -> None:
    rollout = make()
    rollout.terminated[1, 0] = rollout.truncated[4, 1] = True
    assert rollout.start.nonzero().tolist() == [[2, 0]]


@pytest.mark.parametrize(("size", "parts"), [(64, 4), (10, 3), (7, 7)])
def test_minibatches_hold_every_index_once(size: int, parts: int) -> None:
    orders = list(minibatch_indices(size, parts, torch.Generator().manual_seed(0)))
    chunks = [row for order in orders for row in order]
    assert len(orders) <= 2 and len(chunks) == parts
    assert torch.cat(chunks).sort().values.tolist() == list(range(size))
    assert max(map(len, chunks)) - min(map(len, chunks)) <= 1
