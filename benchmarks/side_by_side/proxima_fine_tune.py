"""Fine-tuning on a heavier cart with other action bounds."""

from tasks import Cart

from proxima import evaluate, train

SETTINGS = {"num_envs": 8, "num_steps": 256, "gamma": 0.95, "lr_schedule": "constant"}
HEAVY = {"max_force": 2.0, "mass": 3.0}

first = train(env=Cart, name="first", total_timesteps=40_000, learning_rate=1e-3, **SETTINGS)

second = train(
    env=Cart,
    env_kwargs=HEAVY,
    name="second",
    init_from=first.run_dir,
    total_timesteps=10_000,
    learning_rate=3e-4,
    **SETTINGS,
)
print("steps", first.global_step + second.global_step)
print("return", evaluate(second.run_dir, episodes=100, seed=1000).returns.mean)
