"""Training throughput of recurrent policies against sb3-contrib's RecurrentPPO and against our own MLP.

    python benchmarks/recurrent.py                  # about twelve minutes on two cores
    python benchmarks/recurrent.py --rounds 1

sb3-contrib is installed into its own virtual environment (benchmarks/.sb3-contrib-venv, kept). All are run
alternately, `--rounds` times, and medians are compared. The first iteration of each (compilation, warm-up) is omitted;
the others include episode ends, where RecurrentPPO is slowest. The machine should be idle. Writes recurrent.md.
"""

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

from throughput import PEER, ROOT, install_peer, run_proxima, where

VENV = ROOT / "benchmarks" / ".sb3-contrib-venv"
CONTRIB = (*PEER, "sb3-contrib==2.9.0")
COMMON: dict[str, Any] = {"env": "HalfCheetah-v5", "envs": 8, "steps": 256, "epochs": 4, "width": 64}
LSTM = {"rnn": "lstm", "rnn-size": 64, "bptt-length": 32}
# 256 samples per minibatch: for us, 8 sequences of 32 steps.
OURS: dict[str, dict[str, Any]] = {
    "separate LSTMs for actor and critic": COMMON | {"batch": 8, "options": LSTM | {"share-trunk": "off"}},
    "shared LSTM": COMMON | {"batch": 8, "options": LSTM},
    "shared GRU": COMMON | {"batch": 8, "options": LSTM | {"rnn": "gru"}},
    "MLP": COMMON | {"batch": 256},
}
# Options of RecurrentPPO; by default it has separate LSTMs.
THEIRS: dict[str, dict[str, Any]] = {
    "separate LSTMs for actor and critic": {},
    "shared LSTM": {"shared_lstm": True, "enable_critic_lstm": False},
}
ITERATIONS = 13  # three ends of episodes of 1000 steps
SCRIPT = """
import json, sys, time
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
work, kwargs, iterations = json.loads(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
class Clock(BaseCallback):
    times = []
    def _on_rollout_start(self):
        self.times.append(time.perf_counter())
    def _on_step(self):
        return True
net = dict(pi=[work["width"]] * 2, vf=[work["width"]] * 2)
kwargs |= dict(net_arch=net, lstm_hidden_size=work["width"])
model = RecurrentPPO("MlpLstmPolicy", make_vec_env(work["env"], work["envs"]), n_steps=work["steps"], batch_size=256,
                     n_epochs=work["epochs"], policy_kwargs=kwargs, device="cpu")
clock = Clock()
size = work["envs"] * work["steps"]
model.learn(size * iterations, callback=clock)
times = [*clock.times, time.perf_counter()]
rates = [size / (after - before) for before, after in zip(times[1:], times[2:])]
print(json.dumps({"rate": size * len(rates) / (times[-1] - times[1]), "slowest": min(rates), "fastest": max(rates)}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, help="iterations of Proxima, for a quick trial")
    arguments = parser.parse_args()
    install_peer(VENV, CONTRIB)
    ours: dict[str, list[dict[str, float]]] = {name: [] for name in OURS}
    theirs: dict[str, list[dict[str, float]]] = {name: [] for name in THEIRS}
    for _ in range(arguments.rounds):
        for name, work in OURS.items():
            ours[name].append(run_proxima(work, iterations=arguments.iterations))
            print(name, {key: round(value, 2) for key, value in ours[name][-1].items()}, flush=True)
            if name in THEIRS:
                theirs[name].append(run_peer(name))
                print("  RecurrentPPO", {key: round(value) for key, value in theirs[name][-1].items()}, flush=True)
    write(ours, theirs)
    return 0


def run_peer(name: str) -> dict[str, float]:
    """Env steps per second: mean, slowest iteration, fastest iteration."""
    arguments = [json.dumps(COMMON), json.dumps(THEIRS[name]), str(ITERATIONS)]
    command = [str(VENV / "bin" / "python"), "-c", SCRIPT, *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def write(ours: dict[str, list[dict[str, float]]], theirs: dict[str, list[dict[str, float]]]) -> None:
    def median(runs: list[dict[str, float]], key: str = "rate") -> float:
        return statistics.median(run[key] for run in runs)

    rounds, mlp = len(ours["MLP"]), median(ours["MLP"])
    lines = [
        "# Recurrent policies: throughput",
        "",
        f"`python benchmarks/recurrent.py --rounds {rounds}`, {where()}.",
        "HalfCheetah-v5, 8 envs x 256 steps, 4 epochs, minibatches of 256 samples (ours: 8 sequences of 32 steps),",
        "rnn_size 64, then 2x64; env steps per second, updates included; medians of alternating rounds. RecurrentPPO:",
        "sb3-contrib 2.9.0 with one torch thread; it backpropagates through up to 256 steps, Proxima through 32.",
        "",
        "| policy | Proxima | RecurrentPPO (slowest, fastest iteration) | ratio | target | each round "
        "| relative to our MLP | target |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, runs in ours.items():
        peer, ratio, each = "", "", ""
        if name in theirs:
            others = theirs[name]
            slow, fast = median(others, "slowest"), median(others, "fastest")
            peer = f"{median(others):,.0f} ({slow:,.0f} to {fast:,.0f})"
            ratio = f"**{median(runs) / median(others):.1f}** | 6"
            each = " ".join(f"{one['rate'] / two['rate']:.1f}" for one, two in zip(runs, others, strict=True))
        share = f"{median(runs) / mlp:.2f} | 0.4" if name != "MLP" else " | "
        lines.append(f"| {name} | {median(runs):,.0f} | {peer} | {ratio or ' | '} | {each} | {share} |")
    lines += [
        "",
        "Time from the command to the first training step, with compilation: "
        + ", ".join(f"{name} {median(runs, 'start-up s'):.0f} s" for name, runs in ours.items())
        + "; the compilation cache was warm, except in the first round.",
        "",
    ]
    (ROOT / "benchmarks" / "recurrent.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
