"""Times one update on a GPU: eager, compiled, and captured as a CUDA graph; checks that it never synchronises.

    python benchmarks/gpu_learner.py

Random data of three sizes: a small continuous task, thousands of envs, and images. The host must not wait for the
device within an epoch: PyTorch is set to raise if it does.
"""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from proxima.algo.ppo import PPOLearner
from proxima.config import load_config
from proxima.data.rollout import Rollout
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.spec import ActionSpec, ObsSpec, Spec

BOX = ActionSpec("box", (12,), (-1.0,) * 12, (1.0,) * 12)
WORKS = {
    "2x64, 64 x 32, minibatch 64": (ObsSpec((17,), "float32"), BOX, {"num_envs": 64, "num_steps": 32}),
    "2x256, 4096 x 24, minibatch 24576": (
        ObsSpec((183,), "float32"),
        BOX,
        {"num_envs": 4096, "num_steps": 24, "minibatch_size": 24576, "hidden_sizes": [256, 256], "update_epochs": 5},
    ),
    "CNN 84x84x4, 8 x 128, minibatch 256": (
        ObsSpec((84, 84, 4), "uint8"),
        ActionSpec("discrete", (7,)),
        {"num_envs": 8, "num_steps": 128, "minibatch_size": 256, "update_epochs": 4},
    ),
}


def make(obs: ObsSpec, action: ActionSpec, options: dict, way: str) -> tuple[PPOLearner, Rollout]:
    config = load_config(None, options | {"compile": "off" if way == "eager" else "on", "device": "cuda"})
    device = torch.device("cuda")
    torch.manual_seed(0)
    policy = ActorCritic(Spec({"obs": obs}, action), config.policy, config.normalize).to(device)
    steps, envs = config.ppo.num_steps, config.env.num_envs
    shape = (steps + 1, envs, *obs.shape)
    seen = torch.randint(0, 256, shape, dtype=torch.uint8) if obs.dtype == "uint8" else torch.randn(shape)
    first = {"obs": seen[0].to(device)}
    rollout = Rollout(num_steps=steps, num_envs=envs, obs=first, action=policy.act(first).action, device=device)
    rollout.obs["obs"].copy_(seen)
    rollout.reward.copy_(torch.randn(steps, envs))
    for t in range(steps):
        noise = torch.randn(envs, policy.noise_size).to(device)
        rollout.action[t] = policy.act({"obs": rollout.obs["obs"][t]}, noise).action
    learner = PPOLearner(policy, config, device=device, seed=1)
    if way == "compiled":
        learner.epochs.compiled = False
        learner.epochs._step = torch.compile(learner._step, fullgraph=True, dynamic=False)
    return learner, rollout


def measure(learner: PPOLearner, rollout: Rollout) -> tuple[float, float, torch.Tensor]:
    """Seconds of the first update, seconds of the best of five more, and the weights after the first."""
    times: list[float] = []
    for i in range(6):
        batch = learner.prepare(rollout)
        torch.cuda.synchronize()
        start = time.perf_counter()
        learner.update(batch)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        if i == 0:
            weights = learner.state.param.clone()
    return times[0], min(times[1:]), weights


def epochs_without_waiting(learner: PPOLearner, rollout: Rollout) -> None:
    batch = learner.prepare(rollout)
    order = torch.randperm(learner.layout.num_sequences, device="cuda").view(learner.config.num_minibatches, -1)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        learner.run_epoch(batch.rows, order)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA GPU here")
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'work':<38}{'way':<12}{'first s':>9}{'update ms':>11}{'ratio':>8}  syncs  max. difference to eager")
    for name, (obs, action, options) in WORKS.items():
        base, weights = 0.0, torch.zeros(0)
        for way in ("eager", "compiled", "graph"):
            learner, rollout = make(obs, action, options, way)
            first, best, after = measure(learner, rollout)
            epochs_without_waiting(learner, rollout)
            if way == "eager":
                base, weights = best, after
            if way == "graph":
                assert learner.epochs.compiled and learner.epochs._graphs, "not captured"
            difference = float((after - weights).abs().max())
            print(f"{name:<38}{way:<12}{first:>9.2f}{best * 1e3:>11.2f}{base / best:>8.1f}  no     {difference:.1e}")
    name, (obs, action, options) = list(WORKS.items())[1]
    for precision in ("bf16", "fp16"):
        learner, rollout = make(obs, action, options | {"precision": precision, "minibatch_size": 20_000}, "graph")
        first, best, _ = measure(learner, rollout)
        assert learner.epochs.compiled, f"{precision} is not compiled"
        assert bool(torch.isfinite(learner.state.param).all())
        print(f"{name.replace('24576', '20000'):<38}{precision:<12}{first:>9.2f}{best * 1e3:>11.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
