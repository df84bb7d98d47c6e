"""Fine-tuning on a heavier cart with other action bounds."""

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize
from tasks import Cart

SETTINGS = {"n_steps": 256, "gamma": 0.95, "seed": 1, "device": "cpu"}
HEAVY = {"max_force": 2.0, "mass": 3.0}

env = VecNormalize(make_vec_env(Cart, n_envs=8, seed=1))
first = PPO("MlpPolicy", env, learning_rate=1e-3, **SETTINGS).learn(40_000)
first.save("first")
env.save("first_statistics.pkl")

# PPO.load("first", env=heavy) refuses other action bounds, so the weights go into a new model.
heavy = VecNormalize.load("first_statistics.pkl", make_vec_env(Cart, n_envs=8, seed=1, env_kwargs=HEAVY))
second = PPO("MlpPolicy", heavy, learning_rate=3e-4, **SETTINGS)
second.set_parameters("first")
second.learn(10_000)
second.save("second")
heavy.save("second_statistics.pkl")

test = VecNormalize.load("second_statistics.pkl", make_vec_env(Cart, n_envs=8, seed=1000, env_kwargs=HEAVY))
test.training = False
test.norm_reward = False
mean, _ = evaluate_policy(second, test, n_eval_episodes=100)
print("steps", first.num_timesteps + second.num_timesteps)
print("return", mean)
