"""The replay buffer against a plain list of everything that happened."""

from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from proxima.data.replay import Replay, Transitions
from proxima.data.rollout import Rollout
from proxima.errors import UsageError

FRAMES, ENVS, STEPS, GAMMA = 4, 3, 7, 0.9
IMAGE = (2, 3, 3)


@dataclass
class Happened:
    """One transition as a loop would keep it, with whole observations."""

    obs: dict[str, Tensor]
    action: Tensor
    reward: Tensor
    terminated: bool
    truncated: bool
    discount: Tensor
    next_obs: dict[str, Tensor]


class World:
    """Random episodes of several envs, written into rollouts, and remembered in full."""

    def __init__(self, *, held: bool = True, seed: int = 0):
        self.generator, self.held = torch.Generator().manual_seed(seed), held
        self.log: list[list[Happened]] = []
        """By row, then env."""
        self.stacks = [self._new_stack() for _ in range(ENVS)]
        self.state = self._states(ENVS)

    def _frame(self) -> Tensor:
        return torch.randint(0, 256, IMAGE, dtype=torch.uint8, generator=self.generator)

    def _states(self, count: int) -> Tensor:
        return torch.randn(count, 5, generator=self.generator)

    def _new_stack(self) -> deque[Tensor]:
        return deque([self._frame()] * FRAMES, maxlen=FRAMES)

    def observe(self, env: int) -> dict[str, Tensor]:
        return {"image": torch.cat(list(self.stacks[env])), "state": self.state[env].clone()}

    def newest(self) -> dict[str, Tensor]:
        return {"image": torch.stack([stack[-1] for stack in self.stacks]), "state": self.state}

    def empty(self, steps: int = STEPS) -> Rollout:
        action = torch.zeros(ENVS, dtype=torch.long)
        return Rollout(num_steps=steps, num_envs=ENVS, obs=self.newest(), action=action, device=torch.device("cpu"))

    def play(self, steps: int = STEPS) -> Rollout:
        rollout = self.empty(steps)
        if self.held:
            rollout.duration = torch.randint(1, 4, (steps, ENVS), generator=self.generator)
        chance = torch.rand(steps, ENVS, generator=self.generator)
        rollout.terminated[:] = chance < 0.15
        rollout.truncated[:] = (chance > 0.8) | (chance < 0.05)  # both, now and then
        rollout.reward[:] = torch.randn(steps, ENVS, generator=self.generator)
        rollout.action[:] = torch.randint(0, 6, (steps, ENVS), generator=self.generator)
        for t in range(steps):
            for key, x in self.newest().items():
                rollout.obs[key][t] = x
            self.log.append([self._step(rollout, t, env) for env in range(ENVS)])
        for key, x in self.newest().items():
            rollout.obs[key][steps] = x
        return rollout

    def _step(self, rollout: Rollout, t: int, env: int) -> Happened:
        before = self.observe(env)
        self.stacks[env].append(self._frame())
        self.state[env] = self._states(1)[0]
        after = self.observe(env)
        terminated, truncated = bool(rollout.terminated[t, env]), bool(rollout.truncated[t, env])
        if truncated and not terminated:
            final = {"image": self.stacks[env][-1][None], "state": self.state[env : env + 1].clone()}
            rollout.add_final(torch.tensor([t]), torch.tensor([env]), final)
        if terminated or truncated:
            self.stacks[env] = self._new_stack()
            self.state[env] = self._states(1)[0]
        duration = torch.tensor(1.0) if rollout.duration is None else rollout.duration[t, env].float()
        reward, action = rollout.reward[t, env].clone(), rollout.action[t, env].clone()
        return Happened(before, action, reward, terminated, truncated, GAMMA**duration, after)

    def expected(self, row: int, env: int, return_steps: int) -> dict[str, Any]:
        """A transition of several steps, step by step."""
        return_, discount = torch.tensor(0.0), torch.tensor(1.0)
        for t in range(row, row + return_steps):
            one = self.log[t][env]
            return_ = return_ + discount * one.reward
            discount = discount * one.discount
            if one.terminated:
                discount = torch.tensor(0.0)
            if one.terminated or one.truncated:
                break
        first = self.log[row][env]
        return {
            "obs": first.obs,
            "action": first.action,
            "return_": return_,
            "discount": discount,
            "next_obs": one.next_obs,
        }


def make(world: World, *, buffer_size: int = 20 * ENVS, return_steps: int = 1, margin: int = STEPS) -> Replay:
    frames = {"image": FRAMES, "state": 1}
    return Replay(
        world.empty(), buffer_size=buffer_size, margin=margin, frames=frames, return_steps=return_steps, gamma=GAMMA
    )


def everything(replay: Replay) -> Transitions:
    return replay.gather(torch.arange(replay.size))


def equal(one: Transitions, two: Transitions) -> bool:
    """Bit for bit, wherever it means something."""
    bootstrapped = one.discount > 0
    same = all(torch.equal(one.obs[key], two.obs[key]) for key in one.obs)
    same &= all(torch.equal(one.next_obs[key][bootstrapped], two.next_obs[key][bootstrapped]) for key in one.obs)
    return same and all(torch.equal(getattr(one, x), getattr(two, x)) for x in ("action", "return_", "discount"))


def check_against_the_log(replay: Replay, world: World) -> None:
    found = everything(replay)
    oldest, steps = max(0, len(world.log) - replay.capacity), replay.return_steps
    rows = range(oldest, len(world.log) - steps + 1)
    assert replay.size == len(rows) * ENVS
    for i, (row, env) in enumerate((row, env) for row in rows for env in range(ENVS)):
        expected = world.expected(row, env, steps)
        for name in ("action", "return_", "discount"):
            assert torch.equal(getattr(found, name)[i], expected[name]), (name, row, env)
        for key, x in expected["obs"].items():
            assert torch.equal(found.obs[key][i], x), (key, row, env)
            if expected["discount"] > 0:
                assert torch.equal(found.next_obs[key][i], expected["next_obs"][key]), (key, row, env)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("return_steps", [1, 3])
def test_transitions_are_those_that_happened(return_steps: int, held: bool) -> None:
    world = World(held=held)
    replay = make(world, return_steps=return_steps)
    for _ in range(14):  # several times round the ring
        replay.add(world.play())
        check_against_the_log(replay, world)


def test_more_truncated_episodes_than_there_was_room_for() -> None:
    world = World()
    replay = make(world, buffer_size=600 * ENVS, return_steps=3)
    room = len(replay.final_obs["state"])
    for _ in range(120):
        replay.add(world.play())
    assert room < len(replay.final_obs["state"]) < 700
    check_against_the_log(replay, world)


def test_plain_discount_of_held_actions() -> None:
    world = World()
    replay = Replay(world.empty(), buffer_size=60, margin=STEPS, frames={"image": FRAMES}, gamma=GAMMA, smdp=False)
    replay.add(world.play())
    discount = everything(replay).discount
    assert torch.equal(discount[discount > 0].unique(), torch.tensor([GAMMA]))


def test_rewards_are_scaled_one_by_one() -> None:
    """Not the n-step return: a clipped reward must stay clipped in it."""

    def scaled(reward: Tensor) -> Tensor:
        return (3 * reward).clamp(-1, 1)

    world, twin = World(), World()
    plain, other = make(world, return_steps=3), make(twin, return_steps=3)
    for _ in range(6):
        rollout = twin.play()
        rollout.reward[:] = scaled(rollout.reward)
        plain.add(world.play())
        other.add(rollout)
    assert equal(plain.gather(torch.arange(plain.size), scaled), everything(other))


@pytest.mark.parametrize("since", [0, 9, 30, 41, 42])
def test_rewards_since_a_row(since: int) -> None:
    """In a replay that has wrapped: from the oldest row that is left."""
    world = World()
    replay = make(world)
    rollouts = [world.play() for _ in range(6)]
    for rollout in rollouts:
        replay.add(rollout)
    reward, ended, duration = replay.rewards_since(since)
    first = max(since, 42 - 20)
    assert torch.equal(reward, torch.cat([x.reward for x in rollouts])[first:])
    assert torch.equal(ended, torch.cat([x.ended for x in rollouts])[first:])
    assert torch.equal(duration.long(), torch.cat([x.duration for x in rollouts if x.duration is not None])[first:])


def test_every_transition_is_as_likely_as_the_others() -> None:
    world = World()
    replay = make(world, return_steps=3)
    for _ in range(5):
        replay.add(world.play())
    draws = 200 * replay.size
    counts = replay.draw(draws, torch.Generator().manual_seed(0)).bincount(minlength=replay.size)
    # Chi squared: the mean is the degrees of freedom, and five deviations above it never happen.
    chi = float(((counts - 200.0) ** 2 / 200.0).sum())
    freedom = replay.size - 1
    assert len(counts) == replay.size and int(counts.min()) > 0 and chi < freedom + 5 * (2 * freedom) ** 0.5


def test_too_few_steps_are_no_transitions_yet() -> None:
    world = World()
    replay = make(world, return_steps=3)
    replay.add(world.play(2))
    assert replay.size == 0
    replay.add(world.play(1))
    assert replay.size == ENVS


@pytest.mark.parametrize("before", [2, 9])
def test_a_state_of_an_earlier_mark_goes_on_bit_for_bit(before: int) -> None:
    world = World()
    one = make(world, return_steps=3)
    for _ in range(before):
        one.add(world.play())
    mark, then = one.end, everything(one)
    ahead = [world.play(), world.play()]
    one.add(ahead[0])
    two = make(world, return_steps=3)
    two.load_state(one.state_at(mark))
    assert two.size == len(then.action) and equal(then, everything(two))
    two.add(ahead[0])
    for rollout in (ahead[1], *(world.play() for _ in range(6))):
        assert equal(everything(one), everything(two))
        one.add(rollout)
        two.add(rollout)
    check_against_the_log(two, world)
    index = [replay.draw(16, torch.Generator().manual_seed(2)) for replay in (one, two)]
    assert torch.equal(*index) and equal(*(r.gather(i) for r, i in zip((one, two), index, strict=True)))


def test_a_state_may_be_loaded_into_a_buffer_of_another_size() -> None:
    world = World()
    one = make(world)
    for _ in range(9):
        one.add(world.play())
    smaller, larger = make(world, buffer_size=11 * ENVS), make(world, buffer_size=200 * ENVS)
    for other in (smaller, larger):
        other.load_state(one.state_at(one.end))
    assert (smaller.size, larger.size) == (11 * ENVS, 20 * ENVS)
    check_against_the_log(smaller, world)
    assert equal(everything(larger), everything(one))


def test_a_state_of_an_older_version_is_read() -> None:
    world = World()
    one, two = make(world), make(world)
    one.add(world.play())
    state = one.state_at(one.end)
    for name, prefix in (("obs", "obs "), ("final_obs", "final ")):
        state |= {prefix + key: x for key, x in state.pop(name).items()}
    two.load_state(state)
    assert equal(everything(one), everything(two))


def test_a_state_without_one_of_the_keys_is_refused_in_one_sentence() -> None:
    """As those of masked envs that were saved before masks were stored."""
    world = World()
    replay = make(world)
    replay.add(world.play())
    state = replay.state_at(replay.end)
    gone = next(iter(state["obs"]))
    state["obs"] = {key: x for key, x in state["obs"].items() if key != gone}
    with pytest.raises(UsageError, match=f"the saved replay buffer has no observation '{gone}', which the env has now"):
        replay.load_state(state)


def test_a_mark_that_is_too_old_is_refused() -> None:
    world = World()
    replay = make(world)
    for _ in range(3):
        replay.add(world.play())
    with pytest.raises(ValueError, match="not among the last 7 rows"):
        replay.state_at(STEPS)


def test_episodes_that_do_not_go_on_end_in_a_truncation() -> None:
    world = World()
    replay = make(world, return_steps=3)
    replay.add(world.play())
    for env in range(ENVS):
        world.log[-1][env].truncated = True
    replay.cut_episodes()
    other = World(seed=1)  # other episodes, which begin anew
    other.log = world.log
    replay.add(other.play())
    check_against_the_log(replay, other)


def test_each_frame_is_kept_once() -> None:
    world = World()
    replay = make(world, buffer_size=1000 * ENVS)
    frame, state = 2 * 3 * 3, 5 * 4
    rows = 1000 + FRAMES - 1 + STEPS + 1
    others = 8 + 4 + 1 + 4 + 8 + 1  # action, reward, terminated, duration, final, age
    assert replay.obs["image"].dtype == torch.uint8
    stored = sum(x.nbytes for x in tree_leaves(vars(replay)) if isinstance(x, Tensor))
    assert stored == rows * ENVS * (frame + state + others) + 64 * (frame + state)


def test_a_buffer_that_does_not_fit_names_its_size() -> None:
    with pytest.raises(UsageError, match=r"buffer_size of 3000000000000 takes .* bytes"):
        make(World(), buffer_size=3_000_000_000_000)
    with pytest.raises(UsageError, match="buffer_size is 2, but it must hold at least 1 transitions of each of 3"):
        make(World(), buffer_size=2)
