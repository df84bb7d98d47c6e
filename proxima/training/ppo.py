"""PPO's iteration."""

from typing import Any

from proxima.algo.ppo import PPOLearner
from proxima.training import setup
from proxima.training.algorithm import Algorithm, Read
from proxima.training.collector import Collector
from proxima.training.seeding import stream_seed


class PPO(Algorithm):
    """Collect a rollout, estimate advantages, update, then let the normaliser see the new observations."""

    phases = ("collect", "advantage", "update")

    def __init__(self, parts: setup.Parts):
        super().__init__(parts)
        config, device, seed = parts.config, parts.device, parts.config.run.seed
        self.policy = setup.build_policy(parts.spec, config, device)
        self.ppo = PPOLearner(
            self.policy,
            config,
            device=device,
            seed=stream_seed(seed, "minibatches"),
            num_iterations=max(1, round(parts.num_actions / config.rollout_size)),
        )
        self.learners = {"learner": self.ppo}
        # Stored while acting where that saves a second pass through convolutions. But recurrent states are to be
        # unrolled as in the update, and the precision is to be that of the update, or the first ratio would not be 1.
        stores_values = self.policy.values_are_cheap and not self.policy.state_size
        self.source = Collector(
            parts.env,
            self.policy,
            num_steps=config.ppo.num_steps,
            device=device,
            env_seed=seed,
            seed=stream_seed(seed, "actions"),
            hold_schedule=parts.hold_schedule,
            flat=self.ppo.flat if parts.compiles_actor else None,
            sequence_length=config.sequence_length,
            store_values=stores_values and config.optimizer.precision == "fp32",
        )

    def iterate(self) -> dict[str, float]:
        """One rollout and its update."""
        rollout = self.timed("collect", self.source.collect)
        self.stop_compiling_without_toolchain()
        batch = self.timed("advantage", self.ppo.prepare, rollout)
        metrics = self.timed("update", self.ppo.update, batch)
        # After the update, so that the first probability ratio of the next one is 1.
        self.timed("update", self.policy.normalizer.update, rollout.step_obs())
        return metrics

    def set_state(self, read: Read, state: dict[str, Any], *, new_episodes_seed: int) -> list[str]:
        """In new episodes, the reward normaliser's running return begins anew as well."""
        different = super().set_state(read, state, new_episodes_seed=new_episodes_seed)
        if not self.source.in_old_episodes:
            self.ppo.reward_normalizer.carry.zero_()
        return different
