"""A training loop of your own: log numbers, change the learning rate and the env, save, stop early."""

import gymnasium as gym

from proxima import Trainer, load_config


class WindyCartPole(gym.Wrapper):
    """CartPole with a wind that pushes the pole; `set_wind` changes it during training."""

    wind = 0.0

    def set_wind(self, wind: float) -> None:
        """In radians per second and step."""
        self.wind = wind

    def step(self, action):
        """Step, then push."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        obs[3] += self.wind
        self.unwrapped.state = tuple(obs)
        return obs, reward, terminated, truncated, info


gym.register("WindyCartPole-v0", entry_point=lambda: WindyCartPole(gym.make("CartPole-v1")))

options = {"env": "WindyCartPole-v0", "total_timesteps": 10_000, "num_envs": 4, "num_steps": 256, "progress": False}
trainer = Trainer(load_config(None, options))
wind = 0.0
for metrics in trainer.iterations():
    if metrics["episode_return"] > 25 and not wind:
        wind = 0.02
        trainer.call_envs("set_wind", wind)
        trainer.learning_rate = 1e-4  # the schedule ends here
        print("harder from step", metrics["global_step"], "saved in", trainer.save())
    trainer.log({"course/wind": wind})  # in metrics.jsonl, TensorBoard and every logger
    if metrics["episode_return"] > 40:
        break  # saves, too

print(trainer.result())
