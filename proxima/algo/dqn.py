"""DQN (Mnih et al. 2015): targets from a replay buffer, and the loss of a minibatch.

The target network's values are computed for several minibatches at once; for images on a CPU they are cached until the
target network changes. Metrics stay on the device until `metrics` is called.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from proxima.algo.extra_loss import ExtraLoss, example_obs
from proxima.algo.learner import Learner, Weights
from proxima.algo.normalize import RewardNormalizer
from proxima.config import Config
from proxima.data.known_values import KnownValues
from proxima.data.replay import Replay, Transitions
from proxima.masks import ACTION_MASK

if TYPE_CHECKING:
    from proxima.nets.q_network import QNetwork

Tensors = dict[str, Tensor]
# Limits of what is gathered at a time: minibatches, and bytes of observations.
_MOST_MINIBATCHES, _CPU_BYTES, _GPU_BYTES = 64, 2**24, 2**28


class Minibatch(NamedTuple):
    """Inputs of the loss, `[B]` each; the last four are for the targets of double Q."""

    obs: Tensors  # normalised
    action: Tensor
    target: Tensor | None  # regression target of Q; None with double Q, whose targets depend on the current weights
    return_: Tensor | None = None
    discount: Tensor | None = None
    target_q: Tensor | None = None  # [B, A], the target network's Q of the next observation
    next_obs: Tensors | None = None


class DQNLearner(Learner):
    """DQN's update of one policy."""

    loss_terms: tuple[str, ...] = ("q_loss", "q_mean", "td_error")

    def __init__(self, policy: "QNetwork", config: Config, *, device: torch.device, seed: int):
        self.policy, self.dqn, self.algorithm = policy, config.dqn, config.algorithm
        if (name := config.algorithm.extra_loss) is not None:
            self.extra = ExtraLoss(name, policy, self._example())
            self.loss_terms = (*self.loss_terms, *self.extra.names)
        super().__init__(
            policy,
            config,
            device=device,
            seed=seed,
            num_updates=config.run.total_timesteps // config.dqn.train_freq,
            gather_outside="always" if policy.image_keys else "if few",
        )
        normalize = config.normalize
        self.reward_normalizer = RewardNormalizer(config.env.num_envs, clip=normalize.clip_reward).to(device)
        self.scaled = self.reward_normalizer if normalize.normalize_reward else None
        self.target = self.flat.vector.clone()
        self._copies = 0  # how many multiples of target_update_every have passed
        self.values: KnownValues | None = None
        """Cache of the target network's values, see `keep_values`."""
        self._total = self.flat.vector.new_zeros(len(self.step_metrics))
        self._updates = 0  # summed in the total
        self.set_progress(0.0)

    def keep_values(self, replay: Replay, *, actions: int) -> None:
        """Cache the target network's values of the replay's transitions, if that saves time.

        It does for images on a CPU; a GPU would have to synchronise to find what is missing. The values of normalised
        observations change with the statistics and cannot be cached.
        """
        if self.device.type == "cpu" and self.policy.image_keys and not self.policy.normalizer.moments:
            self.values = KnownValues(replay.rows * replay.num_envs, actions)

    @torch.no_grad()
    def count_rewards(self, reward: Tensor, ended: Tensor, duration: Tensor) -> None:
        """Add rewards `[T, N]` to the statistics that scale them; each is scaled anew whenever it is sampled."""
        if self.scaled is None or not len(reward):
            return
        gamma = self.algorithm.gamma
        discount = gamma ** duration.double() if self.algorithm.smdp else gamma
        self.reward_normalizer.update(reward, ended=ended, discount=discount)
        self.policy.return_scale.copy_(self.reward_normalizer.scale)

    # Update ----------------------------------------------------------------------------------------------------------

    def update(self, replay: Replay, num_updates: int) -> None:
        """Do `num_updates` optimizer steps, each on its own minibatch."""
        size = self.algorithm.minibatch_size
        for count in self._counts(replay, num_updates):
            data = self._prepare(replay.gather(replay.draw(count * size, self.generator), self.scaled))
            order = torch.arange(count * size, device=self.device).view(count, size)
            self._total += self.run_epoch(data, order)
            self._updates += count

    def _counts(self, replay: Replay, num_updates: int) -> Iterator[int]:
        """How many minibatches to gather at a time: powers of two, so that few sizes are compiled."""
        # Without masks: a mask that allows everything must not change the order of sums.
        seen = {key: x for key, x in replay.obs.items() if key != ACTION_MASK}
        row = sum(x[0, 0].nbytes * replay.frames[key] for key, x in seen.items())
        limit = _CPU_BYTES if self.device.type == "cpu" else _GPU_BYTES
        most = min(max(1, limit // (2 * row * self.algorithm.minibatch_size)), _MOST_MINIBATCHES)
        while num_updates > 0:
            count = 1 << (min(most, num_updates).bit_length() - 1)
            num_updates -= count
            yield count

    @torch.no_grad()
    def _prepare(self, batch: Transitions) -> Minibatch:
        """Normalise the observations of several minibatches, and add targets or the target network's values."""
        obs, next_obs = self.policy.normalizer(batch.obs), self.policy.normalizer(batch.next_obs)
        target_q = self._target_q(batch.number, next_obs)
        if self.dqn.double_q:
            return Minibatch(obs, batch.action, None, batch.return_, batch.discount, target_q, next_obs)
        return Minibatch(obs, batch.action, batch.return_ + batch.discount * target_q.amax(-1))

    def _target_q(self, number: Tensor, next_obs: Tensors) -> Tensor:
        """The target network's Q `[B, A]` of observations, from the cache by the transitions' numbers `[B]`."""
        if self.values is None:
            return self._q(self.flat.views(self.target), next_obs)
        new = self.values.missing(number)
        if len(new):
            q = self._q(self.flat.views(self.target), {key: x.index_select(0, new) for key, x in next_obs.items()})
            self.values.put(number[new], q)
        return self.values.get(number)

    @torch.no_grad()
    def copy_target(self, policy_steps: int) -> bool:
        """Copy the weights to the target network if another `target_update_every` policy steps have passed."""
        copies = policy_steps // self.dqn.target_update_every
        due = copies > self._copies
        if due:
            self.target.copy_(self.state.param)
            self._copies = copies
            if self.values is not None:
                self.values.forget()
        return due

    def metrics(self) -> dict[str, float]:
        """Means over the optimizer steps since the last call; NaN if there were none."""
        host = (self._total / self._updates if self._updates else self._total + torch.nan).tolist()
        metrics = dict(zip(self.step_metrics, host, strict=True))
        if self._updates:
            self.check_finite({"the update": metrics})
        self._total.zero_()
        self._updates = 0
        return metrics | {"learning_rate": float(self.learning_rate), "epsilon": float(self.policy.epsilon)}

    def set_progress(self, progress: float) -> None:
        """Set the learning rate and epsilon for this fraction of the run."""
        super().set_progress(progress)
        self.policy.epsilon.fill_(self.epsilon_at(progress))

    def epsilon_at(self, progress: float) -> float:
        """Epsilon at this fraction of the run: linear over its first `exploration_fraction`, then constant."""
        start, end = self.dqn.exploration_start, self.dqn.exploration_end
        return start + (end - start) * min(1.0, progress / self.dqn.exploration_fraction)

    # The minibatch step ----------------------------------------------------------------------------------------------

    def gather(self, data: Minibatch, index: Tensor) -> Minibatch:
        """The rows `index`."""
        return _rows(data, lambda x: x.index_select(0, index))

    def take(self, data: Minibatch, index: Tensor) -> Minibatch:
        """Like `gather`, but a view: the rows of a minibatch are consecutive."""
        first = int(index[0])
        return _rows(data, lambda x: x[first : first + len(index)])

    def complete(self, weights: Weights, minibatch: Minibatch) -> Minibatch:
        """Add the targets of double Q."""
        if minibatch.target is not None:
            return minibatch
        assert minibatch.next_obs is not None and minibatch.target_q is not None
        assert minibatch.return_ is not None and minibatch.discount is not None
        # Chosen by the online network, evaluated by the target network (van Hasselt et al. 2016).
        best = self._q(weights, minibatch.next_obs).argmax(-1)
        return minibatch._replace(target=minibatch.return_ + minibatch.discount * _chosen(minibatch.target_q, best))

    def loss(self, weights: Weights, minibatch: Minibatch) -> tuple[Tensor, Tensor]:
        """Huber loss between the Q of the actions and the targets."""
        target = minibatch.target
        assert target is not None
        distribution, value = self.apply(weights, minibatch.obs)
        q = _chosen(distribution.q, minibatch.action)
        loss = huber = F.smooth_l1_loss(q, target)
        own: list[Tensor] = []
        if self.extra is not None:
            added, own = self.extra(minibatch, distribution, value)
            loss = huber + added
        return loss, torch.stack((huber, q.mean(), (q - target).abs().mean(), *own)).detach()

    @torch.no_grad()
    def _example(self) -> Minibatch:
        """A made-up minibatch of two transitions."""
        obs = example_obs(self.policy, 2)
        distribution, value = self.policy(obs)
        minibatch = Minibatch(obs, distribution.mode(), value)
        if not self.dqn.double_q:
            return minibatch
        return minibatch._replace(return_=value, discount=value, target_q=distribution.q, next_obs=obs)

    def _q(self, weights: Weights, obs: Tensors) -> Tensor:
        """Q `[B, A]` with these weights."""
        return self.apply(weights, obs)[0].q

    # State -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """With the target network and the statistics of rewards."""
        target = {"param": self.target.clone(), "copies": torch.tensor(self._copies)}
        statistics = {name: x.clone() for name, x in self.reward_normalizer.state_dict().items()}
        return super().state_dict() | {"target": target, "reward_normalizer": statistics}

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> bool:
        """Load what `state_dict` returned."""
        self.target.copy_(state["target"]["param"])
        self._copies = int(state["target"]["copies"])
        if "reward_normalizer" in state:  # not in older checkpoints
            self.reward_normalizer.load_state_dict(state["reward_normalizer"])
        return super().load_state_dict(state)

    def weights_changed(self, other: Mapping[str, Any]) -> list[str]:
        """The target network has the same weights; statistics of rewards are those that the Q-values are scaled by."""
        self.target.copy_(self.state.param)
        return [] if self.scaled is None else self.scaled.adopt(other.get("reward_normalizer"))

    def follow_changes(self, before: Config) -> None:
        """Also rescale the count of target updates, and empty the cache if its values no longer hold."""
        super().follow_changes(before)
        every = before.dqn.target_update_every
        if every != self.dqn.target_update_every:
            self._copies = self._copies * every // self.dqn.target_update_every
        changed = before.dqn.return_steps != self.dqn.return_steps
        changed |= before.optimizer.precision != self.config.optimizer.precision
        if self.values is not None and changed:
            self.values.forget()


def _rows(data: Minibatch, rows: Callable[[Tensor], Tensor]) -> Minibatch:
    """The same rows of every tensor."""
    return Minibatch(*[_rows_of(x, rows) for x in data])


def _rows_of(x: Any, rows: Callable[[Tensor], Tensor]) -> Any:
    if x is None:
        return None
    return rows(x) if isinstance(x, Tensor) else {key: rows(y) for key, y in x.items()}


def _chosen(q: Tensor, action: Tensor) -> Tensor:
    """Q `[B]` of actions `[B]` out of `[B, A]`."""
    return q.gather(-1, action[:, None]).squeeze(-1)
