"""Fine-tuning: a policy that was trained on one env goes on in a changed one."""

from proxima import compare, evaluate, train

options = {"num_envs": 4, "num_steps": 256, "hidden_sizes": [32, 32], "progress": False}
first = train(env="CartPole-v1", name="first", total_timesteps=8_000, **options)
print(first)
print(evaluate(first.run_dir, episodes=10))

# Longer episodes. The weights and the observation statistics are the first run's; steps, optimizer and options are new.
second = train(
    env="CartPole-v1",
    name="second",
    max_episode_steps=1_000,
    total_timesteps=4_000,
    learning_rate=1e-4,
    init_from=str(first.run_dir),
    **options,
)
print(second)
print(compare(first.run_dir, second.run_dir))
