"""A logger of your own, and numbers from the env's `info` as metrics."""

import csv

from proxima import train


class CsvLogger:
    """Writes a few metrics to a CSV file. Given as a class, it is made with the run's folder."""

    def __init__(self, run_dir):
        self.file = (run_dir / "speed.csv").open("w", newline="")
        self.rows = csv.writer(self.file)
        self.rows.writerow(["step", "return", "speed"])

    def write(self, step, metrics):
        """Called after every iteration."""
        self.rows.writerow([step, metrics["episode_return"], metrics["info_x_velocity"]])

    def close(self):
        """Called at the end of the run."""
        self.file.close()


result = train(
    env="HalfCheetah-v5",
    total_timesteps=4_000,
    num_envs=4,
    num_steps=256,
    loggers=[CsvLogger],  # or objects, or --logger module:CsvLogger
    log_info=["x_velocity", "reward_ctrl"],
    progress=False,
)
print((result.run_dir / "speed.csv").read_text())
