"""PPO (Schulman et al. 2017): the advantages of a rollout and the loss of a minibatch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from proxima.algo.extra_loss import ExtraLoss, example_sequence
from proxima.algo.gae import gae, next_values
from proxima.algo.learner import Learner, Weights
from proxima.algo.losses import LossTerms, explained_variance, ppo_loss
from proxima.algo.normalize import RewardNormalizer
from proxima.algo.peers import Peers
from proxima.algo.schedules import adapted
from proxima.algo.symmetry import Symmetry
from proxima.config import Config
from proxima.data.batch import Batch, Inputs, Minibatch, Rows, SequenceLayout
from proxima.data.rollout import Rollout
from proxima.errors import UsageError

if TYPE_CHECKING:
    from proxima.envs.contract import Mirror
    from proxima.nets.policy import Policy


class PPOLearner(Learner):
    """PPO's update of one policy."""

    loss_terms: tuple[str, ...] = LossTerms._fields

    def __init__(
        self,
        policy: "Policy",
        config: Config,
        *,
        device: torch.device,
        seed: int,
        num_iterations: int | None = None,
        mirror: "Mirror | None" = None,
        peers: Peers | None = None,
    ):
        """`num_iterations` of the run; given because held actions can make them fewer than `config.num_iterations`.

        `mirror` of the env is needed with the option `symmetry`. `peers`: the ranks, of which this is one.
        """
        self.policy, self.peers = policy, peers or Peers((config.env.num_envs,))
        num_envs = self.peers.own_envs
        self.symmetry: Symmetry | None = None
        if config.ppo.symmetry != "none":
            if mirror is None:
                raise UsageError(
                    f"symmetry is {config.ppo.symmetry}, but {config.env.env} has no mirror (`VecEnv.mirror`) in "
                    f"vec_env_mode {config.env.vec_env_mode}: use symmetry none, or an env that defines one."
                )
            self.symmetry = Symmetry(mirror, policy, config, num_envs=num_envs, device=device)
            self.loss_terms = (*LossTerms._fields, "symmetry_loss")
        self.layout = SequenceLayout(config.ppo.num_steps, num_envs, config.sequence_length)
        if (name := config.algorithm.extra_loss) is not None:
            self.extra = ExtraLoss(name, policy, self._example())
            self.loss_terms = (*self.loss_terms, *self.extra.names)
        iterations = config.num_iterations if num_iterations is None else num_iterations
        super().__init__(
            policy,
            config,
            device=device,
            seed=seed,
            num_updates=iterations * config.ppo.update_epochs * config.num_minibatches,
            peers=self.peers,
            gather_outside="always" if policy.image_keys else "never",
            # Together with its kernels, the code that calls many unrolled steps takes minutes to compile.
            build_apart=config.sequence_length > 1,
        )
        self.reward_normalizer = RewardNormalizer(num_envs, clip=config.normalize.clip_reward).to(device)

    # From a rollout to a batch -------------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> Batch:
        """Scale rewards, compute old log-probabilities and values unless acting stored them, and advantages.

        With `overlap`, the policy that collected is one update older: ratios are to it, values are the current ones.
        """
        reward = rollout.reward
        if self.config.normalize.normalize_reward:
            self.reward_normalizer.update(
                reward,
                ended=rollout.ended,
                discount=self._discount(rollout),
                skipped=rollout.skipped,
                sum_ranks=self.peers.sum,
            )
            reward = self.reward_normalizer(reward)
            self.policy.return_scale.copy_(self.reward_normalizer.scale)
        obs = self.policy.normalizer(rollout.step_obs()) | rollout.frames
        inputs = Inputs.of(rollout, obs, rollout.state)
        action = rollout.action.flatten(0, 1)
        if rollout.log_prob is not None and rollout.value is not None:
            log_prob, value = rollout.log_prob.flatten(), rollout.value.flatten()
            if self.config.cluster.overlap:  # those were computed with the weights before the last update
                value = self._values(inputs)
        else:
            log_prob, value = self._evaluate(inputs, action)
        advantage, return_ = self._advantages(rollout, reward, value)
        mirrored = None if self.symmetry is None else self.symmetry.prepare(rollout)
        weight = None if rollout.weight is None else rollout.weight.flatten()
        return Batch(rollout, reward, Rows(inputs, action, log_prob, value, advantage, return_, mirrored, weight))

    def _advantages(self, rollout: Rollout, reward: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages and returns `[T * N]`; truncated episodes bootstrap from their final observation."""
        ppo, envs, policy = self.config.ppo, rollout.num_envs, self.policy
        with self.autocast():  # [N + K], in one forward pass
            bootstrap = policy.value(policy.normalizer(rollout.bootstrap_obs()), rollout.bootstrap_state()).float()
        last, final = bootstrap.split([envs, len(bootstrap) - envs])
        value = value.view(-1, envs)  # [T, N]
        advantage = gae(
            reward,
            value,
            next_values(value, last, final, rollout.final_time, rollout.final_env),
            terminated=rollout.terminated,
            ended=rollout.ended,
            discount=self._discount(rollout),
            lambda_=ppo.gae_lambda,
        )
        if rollout.skipped is not None:
            advantage = advantage.masked_fill(rollout.skipped, 0.0)
        return_ = advantage + value
        if ppo.normalize_advantage == "batch":
            learned = advantage if rollout.skipped is None else advantage[~rollout.skipped]
            var, mean = self.peers.var_mean(learned)
            advantage = (advantage - mean) / (var.sqrt() + 1e-8)
        return advantage.flatten(), return_.flatten()

    def _discount(self, rollout: Rollout) -> Tensor | float:
        """Gamma ** duration of each transition, or without smdp the same gamma for all."""
        algorithm = self.config.algorithm
        return rollout.discount(algorithm.gamma) if algorithm.smdp else algorithm.gamma

    def _evaluate(self, inputs: Inputs, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and values `[T * N]`, computed exactly as in the update: the first ratio must be 1."""
        log_prob = action.new_empty(len(action), dtype=torch.float32)
        value = torch.empty_like(log_prob)
        with self.autocast():
            for sequence in inputs.chunks(self.layout):
                distribution, values = self.policy(*inputs.gather(self.layout, sequence))
                self.layout.scatter(sequence, values, value)
                rows = self.layout.rows(sequence)
                self.layout.scatter(sequence, distribution.log_prob(action[rows]), log_prob)
        return log_prob, value

    def _values(self, inputs: Inputs) -> Tensor:
        """Values `[T * N]` with the current weights."""
        value = torch.empty(self.layout.num_steps * self.layout.num_envs, device=self.device)
        with torch.no_grad(), self.autocast():
            for sequence in inputs.chunks(self.layout):
                values = self.policy.value(*inputs.gather(self.layout, sequence))
                self.layout.scatter(sequence, values, value)
        return value

    # Update ----------------------------------------------------------------------------------------------------------

    def update(self, batch: Batch) -> dict[str, float]:
        """All epochs over the batch; metrics are copied to the host once, at the end. `target_kl` reads every epoch."""
        ppo, optimizer, rows = self.config.ppo, self.config.optimizer, batch.rows
        explained = explained_variance(rows.old_value, rows.return_, self.peers)
        epochs: list[Tensor] = []
        for epoch in range(ppo.update_epochs):
            if epoch and ppo.recompute_advantage:
                with torch.no_grad():
                    value = self._values(rows.inputs)
                    advantage, return_ = self._advantages(batch.rollout, batch.reward, value)
                rows = rows._replace(old_value=value, advantage=advantage, return_=return_)
            metrics = rows.advantage.new_zeros(len(self.step_metrics))
            # One stack of minibatches [M, B], or two where their sizes differ by one.
            orders = list(self.minibatches(self.layout))
            learned = rows if self.peers.sum is None else self._normalized(rows, orders)
            for order in orders:
                metrics = metrics + self.run_epoch(learned, order) / self.config.num_updates
            epochs.append(metrics)
            kl = metrics[self.step_metrics.index("approx_kl")]
            if optimizer.lr_schedule == "adaptive":
                self.learning_rate.copy_(adapted(self.learning_rate, kl, optimizer.desired_kl))
            if ppo.target_kl is not None and self.to_host(kl) > ppo.target_kl:
                break
        return self._metrics(torch.stack(epochs), explained)

    def _normalized(self, rows: Rows, orders: list[Tensor]) -> Rows:
        """Advantages normalised over the minibatches of all ranks, of which `orders` `[M, B]` has this rank's parts."""
        if self.config.ppo.normalize_advantage != "minibatch":
            return rows
        # Part by part, so that all ranks exchange the sums of minibatches in one order, however they are stacked.
        count = self.config.optimizer.gradient_accumulation
        parts = [order.tensor_split(count, 1)[part] for part in range(count) for order in orders]
        places = [self.layout.rows(part.flatten()).view(self.layout.length, *part.shape) for part in parts]  # [L, M, B]
        weights = [self._weights(rows, part, place) for part, place in zip(parts, places, strict=True)]
        advantage = [rows.advantage[place] for place in places]
        sums = [torch.stack((w.sum((0, 2)), (w * a).sum((0, 2)))) for w, a in zip(weights, advantage, strict=True)]
        count, total = self.peers.total(torch.cat(sums, 1))  # of all parts of all minibatches
        count, sizes = count.clamp(min=1.0), [part.shape[0] for part in parts]
        means = (total / count).split(sizes)
        centred = [a - mean[:, None] for a, mean in zip(advantage, means, strict=True)]
        squares = [(w * a.square()).sum((0, 2)) for w, a in zip(weights, centred, strict=True)]
        stds = (self.peers.total(torch.cat(squares)) / count).sqrt().split(sizes)
        normalized = rows.advantage.clone()
        for place, a, std in zip(places, centred, stds, strict=True):
            normalized[place] = a / (std[:, None] + 1e-8)
        return rows._replace(advantage=normalized)

    def _weights(self, rows: Rows, sequence: Tensor, places: Tensor) -> Tensor:
        """`[L, M, B]`: 1 for transitions, 0 for padding and rows that the env skipped."""
        weight = torch.ones_like(rows.advantage[places]) if rows.weight is None else rows.weight[places]
        padding = self.layout.weight(sequence.flatten())
        return weight if padding is None else weight * padding.view(places.shape)

    def _metrics(self, epochs: Tensor, explained: Tensor) -> dict[str, float]:
        """Means of the metrics over the epochs `[E, K]`, KL and clip fraction of the last one; one copy to the host."""
        others = torch.stack((explained, self.learning_rate, self.weights_are_finite().float()))
        others = torch.nn.functional.pad(others, (0, epochs.shape[1] - len(others)))  # [K]
        *rows, (explained_variance, learning_rate, is_finite, *_) = self.to_host(torch.cat((epochs, others[None])))
        host = [dict(zip(self.step_metrics, row, strict=True)) for row in rows]
        updates = {f"epoch {number} of the update": row for number, row in enumerate(host, start=1)}
        self.check_finite(updates, weights=bool(is_finite))
        metrics = {name: sum(row[name] for row in host) / len(host) for name in self.step_metrics if name != "loss"}
        # Those of the last epoch, which are closest to the change of the policy by the complete update.
        metrics |= {name: host[-1][name] for name in ("approx_kl", "clip_fraction")}
        return metrics | {
            "explained_variance": explained_variance,
            "learning_rate": learning_rate,
            "epochs": float(len(host)),
        }

    def update_normalizer(self, rollout: Rollout) -> None:
        """Add the rollout's observations to the policy's statistics, with symmetry their mirror images as well.

        To be called after `update`, so that the first probability ratio of the next one is 1.
        """
        self.policy.normalizer.update(rollout.step_obs(), self.peers.sum)
        if self.symmetry is not None:
            self.policy.normalizer.update(self.symmetry.vectors(rollout), self.peers.sum)

    # The minibatch step ----------------------------------------------------------------------------------------------

    def gather(self, data: Rows, index: Tensor) -> Minibatch:
        """The sequences `index`."""
        minibatch = data.gather(self.layout, index)
        return minibatch if self.symmetry is None else self.symmetry.gather(minibatch)

    def count(self, minibatch: Minibatch) -> Tensor | int:
        """Number of steps without padding."""
        return len(minibatch.action) if minibatch.weight is None else minibatch.weight.sum()

    def loss(self, weights: Weights, minibatch: Minibatch) -> tuple[Tensor, Tensor]:
        """Clipped surrogate, value loss and entropy bonus; of the mirrored samples too, or with a symmetry loss."""
        ppo, symmetry, original = self.config.ppo, self.symmetry, minibatch
        if symmetry is not None and ppo.symmetry == "augment":
            minibatch = symmetry.augment(original)
        distribution, value = self.apply(weights, minibatch.obs, minibatch.state, minibatch.start)
        log_prob, entropy = distribution.log_prob(minibatch.action), distribution.entropy()
        terms = ppo_loss(log_prob, value, entropy, minibatch, ppo, is_complete=self.peers.sum is None)
        own: list[Tensor] = []
        if self.extra is not None:
            added, own = self.extra(minibatch, distribution, value)
            terms = terms._replace(loss=terms.loss + added)
        if symmetry is None:
            return terms.loss, torch.stack([term.detach() for term in (*terms, *own)])
        if ppo.symmetry == "augment":
            error = symmetry.error(*symmetry.halves(distribution.mode().detach()), original.weight)
        else:
            assert original.mirrored is not None
            mirrored, _ = self.apply(weights, *original.mirrored, original.start)
            error = symmetry.error(distribution.mode(), mirrored.mode(), original.weight)
            terms = terms._replace(loss=terms.loss + ppo.symmetry_coef * error)
        return terms.loss, torch.stack([term.detach() for term in (*terms, error, *own)])

    @torch.no_grad()
    def _example(self) -> Minibatch:
        """A made-up minibatch of one sequence."""
        sequence, distribution, value = example_sequence(self.policy, self.layout.length)
        action, weight = distribution.mode(), self.layout.weight(torch.zeros(1, dtype=torch.long, device=value.device))
        return Minibatch(*sequence, action, distribution.log_prob(action), value, value, value, weight)

    # State -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """With the reward normaliser and the recurrent state of the mirrored world."""
        statistics = {name: x.clone() for name, x in self.reward_normalizer.state_dict().items()}
        mirrored = {} if self._mirrored_state is None else {"mirrored_state": {"state": self._mirrored_state.clone()}}
        return super().state_dict() | {"reward_normalizer": statistics} | mirrored

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> bool:
        """Load what `state_dict` returned; without a mirrored state, which is new in a resume, it stays zero."""
        if self._mirrored_state is not None and "mirrored_state" in state:
            self._mirrored_state.copy_(state["mirrored_state"]["state"])
        self.reward_normalizer.load_state_dict(state["reward_normalizer"])
        return super().load_state_dict(state)

    def weights_changed(self, other: Mapping[str, Any]) -> list[str]:
        """Use the other run's statistics of rewards, which the critic's values are scaled by."""
        normalizes = self.config.normalize.normalize_reward
        return self.reward_normalizer.adopt(other.get("reward_normalizer")) if normalizes else []

    def forget_episodes(self, rows: slice = slice(None)) -> None:
        """Start anew what is carried over from rollout to rollout, because these envs begin with new episodes."""
        self.reward_normalizer.carry[rows] = 0.0
        if self._mirrored_state is not None:
            self._mirrored_state[rows] = 0.0

    @property
    def _mirrored_state(self) -> Tensor | None:
        return None if self.symmetry is None else self.symmetry.state
