"""Ray workers against envs in one process and against RLlib, and gradients averaged over ranks; on one machine.

    python benchmarks/cluster.py                    # everything: about half an hour on two cores
    python benchmarks/cluster.py --rounds 1 --only halfcheetah

RLlib is installed into its own virtual environment (benchmarks/.rllib-venv, kept; or $RLLIB_PYTHON). The ways are
measured alternately, `--rounds` times, the first iterations of each are omitted, and ratios are medians of the rounds'
ratios. The machine should be idle. Writes cluster.json and prints the tables of cluster.md.
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
VENV = ROOT / "benchmarks" / ".rllib-venv"
RECORD = ROOT / "benchmarks" / "cluster.json"
PEER = ("torch==2.13.0", "ray[rllib]==2.60.0", "mujoco==4.0.0", "imageio")
CHEETAH = {"env": "HalfCheetah-v5", "num_envs": 64, "num_steps": 128, "update_epochs": 10, "minibatch_size": 512}
SLOW = {"env": "benchmarks.slow_env:SlowEnv", "num_envs": 8, "num_steps": 64, "update_epochs": 4, "minibatch_size": 128}
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "halfcheetah": {
        "local": CHEETAH,
        "1 worker": CHEETAH | {"rollout_workers": 1},
        "2 workers": CHEETAH | {"rollout_workers": 2},
        "2 workers, overlap": CHEETAH | {"rollout_workers": 2, "overlap": True},
        "RLlib, 2 workers": CHEETAH | {"rollout_workers": 2, "peer": True},
    },
    "slow": {
        "local": SLOW,
        "1 worker": SLOW | {"rollout_workers": 1},
        "2 workers": SLOW | {"rollout_workers": 2},
        "2 workers, overlap": SLOW | {"rollout_workers": 2, "overlap": True},
        "RLlib, 2 workers": SLOW | {"rollout_workers": 2, "peer": True},
    },
}
OURS = """
import json, sys, time
sys.path.insert(0, sys.argv[3])
from proxima import Trainer, load_config
from proxima.compiling import freeze_garbage
options, seconds = json.loads(sys.argv[1]), float(sys.argv[2])
fixed = {"preset": "none", "compile": "on", "total_timesteps": 10**9, "quiet": True, "hidden_sizes": [64, 64]}
trainer = Trainer(load_config(None, fixed | options))
for _ in range(3):
    trainer.iterate()
freeze_garbage()
rows, start = [], time.perf_counter()
while time.perf_counter() - start < seconds:
    rows.append(trainer.iterate())
taken = time.perf_counter() - start
size = options["num_envs"] * options["num_steps"]
mean = lambda name: sum(row.get(name, 0.0) for row in rows) / len(rows)
block = trainer.source.rollout.to_block()
found = {"steps_per_second": size * len(rows) / taken, "iterations": len(rows)}
found |= {name: mean(name) for name in ("collect_seconds", "advantage_seconds", "update_seconds", "learner_wait")}
found["bytes_per_step"] = sum(x.nbytes for group in block.values() for x in group.values()) / size
found["weight_bytes"] = sum(x.nbytes for x in trainer.policy.state_dict().values())
trainer.close()
print(json.dumps(found))
"""
RLLIB = """
import json, sys, time
sys.path.insert(0, sys.argv[3])
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env
options, seconds = json.loads(sys.argv[1]), float(sys.argv[2])
ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False, num_cpus=4,
         runtime_env={"env_vars": {"PYTHONPATH": sys.argv[3]}})
name = options["env"]
if ":" in name:
    from benchmarks.slow_env import SlowEnv
    register_env("slow", lambda config: SlowEnv())
    name = "slow"
workers, size = options["rollout_workers"], options["num_envs"] * options["num_steps"]
config = (
    PPOConfig()
    .environment(name)
    .env_runners(num_env_runners=workers, num_envs_per_env_runner=options["num_envs"] // workers,
                 rollout_fragment_length=options["num_steps"])
    .training(train_batch_size_per_learner=size, minibatch_size=options["minibatch_size"],
              num_epochs=options["update_epochs"], lr=3e-4, use_kl_loss=False, vf_clip_param=1e9)
    .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False))
)
algorithm = config.build_algo()
for _ in range(2):
    algorithm.train()
count, start, before = 0, time.perf_counter(), None
steps = lambda row: row["num_env_steps_sampled_lifetime"]
first = steps(algorithm.train())
count, start = 0, time.perf_counter()
while time.perf_counter() - start < seconds:
    row = algorithm.train()
    count += 1
taken = time.perf_counter() - start
print(json.dumps({"steps_per_second": (steps(row) - first) / taken, "iterations": count,
                  "batch": (steps(row) - first) / count}))
algorithm.stop()
"""
RANKS = """
import json, sys, time
sys.path.insert(0, sys.argv[3])
import torch
from proxima import Trainer, load_config
options, seconds = json.loads(sys.argv[1]), float(sys.argv[2])
fixed = {"preset": "none", "total_timesteps": 10**9, "quiet": True, "num_threads": 1}
trainer = Trainer(load_config(None, fixed | options))
for _ in range(2):
    trainer.iterate()
rows = []
for _ in range(int(seconds)):
    rows.append(trainer.iterate()["update_seconds"])
updates = options["update_epochs"] * trainer.config.num_updates
gradient = torch.zeros(trainer.policy.state_dict().__len__() and trainer.algorithm.learner.flat.vector.numel())
exchange = 0.0
if trainer.ranks.exchanges:
    start = time.perf_counter()
    for _ in range(200):
        trainer.ranks.sum(gradient)
    exchange = (time.perf_counter() - start) / 200
if trainer.ranks.is_first:
    found = {"update_ms": 1000 * sorted(rows)[len(rows) // 2] / updates, "all_reduce_ms": 1000 * exchange}
    print(json.dumps(found | {"parameters": gradient.numel()}))
trainer.close()
from proxima.training.distributed import exit_rank
exit_rank(0)
"""
RANK_WORKS = {
    f"2x{width}, minibatch {size}": {
        "env": "HalfCheetah-v5",
        "num_envs": 16,
        "num_steps": 256,
        "update_epochs": 2,
        "minibatch_size": size,
        "hidden_sizes": [width, width],
        "compile": compiled,
    }
    for width, size, compiled in ((64, 64, "on"), (64, 512, "on"), (512, 512, "off"), (1024, 1024, "off"))
}


def rllib_python() -> str:
    if given := os.environ.get("RLLIB_PYTHON"):
        return given
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PEER], check=True)
    return str(python)


def measured(command: list[str]) -> dict[str, Any]:
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=900)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{command[:3]} failed\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    print(f"  {lines[-1]} ({time.perf_counter() - start:.0f} s)", flush=True)
    return json.loads(lines[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--only", choices=[*WAYS, "ranks", "model"])
    arguments = parser.parse_args()
    record: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout
    where = {"commit": commit.strip(), "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    for work, ways in WAYS.items():
        if arguments.only not in (None, work):
            continue
        rounds: list[dict[str, Any]] = []
        for number in range(arguments.rounds):
            rounds.append({})
            for way, options in ways.items():
                print(f"{work}, round {number + 1}: {way}", flush=True)
                own = {name: value for name, value in options.items() if name != "peer"}
                python, script = (rllib_python(), RLLIB) if options.get("peer") else (sys.executable, OURS)
                command = [python, "-c", script, json.dumps(own), str(arguments.seconds), str(ROOT)]
                rounds[-1][way] = measured(command)
        record[work] = {**where, "rounds": rounds}
        RECORD.write_text(json.dumps(record, indent=1))
    if arguments.only in (None, "ranks"):
        found: dict[str, Any] = {}
        for work, options in RANK_WORKS.items():
            for ranks in (1, 2):
                print(f"ranks: {work}, {ranks}", flush=True)
                script = Path(tempfile.gettempdir()) / "proxima_ranks.py"
                script.write_text(RANKS)
                start = (
                    [sys.executable] if ranks == 1 else [sys.executable, "-m", "torch.distributed.run", "--standalone"]
                )
                start += [] if ranks == 1 else ["--nproc-per-node", str(ranks)]
                command = [*start, str(script), json.dumps(options), "8", str(ROOT)]
                found[f"{work}, {ranks} ranks"] = measured(command)
                script.unlink()
        record["ranks"] = {**where, "found": found}
        RECORD.write_text(json.dumps(record, indent=1))
    if arguments.only in (None, "model"):
        record["driver"] = {**where, **driver_costs()}
        RECORD.write_text(json.dumps(record, indent=1))
    for work in WAYS:
        if work in record:
            summarize(work, record[work]["rounds"])
    if "ranks" in record:
        summarize_ranks(record["ranks"]["found"])
    if {"driver", *WAYS} <= record.keys():
        model(record)


def summarize(work: str, rounds: list[dict[str, Any]]) -> None:
    base = {"halfcheetah": "local", "slow": "1 worker"}[work]
    print(f"\n| {work} | steps/s | ratio to {base} | each round | collect, update (ms) | learner waits |")
    print("| --- | --- | --- | --- | --- | --- |")
    for way in rounds[0]:
        speeds = [one[way]["steps_per_second"] for one in rounds]
        ratios = [one[way]["steps_per_second"] / one[base]["steps_per_second"] for one in rounds]
        each = " ".join(f"{ratio:.2f}" for ratio in ratios)
        parts = [
            [1000 * one[way].get(f"{name}_seconds", 0.0) for one in rounds]
            for name in ("collect", "advantage", "update")
        ]
        collect, advantage, update = (statistics.median(part) for part in parts)
        wait = statistics.median(one[way].get("learner_wait", 0.0) for one in rounds)
        times = f"{collect:.0f}, {advantage + update:.0f}" if collect else ""
        speed, ratio = statistics.median(speeds), statistics.median(ratios)
        print(f"| {way} | {speed:,.0f} | **{ratio:.2f}** | {each} | {times} | {f'{wait:.0%}' if wait else ''} |")


def summarize_ranks(found: dict[str, Any]) -> None:
    print("\n| network | 1 rank (ms per minibatch) | 2 ranks | ratio | of it all-reduce | parameters |")
    print("| --- | --- | --- | --- | --- | --- |")
    for work in RANK_WORKS:
        one, two = (found[f"{work}, {ranks} ranks"] for ranks in (1, 2))
        ratio = one["update_ms"] / two["update_ms"]
        times = f"{one['update_ms']:.2f} | {two['update_ms']:.2f} | **{ratio:.2f}** | {two['all_reduce_ms']:.2f}"
        print(f"| {work} | {times} | {one['parameters']:,} |")


# The cost model of cluster.md. GPU rows: H200, benchmarks/quadruped.md and one NCCL rank (cluster.md).
ENVS = {"HalfCheetah-v5": 8, "an env of 5 ms": 8}
STEPS = 128
GPU_UPDATE = 0.0683 / 98_304  # seconds per sample: GRU 256, 5 epochs, rough 4096
NETWORK = 1.25e9  # bytes per second: 10 Gbit/s
GPU_ROWS = {4096: (0.168 + 0.0271, 0.0683), 16384: (0.3672 + 0.0735, 0.1952)}
"""Robots per GPU: seconds of collection with advantages, and of the update with 20 minibatches."""
RANK_OVERHEAD, GRADIENT_BYTES, LINK = 0.006, 4 * 406_177, 100e9


def driver_costs() -> dict[str, float]:
    """CPU time of the learner per rollout, measured with 1 to 8 workers: a constant, and so much per worker."""
    script = """
import json, statistics, sys, time
from proxima import Trainer, load_config
shared = {"env": "HalfCheetah-v5", "num_steps": 128, "preset": "none", "compile": "off", "total_timesteps": 10**9}
found = {}
for workers in (1, 2, 4, 8):
    options = shared | {"num_envs": 8 * workers, "rollout_workers": workers, "quiet": True}
    trainer = Trainer(load_config(None, options))
    times = []
    for _ in range(10):
        start = time.process_time()
        trainer.source.collect()
        times.append(time.process_time() - start)
    trainer.close()
    found[workers] = statistics.median(times[2:])
print(json.dumps(found))
"""
    found = {int(count): x for count, x in measured([sys.executable, "-c", script]).items()}
    slope = (found[8] - found[2]) / 6
    return {"per_worker": slope, "constant": max(0.0, found[2] - 2 * slope), **{str(k): x for k, x in found.items()}}


def model(record: dict[str, Any]) -> None:
    costs = record["driver"]
    print(
        "\n| env, learner | workers | samples | MB | collect (s) | learner: Ray, update (s) | steps/s | with overlap |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rounds = {work: record[work]["rounds"] for work in WAYS}
    one = {work: statistics.median(r["1 worker"]["collect_seconds"] for r in rounds[work]) for work in WAYS}
    for (name, envs), (work, options) in zip(ENVS.items(), (("halfcheetah", CHEETAH), ("slow", SLOW)), strict=True):
        size = options["num_envs"] * options["num_steps"]
        env = one[work] / size
        update = statistics.median(r["local"]["update_seconds"] for r in rounds[work]) / size
        for learner, per_sample in ((f"{1e6 * update:.0f} us per sample", update), ("GPU", GPU_UPDATE)):
            for workers in (16, 64, 256):
                samples = workers * envs * STEPS
                size_mb = samples * rounds[work][0]["local"]["bytes_per_step"] / 1e6
                ray = costs["constant"] + workers * costs["per_worker"]
                collect = envs * STEPS * env + ray + size_mb * 1e6 / NETWORK
                learn = samples * per_sample
                plain, overlapped = samples / (collect + learn), samples / max(collect, learn + ray)
                row = f"{samples:,} | {size_mb:.1f} | {collect:.2f} | {ray:.2f}, {learn:.2f} | {plain:,.0f}"
                print(f"| {name}, {learner} | {workers} | {row} | {overlapped:,.0f} |")
    print("\n| GPUs | 4096 robots each: steps/s | hours to 15B | 16384 each: steps/s | hours to 15B |")
    print("| --- | --- | --- | --- | --- |")
    for gpus in (1, 2, 4, 8):
        cells = []
        for robots, (collect, update) in GPU_ROWS.items():
            exchange = 20 * 2 * (gpus - 1) / gpus * GRADIENT_BYTES / LINK
            seconds = collect + update + (RANK_OVERHEAD + exchange if gpus > 1 else 0.0)
            speed = gpus * robots * 24 / seconds
            cells += [f"{speed:,.0f}", f"{15e9 / speed / 3600:.1f}"]
        print(f"| {gpus} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
