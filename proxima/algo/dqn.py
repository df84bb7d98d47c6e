"""DQN (Mnih et al. 2015): from a replay buffer to better values of actions.

As in `ppo.py`, the minibatch step (gather, forward, loss, gradient, clipping, Adam) is one function of tensors on one
flat parameter vector, which compiles as a whole. What does not change from step to step, the target network's values,
is computed for several minibatches at once, and of images on a CPU once for every transition until the target network
changes. Metrics stay on the device until they are asked for.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.func import functional_call

from proxima.algo.adam import AdamState
from proxima.algo.epochs import Epochs
from proxima.algo.flat import FlatParameters
from proxima.algo.optimizer import (
    autocast,
    check_metrics,
    check_weights,
    gradient_of,
    load_optimizer_state,
    optimizer_state,
    optimizer_step,
)
from proxima.algo.policy import QPolicy
from proxima.algo.schedules import exploration, scheduled
from proxima.config import Config
from proxima.data.generators import restore_generator
from proxima.data.known_values import KnownValues
from proxima.data.replay import Replay, Transitions

STEP_METRICS = ("q_loss", "q_mean", "td_error", "gradient_norm")
Tensors = dict[str, Tensor]
_COMPILE_PAYS_AFTER = 20_000
_NEXT = "next "  # before the name of a key: the observation after
# Minibatches that are gathered at a time: so many, and so many bytes of observations, by the kind of device.
_MOST_AT_A_TIME, _BYTES_AT_A_TIME = 64, {"cpu": 2**24}
_BYTES_ON_A_GPU = 2**28


class DQNLearner:
    """DQN's update of one policy, with everything that a resume needs in `state_dict`."""

    def __init__(self, policy: QPolicy, config: Config, *, device: torch.device, seed: int):
        self.policy, self.config, self.device = policy, config, device
        self.dqn, self.algorithm = config.dqn, config.algorithm
        optimizer = config.optimizer
        self.generator = Generator(device).manual_seed(seed)
        self.flat = FlatParameters(policy)
        self.target = self.flat.vector.clone()
        self._copies = 0  # multiples of target_update_every that have passed
        self.state = AdamState.start(self.flat.vector)
        self.learning_rate = self.flat.vector.new_tensor(optimizer.learning_rate)
        self._epochs = Epochs(
            self._step,
            num_metrics=len(STEP_METRICS),
            device=device,
            compiled=self._wants_compile(),
            take=self._take,
            always_take=bool(policy.image_keys),
        )
        self.values: KnownValues | None = None
        """Where the target network's values are kept, once `keep_values` was called."""
        self._total = self.flat.vector.new_zeros(len(STEP_METRICS))
        self._updates = 0  # in the total
        self.set_progress(0.0)

    @property
    def compiled(self) -> bool:
        """Whether the step is, or is to be, compiled."""
        return self._epochs.compiled

    def give_up_compiling(self) -> None:
        """Go on eager."""
        self._epochs.compiled = False

    def _wants_compile(self) -> bool:
        run = self.config.run
        steps = run.total_timesteps // self.dqn.train_freq
        return run.compile == "on" or (run.compile == "auto" and steps >= _COMPILE_PAYS_AFTER)

    def keep_values(self, replay: Replay, *, actions: int) -> None:
        """Compute the target network's values of a transition of this replay once, where that saves time.

        It does for images on a CPU: to know what is new, a GPU would have to wait. Where observations are normalised,
        their values change all the time.
        """
        if self.device.type == "cpu" and self.policy.image_keys and not self.policy.normalizer.moments:
            self.values = KnownValues(replay.rows * replay.num_envs, actions)

    # Update ----------------------------------------------------------------------------------------------------------

    def update(self, replay: Replay, num_updates: int) -> None:
        """So many optimizer steps, each on a minibatch of its own."""
        size = self.algorithm.minibatch_size
        for count in self._counts(replay, num_updates):
            obs, data = self._prepare(replay.gather(replay.draw(count * size, self.generator)))
            order = torch.arange(count * size, device=self.device).view(count, size)
            self._total += self._epochs(self.state, self.learning_rate, obs, data, order)
            self._updates += count

    def _counts(self, replay: Replay, num_updates: int) -> Iterator[int]:
        """How many minibatches at a time: powers of two, so that few sizes are ever compiled."""
        row = sum(x[0, 0].nbytes * replay.frames[key] for key, x in replay.obs.items())
        most = _BYTES_AT_A_TIME.get(self.device.type, _BYTES_ON_A_GPU) // (2 * row * self.algorithm.minibatch_size)
        most = min(max(1, most), _MOST_AT_A_TIME)
        while num_updates > 0:
            count = 1 << (min(most, num_updates).bit_length() - 1)
            num_updates -= count
            yield count

    @torch.no_grad()
    def _prepare(self, batch: Transitions) -> tuple[Tensors, Tensors]:
        """Observations `[M * B, ...]`, normalised, and all else that the steps take rows of."""
        obs, next_obs = self.policy.normalizer(batch.obs), self.policy.normalizer(batch.next_obs)
        target_q = self._target_q(batch.number, next_obs)
        data = {"action": batch.action}
        if self.dqn.double_q:
            data |= {"return_": batch.return_, "discount": batch.discount, "target_q": target_q}
            data |= {_NEXT + key: x for key, x in next_obs.items()}
        else:
            data["target"] = batch.return_ + batch.discount * target_q.amax(-1)
        return obs, data

    def _target_q(self, number: Tensor, next_obs: Tensors) -> Tensor:
        """The target network's Q `[B, A]` of observations, known by the transitions' numbers `[B]`."""
        if self.values is None:
            return self._q(self.target, next_obs)
        new = self.values.missing(number)
        if len(new):
            q = self._q(self.target, _take_all(next_obs, new))
            self.values.put(number[new], q)
        return self.values.get(number)

    @torch.no_grad()
    def copy_target(self, decisions: int) -> bool:
        """Let the target network follow if another multiple of `target_update_every` decisions has passed."""
        copies = decisions // self.dqn.target_update_every
        due = copies > self._copies
        if due:
            self.target.copy_(self.state.param)
            self._copies = copies
            if self.values is not None:
                self.values.forget()
        return due

    def metrics(self) -> dict[str, float]:
        """Means over the steps since the last call, in one copy; NaN if there were none."""
        host = (self._total / self._updates if self._updates else self._total + torch.nan).tolist()
        metrics = dict(zip(STEP_METRICS, host, strict=True))
        if self._updates:
            check_metrics(metrics, "the update")
            check_weights(self.state.param)
        self._total.zero_()
        self._updates = 0
        rates = {"learning_rate": float(self.learning_rate), "epsilon": self.epsilon}
        return metrics | rates

    def set_progress(self, progress: float) -> None:
        """Set learning rate and epsilon for this share of the run."""
        optimizer = self.config.optimizer
        self.learning_rate.fill_(scheduled(optimizer.lr_schedule, optimizer.learning_rate, progress))
        self.policy.epsilon.fill_(self.epsilon_at(progress))

    @property
    def epsilon(self) -> float:
        """The share of random actions just now."""
        return float(self.policy.epsilon)

    def epsilon_at(self, progress: float) -> float:
        """The share of random actions when `progress` of the run is over."""
        dqn = self.dqn
        return exploration(dqn.exploration_start, dqn.exploration_end, dqn.exploration_fraction, progress)

    # The minibatch step ----------------------------------------------------------------------------------------------

    def _take(self, obs: Tensors, data: Tensors, index: Tensor) -> tuple[Tensors, Tensors]:
        """The rows of `index` alone, which follow each other."""
        first = int(index[0])
        rows = slice(first, first + len(index))
        return {key: x[rows] for key, x in obs.items()}, {name: x[rows] for name, x in data.items()}

    def _step(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, index: Tensor | None
    ) -> tuple[AdamState, Tensor]:
        """One optimizer step on the rows of `index` `[B]`, all where it is None, and its metrics `[4]`."""
        if index is not None:
            obs, data = _take_all(obs, index), _take_all(data, index)
        gradient, terms = self._gradient(state, obs, data["action"], self._targets(state, data))
        state, norm = optimizer_step(state, gradient, learning_rate, self.config.optimizer)
        return state, torch.cat((terms, norm[None]))

    def _targets(self, state: AdamState, data: Tensors) -> Tensor:
        """What Q of the actions is to become, `[B]`."""
        if not self.dqn.double_q:
            return data["target"]
        with torch.no_grad():
            # Chosen by one network, valued by the other (van Hasselt et al. 2016).
            next_obs = {name.removeprefix(_NEXT): x for name, x in data.items() if name.startswith(_NEXT)}
            best = self._q(state.param, next_obs).argmax(-1)
            return data["return_"] + data["discount"] * _chosen(data["target_q"], best)

    def _gradient(self, state: AdamState, obs: Tensors, action: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient `[P]` of the loss; and loss, mean Q and mean absolute error `[3]`."""

        def loss(param: Tensor) -> tuple[Tensor, Tensor]:
            q = _chosen(self._q(param, obs), action)
            huber = F.smooth_l1_loss(q, target)
            terms = torch.stack((huber, q.mean(), (q - target).abs().mean())).detach()
            return huber, terms

        return gradient_of(loss, state.param)

    def _q(self, param: Tensor, obs: Tensors) -> Tensor:
        """Q `[B, A]` with the weights of a vector."""
        with autocast(self.device, self.config.optimizer.precision):
            return functional_call(self.policy, self.flat.views(param), (obs,))[0].q

    # State -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Optimizer, target network and generator; the weights belong to the policy."""
        return {
            "optimizer": optimizer_state(self.state, self.learning_rate),
            "target": {"param": self.target.clone(), "copies": torch.tensor(self._copies)},
            "generator": {"state": self.generator.get_state()},
        }

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> bool:
        """Put back what `state_dict` gave. Returns whether the generator could be: one of another device cannot."""
        load_optimizer_state(self.state, self.learning_rate, state["optimizer"])
        self.target.copy_(state["target"]["param"])
        self._copies = int(state["target"]["copies"])
        return restore_generator(self.generator, state["generator"]["state"], otherwise=int(self.state.steps))

    def follow_changes(self, before: Config) -> None:
        """Let options that a resume changed take the place of what the optimizer remembers of the old ones."""
        every = before.dqn.target_update_every
        if every != self.dqn.target_update_every:
            self._copies = self._copies * every // self.dqn.target_update_every
        changed = before.dqn.return_steps != self.dqn.return_steps
        changed |= before.optimizer.precision != self.config.optimizer.precision
        if self.values is not None and changed:
            self.values.forget()


def _take_all(tensors: Tensors, index: Tensor) -> Tensors:
    return {name: x.index_select(0, index) for name, x in tensors.items()}


def _chosen(q: Tensor, action: Tensor) -> Tensor:
    """`[B]` of `[B, A]`."""
    return q.gather(-1, action[:, None]).squeeze(-1)
