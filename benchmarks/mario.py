"""Speed of emulation and of training on pixels, against the bare emulator and Stable-Baselines3.

    python benchmarks/mario.py                      # about 20 minutes on two cores; prints the tables of mario.md
    python benchmarks/mario.py --only emulator

Training is measured on `proxima/PixelCatch-v0`, 84 x 84 x 4, whose env step takes almost no time, with the same network
(three convolutions, 512 features) and the same amount of learning on both sides. Stable-Baselines3 has its own virtual
environment (benchmarks/.sb3-venv, kept). A ratio is the median of the rounds' ratios. The machine should be idle.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from throughput import PEER, ROOT, VENV, install_peer

MARIO = "proxima/SuperMarioBros-1-1-v0"
WORKS: dict[str, dict[str, Any]] = {
    "PPO, 8 envs x 128, 4 epochs, minibatch 256": {
        "target": 1.4,
        "sb3": {"algo": "PPO", "envs": 8, "args": {"n_steps": 128, "n_epochs": 4, "batch_size": 256}, "steps": 9216},
        "ours": {"num_envs": 8, "num_steps": 128, "update_epochs": 4, "minibatch_size": 256, "total": 9216},
        "variants": {"Proxima in bf16": {"precision": "bf16"}},
    },
    "DQN, 1 env, an optimizer step every 4 env steps, minibatch 32": {
        "target": 2.0,
        "sb3": {"algo": "DQN", "envs": 1, "args": {"train_freq": 4}, "steps": 3000},
        "ours": {"algorithm": "DQN", "num_envs": 1, "total": 8000},
        "variants": {
            "Proxima in bf16": {"precision": "bf16"},
            "target network updated at every step": {"target_update_every": 4},  # no value can be cached
        },
    },
    "DQN, 8 envs, two optimizer steps every 8 env steps, minibatch 32": {
        "target": 2.0,
        "sb3": {"algo": "DQN", "envs": 8, "args": {"train_freq": 1, "gradient_steps": 2}, "steps": 3000},
        "ours": {"algorithm": "DQN", "num_envs": 8, "total": 8000},
        "variants": {},
    },
}
SB3_DQN = {"batch_size": 32, "buffer_size": 10_000, "learning_starts": 500}
DQN = {
    "train_freq": 4,
    "minibatch_size": 32,
    "buffer_size": 10_000,
    "learning_starts": 500,
    "iteration_steps": 1000,
    "double_q": False,
}
SB3_SCRIPT = """
import json, sys, time
import torch
import gymnasium as gym
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv
from proxima.envs.toys.pixel_catch import PixelCatch
work = json.loads(sys.argv[1])
torch.set_num_threads(int(sys.argv[2]))
class Clock(BaseCallback):
    def __init__(self):
        super().__init__()
        self.marks = []
    def _on_step(self):
        self.marks.append((self.num_timesteps, time.perf_counter()))
        return True
env = DummyVecEnv([lambda: PixelCatch() for _ in range(work["envs"])])
model = {"PPO": PPO, "DQN": DQN}[work["algo"]]("CnnPolicy", env, device="cpu", **work["args"])
clock = Clock()
model.learn(work["steps"], callback=clock)
begin = 1024 if work["algo"] == "PPO" else 600  # after the first iteration, or after learning_starts
first = next(mark for mark in clock.marks if mark[0] > begin)
done = (model.num_timesteps, time.perf_counter())
print(json.dumps((done[0] - first[0]) / (done[1] - first[1])))
"""
EMULATOR_SCRIPT = """
import json, sys, time
import numpy as np
what, seconds = sys.argv[1], float(sys.argv[2])
rng = np.random.default_rng(0)
if what == "core":
    from proxima.envs.games.mario.emulator import Nes, mask
    from proxima.envs.games.mario.rom import load_rom
    nes, right = Nes(load_rom()), mask("right", "B")
    def step():
        for _ in range(4):
            nes.frame(right)
else:
    import gymnasium, proxima.envs.catalog
    env = gymnasium.make("proxima/SuperMarioBros-1-1-v0").unwrapped
    env.reset(seed=0)
    def step():
        if env.step(rng.integers(env.action_space.n))[2]:
            env.reset()
for _ in range(50):
    step()
count, start = 0, time.perf_counter()
while time.perf_counter() - start < seconds:
    step()
    count += 1
print(json.dumps(count / (time.perf_counter() - start)))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("emulator", "training"))
    arguments = parser.parse_args()
    if arguments.only != "training":
        emulator(arguments.rounds)
    if arguments.only != "emulator":
        training(arguments.rounds)
    return 0


def emulator(rounds: int) -> None:
    print("| | 1 process | 2 processes |\n| --- | --- | --- |")
    for what, name in (
        ("core", "the bare emulator, frames / 4"),
        ("env", "the env: frame skip, max, greyscale, 84 x 84, stack"),
    ):
        alone, both = [], []
        for _ in range(rounds):
            alone.append(sum(emulate(what, 1)))
            both.append(sum(emulate(what, 2)))
        print(f"| {name} | {statistics.median(alone):,.0f} | {statistics.median(both):,.0f} |", flush=True)


def emulate(what: str, processes: int) -> list[float]:
    command = [sys.executable, "-c", EMULATOR_SCRIPT, what, "5"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return [float(process.communicate()[0]) for process in started]


def training(rounds: int) -> None:
    install_peer(VENV, PEER)
    print("| workload | Proxima | SB3 | ratio, each round | target |\n| --- | --- | --- | --- | --- |")
    for name, work in WORKS.items():
        runs = {name: work["ours"]} | {f"... {how}": work["ours"] | more for how, more in work["variants"].items()}
        ours: dict[str, list[float]] = {label: [] for label in runs}
        peers = []
        for _ in range(rounds):
            for label, options in runs.items():
                ours[label].append(run_proxima(options))
            peers.append(run_sb3(work["sb3"], threads=2))  # with one it is slower
        for label, speeds in ours.items():
            ratios = [speed / peer for speed, peer in zip(speeds, peers, strict=True)]
            each = " ".join(f"{ratio:.2f}" for ratio in ratios)
            print(
                f"| {label} | {statistics.median(speeds):,.0f} | {statistics.median(peers):,.0f} | "
                f"**{statistics.median(ratios):.2f}** ({each}) | {work['target'] if label == name else ''} |",
                flush=True,
            )


def run_sb3(work: dict[str, Any], threads: int) -> float:
    if work["algo"] == "DQN":
        work = work | {"args": SB3_DQN | work["args"]}
    command = [str(VENV / "bin" / "python"), "-c", SB3_SCRIPT, json.dumps(work), str(threads)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def run_proxima(work: dict[str, Any]) -> float:
    options = {name: value for name, value in work.items() if name != "total"}
    options = DQN | options if "algorithm" in work else options
    options |= {
        "env": "proxima/PixelCatch-v0",
        "preset": "none",
        "vec_env_mode": "sync",
        "cnn_features": 512,
        "hidden_sizes": "[]",
    }
    options |= {"compile": "on", "progress": False, "save_checkpoint": False, "total_timesteps": work["total"]}
    with tempfile.TemporaryDirectory() as folder:
        flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "proxima", "train", *flags, "--runs-dir", folder, "--name", "run"]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        path = next(Path(folder).glob("run/*/metrics.jsonl"))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    # Omit compilation and warm-up: one iteration of PPO; two of DQN, the first of which fills the replay buffer.
    warm = rows[1] if "algorithm" in work else rows[0]
    return (rows[-1]["global_step"] - warm["global_step"]) / (rows[-1]["wall_time"] - warm["wall_time"])


if __name__ == "__main__":
    start = time.time()
    code = main()
    print(f"{time.time() - start:.0f} s", file=sys.stderr)
    sys.exit(code)
