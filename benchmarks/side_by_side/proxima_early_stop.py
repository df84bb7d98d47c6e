"""Stop at a return, and log a number from the env's info."""

from tasks import Cart

from proxima import evaluate, train

run = train(
    env=Cart,
    total_timesteps=100_000,
    num_envs=8,
    num_steps=256,
    learning_rate=1e-3,
    lr_schedule="constant",
    gamma=0.95,
    log_info=["distance"],
    on_iteration=lambda trainer, metrics: not metrics["episode_return"] > -10.0,
)
print("steps", run.global_step)
print("return", evaluate(run.run_dir, episodes=100, seed=1000).returns.mean)
