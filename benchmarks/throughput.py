"""Training throughput against Stable-Baselines3 and against the bare physics, measured alternately.

    python benchmarks/throughput.py                 # everything: about fifteen minutes on two cores
    python benchmarks/throughput.py --rounds 1 --only small

Stable-Baselines3 is installed into its own virtual environment (benchmarks/.sb3-venv, kept). Each workload is run by
both alternately, `--rounds` times; a ratio is the median of the rounds' ratios, since clock speeds drift. The first
iteration of each (compilation, warm-up) is omitted. Then the start-up is timed, eager and compiled. The machine should
be idle. Writes throughput.md.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
VENV = ROOT / "benchmarks" / ".sb3-venv"
PEER = ("torch==2.13.0", "stable-baselines3==2.9.2", "gymnasium[mujoco]==1.4.0", "mujoco==4.0.0")
WORKS: dict[str, dict[str, Any]] = {
    "small": {"env": "HalfCheetah-v5", "envs": 8, "steps": 2048, "epochs": 10, "batch": 64, "width": 64, "goal": 6.0},
    "short": {"env": "HalfCheetah-v5", "envs": 64, "steps": 32, "epochs": 10, "batch": 64, "width": 64, "goal": 6.0},
    "wide": {"env": "HalfCheetah-v5", "envs": 8, "steps": 2048, "epochs": 10, "batch": 256, "width": 256, "goal": 3.0},
}
# Against the bare physics: training, and collection alone.
CEILINGS: dict[str, dict[str, Any]] = {
    "humanoid": {"env": "Humanoid-v5", "envs": 64, "steps": 64, "epochs": 4, "batch": 256, "width": 64, "goal": 0.75},
    "collect": {"env": "HalfCheetah-v5", "envs": 64, "steps": 32, "epochs": 10, "batch": 64, "width": 64, "goal": 0.8},
}
ALL = {**WORKS, **CEILINGS}
SB3_SCRIPT = """
import json, sys, time
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
work, iterations = json.loads(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(int(sys.argv[3]))
class Clock(BaseCallback):
    def __init__(self):
        super().__init__()
        self.times = []
    def _on_rollout_start(self):
        self.times.append(time.perf_counter())
    def _on_step(self):
        return True
net = dict(pi=[work["width"]] * 2, vf=[work["width"]] * 2)
model = PPO("MlpPolicy", make_vec_env(work["env"], work["envs"]), n_steps=work["steps"], batch_size=work["batch"],
            n_epochs=work["epochs"], policy_kwargs=dict(net_arch=net), device="cpu")
clock = Clock()
model.learn(work["envs"] * work["steps"] * iterations, callback=clock)
clock.times.append(time.perf_counter())
size = work["envs"] * work["steps"]
print(json.dumps(size * (len(clock.times) - 2) / (clock.times[-1] - clock.times[1])))
"""
CEILING_SCRIPT = """
import sys, time
import gymnasium, numpy as np
from mujoco.batch import Batch
env_id, envs, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
env = gymnasium.make(env_id).unwrapped
batch = Batch(env.model, envs, 0)
low, high = env.action_space.low, env.action_space.high
rng, ctrl = np.random.default_rng(0), batch.bind("ctrl")
# The actions of an untrained policy: standard normal, clipped and scaled to the bounds.
controls = np.clip(rng.standard_normal((64, envs, len(low))), -1, 1) * (high - low) / 2 + (high + low) / 2
def run(seconds):
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        batch.reset()  # a fallen body takes longer to simulate
        for t in range(50):
            ctrl[:] = controls[t]
            batch.step(nstep=env.frame_skip)
        steps += 50 * envs
    return steps / (time.perf_counter() - start)
run(1.0)
print(run(seconds))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[*ALL], default=[*ALL])
    arguments = parser.parse_args()
    install_peer(VENV, PEER)
    rows = []
    for name in arguments.only:
        ours, others = [], []
        for _ in range(arguments.rounds):
            ours.append(run_proxima(ALL[name]))
            others.append({"bare physics": ceiling(ALL[name])} if name in CEILINGS else run_sb3(ALL[name]))
            print(name, {k: round(v, 2) for k, v in (ours[-1] | others[-1]).items()}, flush=True)
        rows.append((name, ALL[name], ours, others))
    small = WORKS["small"]
    starts = {way: [run_proxima(small, compiled=way, iterations=3) for _ in range(3)] for way in ("off", "on")}
    write(rows, {way: statistics.median(run["start-up s"] for run in runs) for way, runs in starts.items()})
    return 0


def install_peer(venv: Path, packages: tuple[str, ...]) -> None:
    if not (venv / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages], check=True)
        (venv / "done").touch()


def run_proxima(work: dict[str, Any], *, compiled: str = "on", iterations: int | None = None) -> dict[str, float]:
    """Env steps per second of iterations and of collection alone, start-up time and memory."""
    size = work["envs"] * work["steps"]
    iterations = iterations or max(4, 150_000 // size)
    options = {
        "env": work["env"],
        "preset": "none",
        "num-envs": work["envs"],
        "num-steps": work["steps"],
        "update-epochs": work["epochs"],
        "minibatch-size": work["batch"],
        "total-timesteps": size * iterations,
        "compile": compiled,
        "progress": "False",
    } | work.get("options", {})
    with tempfile.TemporaryDirectory() as folder:
        flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        flags += ["--hidden-sizes", str(work["width"]), str(work["width"]), "--runs-dir", folder, "--name", "run"]
        started = time.time()
        process = subprocess.Popen(
            [sys.executable, "-m", "proxima", "train", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, _, usage = os.wait4(process.pid, 0)
        path = next(Path(folder).glob("run/*/metrics.jsonl"))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        first_step = (path.parent / "config.yaml").stat().st_mtime - started
    rest = rows[1:]
    seconds = rows[-1]["wall_time"] - rows[0]["wall_time"]
    # The extra time of the first iteration is compilation.
    compilation = rows[0]["wall_time"] - seconds / len(rest)
    return {
        "rate": size * len(rest) / seconds,
        "collect": size * len(rest) / sum(row["collect_seconds"] for row in rest),
        "update share": sum(row["update_seconds"] for row in rest) / seconds,
        "start-up s": first_step + compilation,
        "memory MB": usage.ru_maxrss / 1024,
    }


def run_sb3(work: dict[str, Any]) -> dict[str, float]:
    """Env steps per second with one torch thread and, for networks wide enough to benefit, with two."""
    iterations = max(3, 60_000 // (work["envs"] * work["steps"]))
    rates = {}
    for threads in (1, 2) if work["width"] > 64 else (1,):
        command = [str(VENV / "bin" / "python"), "-c", SB3_SCRIPT, json.dumps(work), str(iterations), str(threads)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rates[f"SB3, {threads} thread{'s' * (threads > 1)}"] = float(output)
    return rates


def ceiling(work: dict[str, Any]) -> float:
    command = [sys.executable, "-c", CEILING_SCRIPT, work["env"], str(work["envs"]), "5"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def where() -> str:
    """Commit and machine."""
    describe = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    cpu = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")), ": unknown")
    machine = f"{platform.machine()} ({cpu.partition(': ')[2]}) with {os.cpu_count()} cores"
    return f"commit {commit}, {machine}, Python {platform.python_version()}"


def write(rows: list[tuple[str, dict[str, Any], list[dict], list[dict]]], start: dict[str, float]) -> None:
    rounds = len(rows[0][2])
    lines = [
        "# Throughput",
        "",
        f"`python benchmarks/throughput.py --rounds {rounds}`, {where()}.",
        "Env steps per second, updates included: medians of alternating rounds; the ratio is the median of the rounds'",
        "ratios. Stable-Baselines3 2.9.2 (SB3) with DummyVecEnv and one torch thread, which is its fastest setting for",
        "2x64 networks, and for 2x256 also with two.",
        "",
        "| workload | Proxima | compared with | ratio | target | each round | collection alone | time share of update "
        "| memory |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, work, ours, others in rows:
        key = "collect" if name == "collect" else "rate"
        what = "collection alone" if name == "collect" else f"{work['epochs']} epochs, minibatch {work['batch']}"
        middle = {name: statistics.median(run[name] for run in ours) for name in ours[0]}
        for peer in others[0]:
            ratios = [run[key] / other[peer] for run, other in zip(ours, others, strict=True)]
            each = " ".join(f"{ratio:.2f}" for ratio in ratios)
            lines.append(
                f"| {work['env']}, {work['envs']} x {work['steps']}, {what}, 2x{work['width']} | {middle[key]:,.0f} "
                f"| {peer} {statistics.median(other[peer] for other in others):,.0f} "
                f"| **{statistics.median(ratios):.2f}** | {work['goal']} | {each} "
                f"| {middle['collect']:,.0f} | {middle['update share']:.0%} | {middle['memory MB']:,.0f} MB |"
            )
    lines += [
        "",
        f"Start-up with 8 x 2048: {start['off']:.1f} s eager (target 6), {start['on']:.1f} s compiled with a warm",
        "cache (target 12). This is the time until the run folder exists, plus the extra time of the first iteration.",
        "",
    ]
    (ROOT / "benchmarks" / "throughput.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
