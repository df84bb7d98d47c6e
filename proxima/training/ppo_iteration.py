"""PPO's iteration."""

from collections.abc import Callable
from typing import Any

import torch

from proxima.algo.ppo import Learner
from proxima.config import Config
from proxima.envs.contract import VecEnv
from proxima.nets.spec import Spec
from proxima.training import setup
from proxima.training.algorithm import Algorithm
from proxima.training.collector import Collector
from proxima.training.seeding import stream_seed


class PPO(Algorithm):
    """Collect a rollout, estimate advantages, update, then let the normaliser see the new observations."""

    phases = ("collect", "advantage", "update")
    learner: Learner

    def __init__(
        self, env: VecEnv, spec: Spec, config: Config, *, device: torch.device, threads: setup.Threads, decisions: int
    ):
        """`decisions` is how many the run will have, over all envs."""
        super().__init__(env, config, device=device, threads=threads)
        seed = config.run.seed
        self.policy = setup.build_policy(spec, config, device)
        self.learner = Learner(
            self.policy,
            config,
            device=device,
            seed=stream_seed(seed, "minibatches"),
            num_iterations=max(1, round(decisions / config.rollout_size)),
        )
        self.collector = Collector(
            env,
            self.policy,
            num_steps=config.ppo.num_steps,
            device=device,
            env_seed=seed,
            seed=stream_seed(seed, "actions"),
            holds_actions=config.env.holds_actions,
            flat=self.learner.flat if setup.compiles_actor(config, device, decisions // env.num_envs) else None,
            sequence_length=config.sequence_length,
            # What the convolutions saw need not be seen again; but a memory is to be unrolled as in the update, and
            # reduced precision is to be that of the update, or the first ratio would not be 1.
            judges=bool(self.policy.image_keys)
            and self.policy.shared
            and not self.policy.state_size
            and config.optimizer.precision == "fp32",
        )

    def iterate(self) -> dict[str, float]:
        """One rollout and its update."""
        rollout = self.timed("collect", self.collector.collect)
        if self.collector.no_toolchain and self.learner.compiled:
            self.learner.give_up_compiling()
        batch = self.timed("advantage", self.learner.prepare, rollout)
        metrics = self.timed("update", self.learner.update, batch, rollout)
        # After the update, so that the first probability ratio of the next one is 1.
        self.timed("update", self.policy.normalizer.update, rollout.step_obs())
        return metrics

    def set_state(
        self, read: Callable[[str], Any | None], state: dict[str, Any], *, new_episodes_seed: int | None
    ) -> list[str]:
        """In new episodes, the reward normaliser's running return begins anew as well."""
        different = super().set_state(read, state, new_episodes_seed=new_episodes_seed)
        if new_episodes_seed is not None:
            self.learner.reward_normalizer.carry.zero_()
        return different
