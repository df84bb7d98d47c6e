"""An algorithm of your own: PPO whose learner sees clipped rewards, with a metric of how many were clipped."""

from proxima import train
from proxima.training.ppo import PPO


class ClippedRewardPPO(PPO):
    """One iteration of PPO, as in `proxima/training/ppo.py`, with one more line. Episode returns are not clipped."""

    def iterate(self) -> dict[str, float]:
        """Collect, clip, estimate advantages, update."""
        rollout = self.timed("collect", self.source.collect)
        clipped = float((rollout.reward.abs() > 1.0).float().mean())
        rollout.reward.clamp_(-1.0, 1.0)
        batch = self.timed("advantage", self.ppo.prepare, rollout)
        metrics = self.timed("update", self.ppo.update, batch)
        self.ppo.update_normalizer(rollout)
        return metrics | self.policy.metrics() | {"clipped_rewards": clipped}


if __name__ == "__main__":
    result = train(env="Pendulum-v1", algorithm=ClippedRewardPPO, total_timesteps=8_192, num_envs=8, num_steps=128)
    print(f"return {result.episode_return:.0f}")
    print((result.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
