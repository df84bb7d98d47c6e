"""Invalid-action masks, with an env that has `action_masks()`."""

from tasks import Piles

from proxima import evaluate, train

run = train(
    env=Piles,
    total_timesteps=20_000,
    num_envs=8,
    num_steps=128,
    learning_rate=1e-3,
    lr_schedule="constant",
    gamma=0.95,
    entropy_coef=0.01,
)
print("steps", run.global_step)
print("return", evaluate(run.run_dir, episodes=100, seed=1000).returns.mean)
