"""The learner: from a rollout to better weights. The only place that takes an optimizer step.

The whole minibatch step (gather, forward, loss, gradient, clipping, Adam) is one function of tensors on one flat
parameter vector, so that it compiles as a whole. Metrics stay on the device until the update is over.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.func import functional_call

from proxima.algo.adam import AdamState, adam_step, clip_by_norm, scaled_adam_step
from proxima.algo.gae import gae, next_values
from proxima.algo.losses import LossTerms, explained_variance, ppo_loss
from proxima.algo.normalize import RewardNormalizer
from proxima.algo.policy import Policy
from proxima.algo.schedules import adapted, scheduled
from proxima.config import Config
from proxima.data.rollout import Rollout, minibatch_indices
from proxima.errors import NonFiniteError

log = logging.getLogger("proxima")

STEP_METRICS = (*LossTerms._fields, "gradient_norm")
_AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Compilation takes some tens of seconds and saves about a millisecond a minibatch.
_COMPILE_PAYS_AFTER = 50_000
# Elements of an observation that are evaluated at a time outside the update.
_CHUNK_ELEMENTS = 2**22


@dataclass
class Batch:
    """A rollout as the learner sees it: flat `[T * N]`, observations normalised."""

    obs: dict[str, Tensor]
    action: Tensor
    old_log_prob: Tensor
    old_value: Tensor
    advantage: Tensor
    return_: Tensor
    reward: Tensor
    """Scaled, `[T, N]`: what the advantages are recomputed from."""


class Learner:
    """PPO's update of one policy, with everything that a resume needs in `state_dict`."""

    def __init__(self, policy: Policy, config: Config, *, device: torch.device, seed: int):
        self.policy, self.config, self.device = policy, config, device
        self.generator = Generator(device).manual_seed(seed)
        self.reward_normalizer = RewardNormalizer(config.env.num_envs, clip=config.normalize.clip_reward).to(device)
        trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
        self._shapes = {name: p.shape for name, p in trained.items()}
        flat = torch.cat([p.detach().flatten() for p in trained.values()])
        start = 0
        for p in trained.values():  # the modules and the learner share one storage
            p.data = flat[start : start + p.numel()].view_as(p)
            start += p.numel()
        scale = 2.0**16 if config.optimizer.precision == "fp16" else 1.0
        self.state = AdamState.start(
            flat.requires_grad_(), learning_rate=config.optimizer.learning_rate, loss_scale=scale
        )
        self.compiled = self._wants_compile()
        self._step: Callable[..., Tensor] = self._first_compiled_step if self.compiled else self._eager_step

    # Preparation -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> Batch:
        """Scale the rewards, evaluate the behaviour policy on the rollout, and estimate advantages."""
        reward, discount = rollout.reward, rollout.discount(self.config.ppo.gamma)
        if self.config.normalize.normalize_reward:
            reward = self.reward_normalizer(reward, ended=rollout.ended, discount=discount)
        obs = self.policy.normalizer(rollout.flat_obs())
        action = rollout.action.flatten(0, 1)
        with self._autocast():  # as in the update, or the first ratio would not be 1
            parts = [self._evaluate(obs, action, rows) for rows in self._chunks(obs)]
        old_log_prob, old_value = (torch.cat(column) for column in zip(*parts, strict=True))
        batch = Batch(obs, action, old_log_prob, old_value, old_value, old_value, reward)
        self._set_advantage(batch, rollout, old_value)
        return batch

    def _set_advantage(self, batch: Batch, rollout: Rollout, value: Tensor) -> None:
        ppo, shape = self.config.ppo, rollout.reward.shape
        bootstrap = self.policy.value(rollout.bootstrap_obs())  # [N + K], one call for all of them
        last, final = bootstrap.split([shape[1], len(bootstrap) - shape[1]])
        value = value.view(shape)
        advantage = gae(
            batch.reward,
            value,
            next_values(value, last, final, rollout.final_index),
            terminated=rollout.terminated,
            ended=rollout.ended,
            discount=rollout.discount(ppo.gamma),
            lambda_=ppo.gae_lambda,
        )
        batch.old_value = value.flatten()
        batch.return_ = (advantage + value).flatten()
        batch.advantage = advantage.flatten()
        if ppo.normalize_advantage == "batch":
            std, mean = torch.std_mean(batch.advantage, correction=0)
            batch.advantage = (batch.advantage - mean) / (std + 1e-8)

    def _recompute_advantage(self, batch: Batch, rollout: Rollout) -> None:
        with torch.no_grad():
            with self._autocast():
                value = torch.cat([self.policy(_rows(batch.obs, rows))[1] for rows in self._chunks(batch.obs)])
            self._set_advantage(batch, rollout, value)

    def _evaluate(self, obs: dict[str, Tensor], action: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        distribution, value = self.policy(_rows(obs, rows))
        return distribution.log_prob(action[rows]), value

    def _chunks(self, obs: dict[str, Tensor]) -> Iterator[slice]:
        size = len(next(iter(obs.values())))
        per_row = sum(x[0].numel() for x in obs.values())
        chunk = max(1, _CHUNK_ELEMENTS // per_row)
        return (slice(start, start + chunk) for start in range(0, size, chunk))

    # Update ----------------------------------------------------------------------------------------------------------

    def update(self, batch: Batch, rollout: Rollout) -> dict[str, float]:
        """All epochs over the batch; the metrics come back in one copy."""
        ppo, optimizer = self.config.ppo, self.config.optimizer
        explained = explained_variance(batch.old_value, batch.return_)
        epochs: list[Tensor] = []
        for epoch in range(ppo.update_epochs):
            if epoch and ppo.recompute_advantage:
                self._recompute_advantage(batch, rollout)
            data = [batch.action, batch.old_log_prob, batch.old_value, batch.advantage, batch.return_]
            order = list(minibatch_indices(rollout.size, self.config.num_minibatches, self.generator))
            group = optimizer.gradient_accumulation
            groups = [order[i : i + group] for i in range(0, len(order), group)]
            epochs.append(torch.stack([self._step(self.state, batch.obs, data, indices) for indices in groups]))
            kl = epochs[-1][:, STEP_METRICS.index("approx_kl")].mean()
            if optimizer.lr_schedule == "adaptive":
                rate = adapted(float(self.state.learning_rate), float(kl), optimizer.desired_kl)
                self.state.learning_rate.fill_(rate)
            if ppo.target_kl is not None and float(kl) > ppo.target_kl:
                break
        return self._metrics(epochs, explained)

    def _metrics(self, epochs: list[Tensor], explained: Tensor) -> dict[str, float]:
        self._check_finite(epochs)
        mean, last = torch.cat(epochs).mean(0), epochs[-1].mean(0)
        host = torch.stack((mean, last)).tolist()
        metrics = dict(zip(STEP_METRICS, host[0], strict=True))
        # How far the whole update went, not the average on the way there.
        for name in ("approx_kl", "clip_fraction"):
            metrics[name] = host[1][STEP_METRICS.index(name)]
        del metrics["loss"]
        return metrics | {
            "explained_variance": float(explained),
            "learning_rate": float(self.state.learning_rate),
            "epochs": float(len(epochs)),
        }

    def _check_finite(self, epochs: list[Tensor]) -> None:
        # An fp16 gradient may overflow: its step is then left out and the loss scale lowered.
        columns = len(LossTerms._fields) if self.config.optimizer.precision == "fp16" else len(STEP_METRICS)
        good = torch.stack([torch.isfinite(rows[:, :columns]).all() for rows in epochs])
        if bool(good.all()) and bool(torch.isfinite(self.state.param).all()):
            return
        if bool(good.all()):
            raise NonFiniteError("the update made a weight infinite or NaN: try a lower learning_rate.")
        epoch = int((~good).nonzero()[0])
        row, column = (int(i) for i in (~torch.isfinite(epochs[epoch][:, :columns])).nonzero()[0])
        raise NonFiniteError(
            f"the {STEP_METRICS[column]} became {float(epochs[epoch][row, column])} in epoch {epoch + 1}, minibatch "
            f"{row + 1} of the update: try a lower learning_rate or max_grad_norm, or check the env's rewards."
        )

    def set_progress(self, progress: float) -> None:
        """Set the learning rate for this share of the run."""
        optimizer = self.config.optimizer
        if optimizer.lr_schedule != "adaptive":
            self.state.learning_rate.fill_(scheduled(optimizer.lr_schedule, optimizer.learning_rate, progress))

    # The minibatch step ----------------------------------------------------------------------------------------------

    def _eager_step(
        self, state: AdamState, obs: dict[str, Tensor], data: list[Tensor], indices: Sequence[Tensor]
    ) -> Tensor:
        """One optimizer step on the mean gradient of the minibatches; returns their mean metrics `[7]`."""
        optimizer = self.config.optimizer
        gradient, metrics = state.mean.new_zeros(()), state.mean.new_zeros(())
        for index in indices:
            terms = self._loss(state.param, {key: x[index] for key, x in obs.items()}, [x[index] for x in data])
            scaled = terms.loss * state.loss_scale if optimizer.precision == "fp16" else terms.loss
            gradient = gradient + torch.autograd.grad(scaled, state.param)[0]
            metrics = metrics + torch.stack([term.detach() for term in terms])
        share = 1.0 / len(indices)
        with torch.no_grad():
            if optimizer.precision == "fp16":
                gradient = gradient / state.loss_scale
            clipped, norm = clip_by_norm(gradient * share, optimizer.max_grad_norm)
            apply = scaled_adam_step if optimizer.precision == "fp16" else adam_step
            apply(state, clipped, eps=optimizer.adam_eps, weight_decay=optimizer.weight_decay)
            return torch.cat((metrics * share, norm[None]))

    def _loss(self, param: Tensor, obs: dict[str, Tensor], data: list[Tensor]) -> LossTerms:
        action, old_log_prob, old_value, advantage, return_ = data
        ppo = self.config.ppo
        with self._autocast():
            # A shared trunk is one module: tying its weights by name would swap them twice and restore them wrongly.
            distribution, value = functional_call(self.policy, self._views(param), (obs,), tie_weights=False)
        return ppo_loss(
            log_prob=distribution.log_prob(action),
            value=value,
            entropy=distribution.entropy(),
            old_log_prob=old_log_prob,
            old_value=old_value,
            advantage=advantage,
            return_=return_,
            clip_range=ppo.clip_range,
            clip_value_loss=ppo.clip_value_loss,
            value_loss_coef=ppo.value_loss_coef,
            entropy_coef=ppo.entropy_coef,
            normalize_advantage=ppo.normalize_advantage == "minibatch",
        )

    def _autocast(self) -> torch.autocast:
        precision = self.config.optimizer.precision
        return torch.autocast(self.device.type, _AUTOCAST[precision], enabled=precision != "fp32")

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        parts = flat.split([shape.numel() for shape in self._shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    # Compilation -----------------------------------------------------------------------------------------------------

    def _wants_compile(self) -> bool:
        wish, config = self.config.run.compile, self.config
        steps = config.num_iterations * config.ppo.update_epochs * config.num_minibatches
        return wish == "on" or (wish == "auto" and steps >= _COMPILE_PAYS_AFTER)

    def _first_compiled_step(self, *args: Any) -> Tensor:
        """Compile on the first call; where that cannot be done, say so once and go on without."""
        torch._dynamo.reset()  # the cache is the function's: learners of earlier runs in this process would fill it
        compiled = torch.compile(self._eager_step, fullgraph=True, dynamic=False)
        try:
            # Lets the gradient be taken inside the one compiled graph.
            with torch._dynamo.config.patch(trace_autograd_ops=True):
                metrics = compiled(*args)
        except Exception as error:  # the compiler and the toolchain raise whatever they like
            reason = str(error).strip().splitlines()
            log.warning(
                "The minibatch step is not compiled (%s): the run goes on, slower.", reason[0] if reason else error
            )
            self.compiled, self._step = False, self._eager_step
            return self._eager_step(*args)
        self._step = self._compiled_step
        self._compiled = compiled
        return metrics

    def _compiled_step(self, *args: Any) -> Tensor:
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            return self._compiled(*args)

    # State -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Optimizer, reward statistics and generator; the weights belong to the policy."""
        return {
            "optimizer": {name: x.clone() for name, x in self.state.tensors().items()},
            "reward_normalizer": {name: x.clone() for name, x in self.reward_normalizer.state_dict().items()},
            "generator": {"state": self.generator.get_state()},
        }

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Put back what `state_dict` gave."""
        for name, tensor in self.state.tensors().items():
            tensor.copy_(state["optimizer"][name])
        self.reward_normalizer.load_state_dict(state["reward_normalizer"])
        self.generator.set_state(state["generator"]["state"].cpu())


def _rows(obs: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    return {key: x[rows] for key, x in obs.items()}
