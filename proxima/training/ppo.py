"""PPO's iteration."""

from typing import Any, ClassVar

from torch import Tensor

from proxima.algo.ppo import PPOLearner
from proxima.nets.actor_critic import ActionHead
from proxima.training.algorithm import Algorithm, Read
from proxima.training.seeding import stream_seed
from proxima.training.setup import Parts


class PPO(Algorithm):
    """Collect a rollout, estimate advantages, update, then update the observation statistics."""

    phases: ClassVar[tuple[str, ...]] = ("collect", "advantage", "update")
    learns_with_skips = True

    def __init__(self, parts: Parts):
        super().__init__(parts)
        config = parts.config
        self.ppo = PPOLearner(
            self.policy,
            config,
            device=parts.device,
            seed=stream_seed(config.run.seed, "minibatches"),
            num_iterations=max(1, round(parts.num_policy_steps / config.rollout_size)),
            mirror=parts.env.mirror,
            peers=parts.ranks.peers(parts.share.total),
        )
        self.learners = {"learner": self.ppo}
        # Storing values while acting saves a second pass through shared convolutions. But the first ratio must be 1:
        # recurrent states have to be unrolled as in the update, and the precision has to be that of the update.
        stores_values = self.policy.values_are_cheap and not self.policy.state_size
        stores_values &= config.optimizer.precision == "fp32"
        self.source = self.make_source(
            config.ppo.num_steps,
            sequence_length=config.sequence_length,
            # With overlap, ratios are to the policy that collected, which the learner no longer has.
            store_values=stores_values or config.cluster.overlap,
        )

    def iterate(self) -> dict[str, float]:
        """One rollout and its update."""
        rollout = self.timed("collect", self.source.collect)
        for rows in self.source.restarted:
            self.ppo.forget_episodes(rows)
        self.stop_compiling_without_toolchain()
        batch = self.timed("advantage", self.ppo.prepare, rollout)
        metrics = self.timed("update", self.ppo.update, batch)
        self.timed("update", self.ppo.update_normalizer, rollout)
        return metrics | self.policy.metrics()

    def changed_by_resume(self, progress: float) -> list[str]:
        """Also warn if the lower bound of the std goes back up."""
        notices, head = super().changed_by_resume(progress), getattr(self.policy, "action_head", None)
        if not isinstance(head, ActionHead) or not isinstance(head.log_min_std, Tensor):
            return notices
        before, now = float(head.log_min_std.exp()), head.min_std_at(progress)
        if now > before * (1.0 + 1e-6):
            notices.append(
                f"The lower bound of the std goes from {before:.3g} back to {now:.3g}: min_std falls at the end."
            )
        return notices

    def set_state(self, read: Read, state: dict[str, Any], *, new_episodes_seed: int) -> list[str]:
        """With new episodes, what the learner carries over from rollout to rollout restarts as well."""
        different = super().set_state(read, state, new_episodes_seed=new_episodes_seed)
        if not self.source.in_old_episodes:
            self.ppo.forget_episodes()
        return different
