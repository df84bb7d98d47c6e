"""The learner: from a rollout to better weights. The only place that takes an optimizer step.

The whole minibatch step (gather, forward, loss, gradient, clipping, Adam) is one function of tensors on one flat
parameter vector. On the CPU a whole epoch of such steps compiles into native code with the loop inside; on a GPU the
compiled step is captured as a CUDA graph. Metrics stay on the device until the update is over.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor
from torch.func import functional_call, grad_and_value

from proxima.algo.adam import AdamState, adam_step, bias_scales, clip_by_norm, scaled_adam_step
from proxima.algo.batch import Batch, Tensors, chunks, places_of, take, take_all, take_obs
from proxima.algo.cuda_graph import GraphedEpoch
from proxima.algo.flat import FlatParameters
from proxima.algo.gae import gae, next_values
from proxima.algo.losses import LossTerms, explained_variance, ppo_loss
from proxima.algo.normalize import RewardNormalizer
from proxima.algo.policy import Policy
from proxima.algo.schedules import adapted, scheduled
from proxima.compiling import report_failure
from proxima.config import Config
from proxima.data.generators import restore_generator
from proxima.data.rollout import Rollout, minibatch_indices
from proxima.errors import NonFiniteError, UsageError

STEP_METRICS = (*LossTerms._fields, "gradient_norm")
EpochFunction = Callable[[AdamState, Tensor, Tensors, Tensors, Tensor], tuple[AdamState, Tensor]]
_AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_FIRST_SCALE = 2.0**16  # of an fp16 loss
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
        self.generator = Generator(device).manual_seed(seed)
        self.reward_normalizer = RewardNormalizer(config.env.num_envs, clip=config.normalize.clip_reward).to(device)
        self.flat = FlatParameters(policy)
        scale = _FIRST_SCALE if config.optimizer.precision == "fp16" else 1.0
        self.state = AdamState.start(self.flat.vector, loss_scale=scale)
        self.learning_rate = self.flat.vector.new_tensor(config.optimizer.learning_rate)
        self.compiled = self._wants_compile()
        self._run_epoch: EpochFunction = self._compile_and_run if self.compiled else self._epoch
        self._native: EpochFunction | None = None
        self._compiled_shapes: set[torch.Size] = set()

    # Preparation -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> Batch:
        """Scale the rewards, evaluate the behaviour policy on the rollout, and estimate advantages."""
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
        with self._autocast():  # as in the update, or the first ratio would not be 1
            parts = [
                self._evaluate(take_obs(obs, places, part), take(action, part), take_all(context, part), len(action))
                for part in chunks(obs, places, self.device)
            ]
        old_log_prob, value = (torch.cat(column, 1) for column in zip(*parts, strict=True))
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

    def _evaluate(self, obs: Tensors, action: Tensor, context: Tensors, length: int) -> tuple[Tensor, Tensor]:
        """Log-probability and value of some of the sequences, `[L, ...]`."""
        distribution, value = self.policy(obs, **context)
        return distribution.log_prob(action).view(length, -1), value.view(length, -1)

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
            state, metrics = self.state, batch.advantage.new_zeros(len(STEP_METRICS))
            for order in minibatch_indices(rollout.num_sequences, self.config.num_updates, self.generator):
                state, total = self._run_epoch(state, self.learning_rate, batch.obs, data, order)
                metrics = metrics + total / self.config.num_updates
            self._keep(state)
            epochs.append(metrics)
            kl = metrics[STEP_METRICS.index("approx_kl")]
            if optimizer.lr_schedule == "adaptive":
                self.learning_rate.fill_(adapted(float(self.learning_rate), float(kl), optimizer.desired_kl))
            if ppo.target_kl is not None and float(kl) > ppo.target_kl:
                break
        return self._metrics(torch.stack(epochs), explained)

    @torch.no_grad()
    def _keep(self, state: AdamState) -> None:
        for ours, new in zip(self.state, state, strict=True):
            ours.copy_(new)

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
        # An fp16 gradient may overflow: its step is then left out and the loss scale lowered.
        fp16 = self.config.optimizer.precision == "fp16"
        for number, row in enumerate(epochs, start=1):
            for name, value in zip(STEP_METRICS, row, strict=True):
                if not math.isfinite(value) and not (fp16 and name == "gradient_norm"):
                    raise NonFiniteError(
                        f"the {name} became {value} in epoch {number} of the update: try a lower learning_rate or "
                        "max_grad_norm, or check the env's rewards."
                    )
        if not bool(torch.isfinite(self.state.param).all()):
            raise NonFiniteError("the update made a weight infinite or NaN: try a lower learning_rate.")

    def set_progress(self, progress: float) -> None:
        """Set the learning rate for this share of the run."""
        optimizer = self.config.optimizer
        if optimizer.lr_schedule != "adaptive":
            self.learning_rate.fill_(scheduled(optimizer.lr_schedule, optimizer.learning_rate, progress))

    # The minibatch step ----------------------------------------------------------------------------------------------

    def _epoch(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor
    ) -> tuple[AdamState, Tensor]:
        """One step a row of `order` `[M, B]`; returns the last state and the sum of the steps' metrics `[7]`."""
        total = learning_rate.new_zeros(len(STEP_METRICS))
        for index in order:
            state, metrics = self._step(state, learning_rate, obs, data, index)
            total = total + metrics
        return state, total

    def _native_epoch(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor
    ) -> tuple[AdamState, Tensor]:
        """The same, written so that the loop becomes part of the compiled code."""
        steps = order.shape[0]

        def body(i: Tensor, total: Tensor, *fields: Tensor) -> tuple[Tensor, ...]:
            index = order.index_select(0, i.reshape(1)).reshape(-1)
            after, metrics = self._step(AdamState(*fields), learning_rate, obs, data, index)
            return i + 1, total + metrics, *(x.clone() for x in after)

        start = (torch.zeros((), dtype=torch.long), learning_rate.new_zeros(len(STEP_METRICS)), *state)
        _, total, *fields = torch.while_loop(lambda i, *_: i < steps, body, start)
        return AdamState(*fields), total

    def _step(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, index: Tensor
    ) -> tuple[AdamState, Tensor]:
        """One optimizer step on the sequences of `index`, in parts whose gradients are averaged, and its metrics."""
        optimizer = self.config.optimizer
        fp16 = optimizer.precision == "fp16"
        gradient, metrics = torch.zeros_like(state.param), learning_rate.new_zeros(len(LossTerms._fields))
        for part in index.tensor_split(optimizer.gradient_accumulation):
            rows = take_all(data, part)
            places = {key: data[places_of(key)] for key in obs if places_of(key) in data}
            part_gradient, terms = self._gradient(state, take_obs(obs, places, part), rows)
            share: Tensor | float = part.shape[0] / index.shape[0]
            if "weight" in data:
                share = rows["weight"].sum() / data["weight"][:, index].sum()
            gradient = gradient + share * part_gradient
            metrics = metrics + share * terms
        if fp16:
            gradient = gradient / state.loss_scale
        clipped, norm = clip_by_norm(gradient, optimizer.max_grad_norm)
        apply = scaled_adam_step if fp16 else adam_step
        state = apply(state, clipped, learning_rate, eps=optimizer.adam_eps, weight_decay=optimizer.weight_decay)
        return state, torch.cat((metrics, norm[None]))

    def _gradient(self, state: AdamState, obs: Tensors, data: Tensors) -> tuple[Tensor, Tensor]:
        """Gradient `[P]` of the (scaled) loss, and the loss terms `[6]`."""
        fp16 = self.config.optimizer.precision == "fp16"

        def loss(param: Tensor) -> tuple[Tensor, Tensor]:
            terms = self._loss(param, obs, data)
            scaled = terms.loss * state.loss_scale if fp16 else terms.loss
            return scaled, torch.stack([term.detach() for term in terms])

        if torch.compiler.is_compiling():  # the form that a compiled graph may hold inside
            gradient, (_, terms) = grad_and_value(loss, has_aux=True)(state.param)
            return gradient, terms
        param = state.param.detach().requires_grad_()
        with torch.enable_grad():
            scaled, terms = loss(param)
            return torch.autograd.grad(scaled, param)[0], terms

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
        precision = self.config.optimizer.precision
        return torch.autocast(self.device.type, _AUTOCAST[precision], enabled=precision != "fp32")

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

    def give_up_compiling(self) -> None:
        """Go on eager."""
        self.compiled, self._run_epoch = False, self._epoch

    def _compile_and_run(
        self, state: AdamState, learning_rate: Tensor, obs: Tensors, data: Tensors, order: Tensor
    ) -> tuple[AdamState, Tensor]:
        """Compile on the first call with a shape; where that cannot be done, say so once and go on without."""
        if self._native is not None and order.shape in self._compiled_shapes:
            return self._native(state, learning_rate, obs, data, order)
        try:
            self._native = self._native or self._compile()
            result = self._native(state, learning_rate, obs, data, order)
        except Exception as error:  # the compiler and the toolchain raise whatever they like
            report_failure("learner", error)
            self.give_up_compiling()
            return self._epoch(state, learning_rate, obs, data, order)
        self._compiled_shapes.add(order.shape)
        return result

    def _compile(self) -> EpochFunction:
        # The cache is the function's, so learners of earlier runs in this process would fill it; what else the program
        # has compiled is compiled again on its next call.
        torch._dynamo.reset()
        if self.device.type == "cpu":
            # In one piece with its kernels, the code that calls the many steps of a memory takes minutes to compile.
            apart = self.config.sequence_length > 1
            options: dict[str, Any] = {"cpp_wrapper": True, "cpp_wrapper_build_separate": apart}
            return torch.compile(self._native_epoch, fullgraph=True, dynamic=False, options=options)
        # A native loop would ask the device at every step whether to go on.
        step = torch.compile(self._step, fullgraph=True, dynamic=False)
        return GraphedEpoch(step, num_metrics=len(STEP_METRICS))

    # State -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Optimizer, reward statistics and generator; the weights belong to the policy."""
        return {
            "optimizer": {name: x.clone() for name, x in self._optimizer_tensors().items()},
            "reward_normalizer": {name: x.clone() for name, x in self.reward_normalizer.state_dict().items()},
            "generator": {"state": self.generator.get_state()},
        }

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> bool:
        """Put back what `state_dict` gave. Returns whether the generator could be: one of another device cannot."""
        for name, tensor in self._optimizer_tensors().items():
            tensor.copy_(state["optimizer"][name])
        self.state.scales.copy_(bias_scales(self.state.steps))
        self.reward_normalizer.load_state_dict(state["reward_normalizer"])
        return restore_generator(self.generator, state["generator"]["state"], otherwise=int(self.state.steps))

    def follow_changes(self, before: Config) -> None:
        """Let options that a resume changed take the place of what the optimizer remembers of the old ones."""
        old, new = before.optimizer, self.config.optimizer
        if (old.learning_rate, old.lr_schedule) != (new.learning_rate, new.lr_schedule):
            self.learning_rate.fill_(new.learning_rate)
        if old.precision != new.precision:
            self.state.loss_scale.fill_(_FIRST_SCALE if new.precision == "fp16" else 1.0)

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of the optimizer: not the policy's parameters, nor what follows from the steps."""
        tensors = self.state._asdict() | {"learning_rate": self.learning_rate}
        return {name: x for name, x in tensors.items() if name not in ("param", "scales")}
