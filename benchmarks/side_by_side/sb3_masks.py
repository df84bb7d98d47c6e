"""Invalid-action masks, with an env that has `action_masks()`."""

from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.env_util import make_vec_env
from tasks import Piles

env = make_vec_env(Piles, n_envs=8, seed=1)
model = MaskablePPO("MlpPolicy", env, n_steps=128, learning_rate=1e-3, gamma=0.95, ent_coef=0.01, seed=1, device="cpu")
model.learn(20_000)
model.save("piles")

mean, _ = evaluate_policy(model, make_vec_env(Piles, n_envs=8, seed=1000), n_eval_episodes=100)
print("steps", model.num_timesteps)
print("return", mean)
