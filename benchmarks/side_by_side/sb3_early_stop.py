"""Stop at a return, and log a number from the env's info."""

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import VecNormalize
from tasks import Cart


class StopAndLog(BaseCallback):
    """Log the mean distance of each rollout; stop when the mean return of the last episodes is high enough."""

    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold
        self.distances = []

    def _on_step(self):
        self.distances += [info["distance"] for info in self.locals["infos"]]
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        return not returns or safe_mean(returns) < self.threshold

    def _on_rollout_end(self):
        self.logger.record("rollout/distance", np.mean(self.distances))
        self.distances.clear()


env = VecNormalize(make_vec_env(Cart, n_envs=8, seed=1))
model = PPO("MlpPolicy", env, n_steps=256, learning_rate=1e-3, gamma=0.95, seed=1, device="cpu")
model.set_logger(configure("logs", ["csv", "tensorboard"]))
model.learn(100_000, callback=StopAndLog(-10.0))
model.save("cart")
env.save("cart_statistics.pkl")

test = VecNormalize.load("cart_statistics.pkl", make_vec_env(Cart, n_envs=8, seed=1000))
test.training = False
test.norm_reward = False
mean, _ = evaluate_policy(model, test, n_eval_episodes=100)
print("steps", model.num_timesteps)
print("return", mean)
