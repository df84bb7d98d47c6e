"""A term of your own in the loss: a penalty on large actions, which grows over the run, with a metric."""

from torch import Tensor

from proxima import train
from proxima.algo.extra_loss import Outputs
from proxima.algo.losses import weighted_mean
from proxima.data.batch import Minibatch


def small_actions(minibatch: Minibatch, outputs: Outputs) -> dict[str, Tensor]:
    """A penalty on the mean action, which grows over the run; `loss` is added to PPO's loss, the rest are metrics."""
    effort = outputs.distribution.mode().square().mean(-1)  # [B]
    mean_effort = weighted_mean(effort, minibatch.weight)
    return {"loss": 0.1 * outputs.progress * mean_effort, "effort": mean_effort}


if __name__ == "__main__":
    result = train(env="Pendulum-v1", loss=small_actions, total_timesteps=8_192, num_envs=8, num_steps=128)
    print(f"return {result.episode_return:.0f}")
    print((result.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
