"""PPO's learner: from a rollout to better weights.

The whole minibatch step (gather, forward, loss, gradient, clipping, Adam) is one function of tensors on one flat
parameter vector, which `epochs.py` compiles. Metrics stay on the device until the update is over.
"""

import torch
from torch import Generator, Tensor
from torch.func import functional_call

from proxima.algo.adam import AdamState
from proxima.algo.batch import (
    Batch,
    Tensors,
    chunks,
    is_places,
    split,
    split_places,
    take,
    take_all,
    take_obs,
)
from proxima.algo.epochs import Epochs
from proxima.algo.flat import FlatParameters
from proxima.algo.gae import gae, next_values
from proxima.algo.losses import LossTerms, explained_variance, ppo_loss
from proxima.algo.normalize import RewardNormalizer
from proxima.algo.optimizer import (
    autocast,
    check_metrics,
    check_weights,
    first_loss_scale,
    gradient_of,
    load_optimizer_state,
    optimizer_state,
    optimizer_step,
)
from proxima.algo.policy import Policy
from proxima.algo.schedules import adapted, scheduled
from proxima.compiling import report_failure
from proxima.config import Config
from proxima.data.generators import restore_generator
from proxima.data.rollout import Rollout, minibatch_indices
from proxima.errors import UsageError

STEP_METRICS = (*LossTerms._fields, "gradient_norm")
# Compilation takes ten to twenty seconds and saves a millisecond a minibatch, on a GPU several; with a memory, more.
_COMPILE_PAYS_AFTER = 20_000
# Compiled, a memory's steps are unrolled: the compilation of more would take many minutes.
_LONGEST_UNROLLED = 128


class Learner:
    """PPO's update of one policy, with everything that a resume needs in `state_dict`."""

    def __init__(
        self,
        policy: Policy,
        config: Config,
        *,
        device: torch.device,
        seed: int,
        num_iterations: int | None = None,
    ):
        """`num_iterations` is how many a run will have, if held actions make them fewer than the config can know."""
        self.policy, self.config, self.device = policy, config, device
        self._num_iterations = config.num_iterations if num_iterations is None else num_iterations
        self._fp16 = config.optimizer.precision == "fp16"
        self.generator = Generator(device).manual_seed(seed)
        self.reward_normalizer = RewardNormalizer(config.env.num_envs, clip=config.normalize.clip_reward).to(device)
        self.flat = FlatParameters(policy)
        scale = first_loss_scale(config.optimizer.precision)
        self.state = AdamState.start(self.flat.vector, loss_scale=scale)
        self.learning_rate = self.flat.vector.new_tensor(config.optimizer.learning_rate)
        self._epochs = Epochs(
            self._step,
            num_metrics=len(STEP_METRICS),
            device=device,
            compiled=self._wants_compile(),
            take=self._take if policy.image_keys else None,
            # In one piece with its kernels, the code that calls the many steps of a memory takes minutes to compile.
            build_apart=config.sequence_length > 1,
        )

    # Preparation -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> Batch:
        """Scale the rewards, evaluate the behaviour policy unless acting did, and estimate advantages."""
        reward = rollout.reward
        if self.config.normalize.normalize_reward:
            reward = self.reward_normalizer(reward, ended=rollout.ended, discount=self._discount(rollout))
            self.policy.return_scale.copy_(self.reward_normalizer.scale)
        obs = {key: rollout.sequences(x) for key, x in self.policy.normalizer(rollout.step_obs()).items()}
        obs |= {key: x.flatten(0, 1) for key, x in rollout.frames.items()}
        places = {key: rollout.sequences(index) for key, index in rollout.stack_index().items()}
        action, context = rollout.sequences(rollout.action), {}
        if rollout.state is not None:
            context = {"state": rollout.state.flatten(0, 1)[None], "start": rollout.sequences(rollout.start)}
        if rollout.log_prob is not None and rollout.value is not None:
            old_log_prob, value = rollout.sequences(rollout.log_prob), rollout.sequences(rollout.value)
        else:
            old_log_prob, value = self._evaluate(obs, places, action, context)
        batch = Batch(obs, places, action, old_log_prob, value, value, value, reward, context, rollout.weight())
        self._set_advantage(batch, rollout, value)
        return batch

    def _set_advantage(self, batch: Batch, rollout: Rollout, value: Tensor) -> None:
        ppo, envs = self.config.ppo, rollout.num_envs
        # [N + K], one call for all of them.
        bootstrap = self.policy.value(rollout.bootstrap_obs(), rollout.bootstrap_state())
        last, final = bootstrap.split([envs, len(bootstrap) - envs])
        value = rollout.steps(value)
        advantage = gae(
            batch.reward,
            value,
            next_values(value, last, final, rollout.final_index),
            terminated=rollout.terminated,
            ended=rollout.ended,
            discount=self._discount(rollout),
            lambda_=ppo.gae_lambda,
        )
        batch.old_value = rollout.sequences(value)
        batch.return_ = rollout.sequences(advantage + value)
        if ppo.normalize_advantage == "batch":
            std, mean = torch.std_mean(advantage, correction=0)
            advantage = (advantage - mean) / (std + 1e-8)
        batch.advantage = rollout.sequences(advantage)

    def _discount(self, rollout: Rollout) -> Tensor | float:
        """Of each transition: by the time it took, or, as an approximation of that, the same for all."""
        algorithm = self.config.algorithm
        return rollout.discount(algorithm.gamma) if algorithm.smdp else algorithm.gamma

    def _recompute_advantage(self, batch: Batch, rollout: Rollout) -> None:
        with torch.no_grad():
            with self._autocast():
                parts = [self._values(batch, part) for part in chunks(batch.obs, batch.places, self.device)]
            self._set_advantage(batch, rollout, torch.cat(parts, 1))

    def _values(self, batch: Batch, part: slice) -> Tensor:
        obs = take_obs(batch.obs, batch.places, part)
        value = self.policy.critic(obs, **take_all(batch.context, part))
        return value.view(len(batch.action), -1)

    def _evaluate(self, obs: Tensors, places: Tensors, action: Tensor, context: Tensors) -> tuple[Tensor, Tensor]:
        """Log-probabilities and values `[L, Q]`, computed as in the update, or the first ratio would not be 1."""
        log_probs, values = [], []
        with self._autocast():
            for part in chunks(obs, places, self.device):
                distribution, value = self.policy(take_obs(obs, places, part), **take_all(context, part))
                log_probs.append(distribution.log_prob(take(action, part)).view(len(action), -1))
                values.append(value.view(len(action), -1))
        return torch.cat(log_probs, 1), torch.cat(values, 1)

    # Update ----------------------------------------------------------------------------------------------------------

    def update(self, batch: Batch, rollout: Rollout) -> dict[str, float]:
        """All epochs over the batch; the metrics come back in one copy."""
        ppo, optimizer = self.config.ppo, self.config.optimizer
        explained = explained_variance(rollout.steps(batch.old_value), rollout.steps(batch.return_))
        epochs: list[Tensor] = []
        for epoch in range(ppo.update_epochs):
            if epoch and ppo.recompute_advantage:
                self._recompute_advantage(batch, rollout)
            data = batch.data()
            metrics = batch.advantage.new_zeros(len(STEP_METRICS))
            for order in minibatch_indices(rollout.num_sequences, self.config.num_updates, self.generator):
                total = self._epochs(self.state, self.learning_rate, batch.obs, data, order)
                metrics = metrics + total / self.config.num_updates
            epochs.append(metrics)
            kl = metrics[STEP_METRICS.index("approx_kl")]
            if optimizer.lr_schedule == "adaptive":
                self.learning_rate.fill_(adapted(float(self.learning_rate), float(kl), optimizer.desired_kl))
            if ppo.target_kl is not None and float(kl) > ppo.target_kl:
                break
        return self._metrics(torch.stack(epochs), explained)

    def _metrics(self, epochs: Tensor, explained: Tensor) -> dict[str, float]:
        """Means over the epochs `[E, 7]`, and how far the last one went."""
        host = epochs.tolist()
        self._check_finite(host)
        metrics = {name: sum(column) / len(host) for name, *column in zip(STEP_METRICS, *host, strict=True)}
        # How far the whole update went, not the average on the way there.
        for name in ("approx_kl", "clip_fraction"):
            metrics[name] = host[-1][STEP_METRICS.index(name)]
        del metrics["loss"]
        return metrics | {
            "explained_variance": float(explained),
            "learning_rate": float(self.learning_rate),
            "epochs": float(len(host)),
        }

    def _check_finite(self, epochs: list[list[float]]) -> None:
        for number, row in enumerate(epochs, start=1):
            metrics = dict(zip(STEP_METRICS, row, strict=True))
            if self._fp16:  # the gradient may overflow: its step is then left out and the loss scale lowered
                del metrics["gradient_norm"]
            check_metrics(metrics, f"epoch {number} of the update")
        check_weights(self.state.param)

    def set_progress(self, progress: float) -> None:
        """Set the learning rate for this share of the run."""
        optimizer = self.config.optimizer
        if optimizer.lr_schedule != "adaptive":
            self.learning_rate.fill_(scheduled(optimizer.lr_schedule, optimizer.learning_rate, progress))

    # The minibatch step ----------------------------------------------------------------------------------------------

    def _take(self, obs: Tensors, data: Tensors, index: Tensor) -> tuple[Tensors, Tensors]:
        """The sequences of `index` alone, `[L, B, ...]`."""
        seen = take_obs(obs, split_places(obs, data), index)
        length = len(data["action"])
        rows = {name: x[:, index] for name, x in data.items() if not is_places(name)}
        return {key: x.unflatten(0, (length, -1)) for key, x in seen.items()}, rows

    def _step(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, index: Tensor | None
    ) -> tuple[AdamState, Tensor]:
        """One optimizer step on the sequences of `index`, in parts whose gradients are averaged, and its metrics.

        None is all of them.
        """
        optimizer = self.config.optimizer
        size = data["action"].shape[1] if index is None else len(index)
        gradient, metrics = torch.zeros_like(state.param), learning_rate.new_zeros(len(LossTerms._fields))
        for part in split(index, size, optimizer.gradient_accumulation):
            rows = take_all(data, part)
            part_gradient, terms = self._gradient(state, take_obs(obs, split_places(obs, data), part), rows)
            share: Tensor | float = rows["action"].shape[0] / (size * len(data["action"]))
            if "weight" in data:
                whole = data["weight"] if index is None else data["weight"][:, index]
                share = rows["weight"].sum() / whole.sum()
            gradient = gradient + share * part_gradient
            metrics = metrics + share * terms
        state, norm = optimizer_step(state, gradient, learning_rate, optimizer)
        return state, torch.cat((metrics, norm[None]))

    def _gradient(self, state: AdamState, obs: Tensors, data: Tensors) -> tuple[Tensor, Tensor]:
        """Gradient `[P]` of the (scaled) loss, and the loss terms `[6]`."""

        def loss(param: Tensor) -> tuple[Tensor, Tensor]:
            terms = self._loss(param, obs, data)
            scaled = terms.loss * state.loss_scale if self._fp16 else terms.loss
            return scaled, torch.stack([term.detach() for term in terms])

        return gradient_of(loss, state.param)

    def _loss(self, param: Tensor, obs: Tensors, data: Tensors) -> LossTerms:
        ppo, weights = self.config.ppo, self.flat.views(param)
        inputs = (obs, data.get("state"), data.get("start"))
        with self._autocast():
            # A shared trunk is one module: tying its weights by name would swap them twice and restore them wrongly.
            distribution, value = functional_call(self.policy, weights, inputs, tie_weights=False)
        return ppo_loss(
            log_prob=distribution.log_prob(data["action"]),
            value=value,
            entropy=distribution.entropy(),
            old_log_prob=data["old_log_prob"],
            old_value=data["old_value"],
            advantage=data["advantage"],
            return_=data["return_"],
            weight=data.get("weight"),
            clip_range=ppo.clip_range,
            clip_value_loss=ppo.clip_value_loss,
            value_loss_coef=ppo.value_loss_coef,
            entropy_coef=ppo.entropy_coef,
            normalize_advantage=ppo.normalize_advantage == "minibatch",
        )

    def _autocast(self) -> torch.autocast:
        return autocast(self.device, self.config.optimizer.precision)

    # Compilation -----------------------------------------------------------------------------------------------------

    def _wants_compile(self) -> bool:
        wish, config = self.config.run.compile, self.config
        steps = self._num_iterations * config.ppo.update_epochs * config.num_minibatches
        pays = _COMPILE_PAYS_AFTER if config.sequence_length == 1 else 2 * _COMPILE_PAYS_AFTER
        if config.sequence_length > _LONGEST_UNROLLED:
            if wish == "on":
                why = f"bptt_length is {config.sequence_length}, and above {_LONGEST_UNROLLED} it would take minutes"
                report_failure("learner", UsageError(why))
            return False
        return wish == "on" or (wish == "auto" and steps >= pays)

    @property
    def compiled(self) -> bool:
        """Whether the step is, or is to be, compiled."""
        return self._epochs.compiled

    def give_up_compiling(self) -> None:
        """Go on eager."""
        self._epochs.compiled = False

    # State -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Optimizer, reward statistics and generator; the weights belong to the policy."""
        return {
            "optimizer": optimizer_state(self.state, self.learning_rate),
            "reward_normalizer": {name: x.clone() for name, x in self.reward_normalizer.state_dict().items()},
            "generator": {"state": self.generator.get_state()},
        }

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> bool:
        """Put back what `state_dict` gave. Returns whether the generator could be: one of another device cannot."""
        load_optimizer_state(self.state, self.learning_rate, state["optimizer"])
        self.reward_normalizer.load_state_dict(state["reward_normalizer"])
        return restore_generator(self.generator, state["generator"]["state"], otherwise=int(self.state.steps))

    def follow_changes(self, before: Config) -> None:
        """Let options that a resume changed take the place of what the optimizer remembers of the old ones."""
        old, new = before.optimizer, self.config.optimizer
        if (old.learning_rate, old.lr_schedule) != (new.learning_rate, new.lr_schedule):
            self.learning_rate.fill_(new.learning_rate)
        if old.precision != new.precision:
            self.state.loss_scale.fill_(first_loss_scale(new.precision))
