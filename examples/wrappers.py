"""Put Gymnasium wrappers around an env: its own, or yours, each with its keywords."""

import gymnasium as gym

from proxima import train


class ScaledReward(gym.RewardWrapper):
    """Multiply rewards."""

    def __init__(self, env, scale: float = 1.0):
        super().__init__(env)
        self.scale = scale

    def reward(self, reward):
        """Of one step."""
        return self.scale * reward


if __name__ == "__main__":
    result = train(
        env="CartPole-v1",
        wrappers=[
            (gym.wrappers.DelayObservation, {"delay": 1}),
            (gym.wrappers.FrameStackObservation, {"stack_size": 3}),
            (ScaledReward, {"scale": 0.1}),
        ],
        total_timesteps=8_000,
        quiet=True,
    )
    print(f"observations {result.policy.spec.obs['obs'].shape}, mean return {result.episode_return:.1f}")
    print(result.config.env.wrappers)
