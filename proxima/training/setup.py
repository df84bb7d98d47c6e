"""Builds the objects of a run from its options: device, threads, envs, policy."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from proxima.config import Config, Traits, settle
from proxima.config.options import nearest
from proxima.envs.catalog import find_spec
from proxima.envs.contract import VecEnv
from proxima.envs.make import make_env, num_envs_of
from proxima.errors import UsageError
from proxima.evaluation.world import left_out_keys, view_options
from proxima.machine import available_cores, physical_memory
from proxima.nets.encoders import is_image
from proxima.nets.policy import Policy, make_policy
from proxima.nets.spec import Spec
from proxima.training.distributed import Ranks
from proxima.training.hold_schedule import HoldSchedule
from proxima.training.seeding import stream_seed
from proxima.training.source import Share

# Multiplications of a matrix product that are worth one more thread.
_PRODUCT_PER_THREAD = 2**20
# Vector steps. Compilation takes about 10 seconds, once per machine, and saves about 0.1 ms per vector step.
_COMPILED_ACTOR_PAYS_AFTER = 100_000


@dataclass
class Parts:
    """Everything that an algorithm is built from."""

    config: Config
    env: VecEnv
    """The envs of this process; one of them, if they are on rollout workers."""
    ranks: Ranks
    share: Share
    """Which of the run's envs this rank and its workers have."""
    spec: Spec
    device: torch.device
    threads: "Threads"
    hold_schedule: HoldSchedule
    traits: Traits
    defaults: dict[str, Any]
    """Options that were chosen to suit the env."""
    notices: list[str]

    @property
    def num_policy_steps(self) -> int:
        """Policy steps of the run, over all envs: fewer than env steps if actions are held."""
        return max(1, round(self.config.run.total_timesteps / self.hold_schedule.steps_per_action()))

    @property
    def compiles_actor(self) -> bool:
        """Whether to compile acting: on the CPU, here or on workers, if the run is long enough for it to pay."""
        wish, vector_steps = self.config.run.compile, self.num_policy_steps // self.share.total
        pays = wish == "on" or (wish == "auto" and vector_steps >= _COMPILED_ACTOR_PAYS_AFTER)
        return (self.device.type == "cpu" or self.config.cluster.rollout_workers > 0) and pays


def build_parts(config: Config, ranks: Ranks | None = None) -> Parts:
    """Build everything of a run, or of one of its ranks, except its algorithm."""
    ranks = ranks or Ranks()
    options, wish = config.env, config.run.num_threads
    if (count := num_envs_of(options.env)) is not None:
        if config.cluster.rollout_workers:
            raise UsageError(
                f"env {options.env!r} is one object, and every rollout worker makes its own: give the function that "
                "makes it, or leave rollout_workers out."
            )
        if "num_envs" not in config.given:
            options.num_envs = count
    check_numbers(config, ranks)
    share, cores = ranks.share(options.num_envs), own_cores(ranks)
    env = make_run_envs(
        config,
        1 if config.cluster.rollout_workers else share.count,
        device=str(choose_device(config, images=True, ranks=ranks)),  # for envs that can run on a GPU
        num_threads=min(wish or cores, cores) if wish or ranks.exchanges else None,
    )
    try:
        spec = Spec.from_spaces(env.observation_space, env.action_space)
        check_left_out(config, [*spec.obs, *getattr(env, "left_out", ())])
        images = any(is_image(obs.shape) for obs in spec.obs.values())
        limit = options.max_episode_steps or find_spec(options.env).max_episode_steps
        limit = limit or getattr(env, "time_limit", None)
        traits = Traits(discrete=spec.action.kind != "box", images=images, time_limit=limit)
        chosen, notices = settle(config, traits)
        check_minibatches(config, ranks)
        device = choose_device(config, images=images or env.device.type == "cuda", ranks=ranks)
        settle_precision(config, device, images=images)
        threads = choose_threads(config, device, images=images, cores=cores)
        if wish is not None and wish > threads.learn:
            notices.append(f"num_threads is {wish}, but there are {threads.learn} cores: {threads.learn} are used.")
        if config.cluster.ray_address is not None and not config.cluster.rollout_workers:
            notices.append("ray_address has no effect without rollout_workers: the envs are in this process.")
        schedule = HoldSchedule(config, env.step_seconds)
        return Parts(config, env, ranks, share, spec, device, threads, schedule, traits, chosen, notices)
    except BaseException:
        env.close()
        raise


def make_run_envs(config: Config, num_envs: int, *, device: str, num_threads: int | None) -> VecEnv:
    """The envs of a run, or a part of them."""
    options = config.env
    return make_env(
        options.env,
        num_envs=num_envs,
        mode=options.vec_env_mode,
        env_kwargs=options.env_kwargs,
        max_episode_steps=options.max_episode_steps,
        num_workers=options.num_workers,
        spread_episodes=options.spread_episodes,
        num_threads=num_threads,
        log_info=config.track.log_info,
        device=device,
        **view_options(config),
    )


def check_numbers(config: Config, ranks: Ranks) -> None:
    """Raise a UsageError if there are not enough envs for all ranks and workers, or workers for all ranks."""
    workers, envs = config.cluster.rollout_workers, config.env.num_envs
    if ranks.size > envs:
        raise UsageError(f"num_envs is {envs}, but there are {ranks.size} ranks, and each has at least one: raise it.")
    if num_envs_of(config.env.env) is not None and ranks.size > 1:
        raise UsageError(f"env {config.env.env!r} is one object, and every rank makes its own: give its function.")
    if 0 < workers < ranks.size:
        raise UsageError(f"rollout_workers is {workers}, but each of the {ranks.size} ranks needs one: raise it.")
    if workers > envs:
        raise UsageError(
            f"rollout_workers is {workers}, but there are {envs} envs, and each worker has at least one: raise "
            "num_envs."
        )
    address = config.cluster.ray_address or os.environ.get("RAY_ADDRESS")
    if workers and ranks.local_size < ranks.size and address is None:
        raise UsageError("ranks on several machines need one Ray cluster for their workers: give --ray-address auto.")


def check_minibatches(config: Config, ranks: Ranks) -> None:
    """Raise a UsageError if a rank would have no part of some minibatches."""
    envs, steps = min(ranks.peers(config.env.num_envs).num_envs), config.ppo.num_steps
    sequences, parts = envs * -(-steps // config.sequence_length), config.optimizer.gradient_accumulation
    if ranks.size > 1 and sequences // config.num_updates < parts:
        raise UsageError(
            f"minibatch_size is {config.algorithm.minibatch_size}, but each of the {ranks.size} ranks has a part of "
            f"every minibatch, and one has {sequences} samples for {config.num_updates * parts} of them: raise it."
        )
    tuples, size = -(-config.rollout_size // config.muscle.muscle_batch_size), config.muscle.muscle_batch_size
    if config.algorithm.algorithm == "PPO+muscle" and envs * steps < tuples:
        raise UsageError(
            f"muscle_batch_size is {size}, too little for {ranks.size} ranks to have a part each: raise it."
        )


def own_cores(ranks: Ranks) -> int:
    """Cores of this process: its part of the machine's, if several ranks are on it."""
    return max(1, available_cores() // ranks.local_size)


def check_left_out(config: Config, keys: Sequence[str]) -> None:
    """Raise a UsageError if the option `encoders` leaves out a key that the observation does not have."""
    for key in left_out_keys(config):
        if key not in keys:
            raise UsageError(f"encoders names {key!r}, but the observation has {', '.join(keys)}.{nearest(key, keys)}")


def build_policy(spec: Spec, config: Config, device: torch.device) -> Policy:
    """The policy, with weights that depend only on the seed; the global generator is not changed."""
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):  # only shapes: the size is checked before memory is allocated
            size = 4 * sum(parameter.numel() for parameter in make_policy(spec, config).parameters())
        if 4 * size > physical_memory():  # weights, gradient and Adam's two moments
            raise UsageError(
                f"the networks have {size // 4:,} parameters, and training them takes {4 * size / 2**30:,.0f} GiB of "
                f"the {physical_memory() / 2**30:,.0f} GiB here: lower hidden_sizes, critic_hidden_sizes, rnn_size or "
                "encoders' widths."
            )
        torch.manual_seed(stream_seed(config.run.seed, "networks"))
        policy = make_policy(spec, config)
    return policy.to(device)


def choose_device(config: Config, *, images: bool, ranks: Ranks | None = None) -> torch.device:
    """The device of the options, if it exists; auto is a GPU for images, else the CPU. Each rank has its own GPU."""
    device = _choose_device(config, images=images)
    if ranks is not None and ranks.exchanges and device.type == "cuda":
        if ranks.local_size > 1 or device.index is None:
            device = torch.device("cuda", ranks.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


def _choose_device(config: Config, *, images: bool) -> torch.device:
    wish, device = config.run.device, None
    if wish == "auto":
        return torch.device("cuda" if images and torch.cuda.is_available() else "cpu")
    with contextlib.suppress(RuntimeError):
        device = torch.device(wish)
    if device is None or device.type not in ("cpu", "cuda"):
        raise UsageError(f"device is {wish!r}, but it must be cpu, cuda, cuda:N or auto.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"device is {wish!r}, but PyTorch sees {torch.cuda.device_count()} CUDA GPUs here: use device cpu, or "
            "install a CUDA build of PyTorch and a driver."
        )
    return device


def settle_precision(config: Config, device: torch.device, *, images: bool) -> None:
    """Decide what `precision` auto is, and refuse a reduced precision where it would be slower.

    It is decided once, before the config is saved: a resume has the same precision, or says that it cannot.
    """
    optimizer, has_bf16 = config.optimizer, _has_bf16(device)
    if optimizer.precision == "auto":
        optimizer.precision = "bf16" if images and has_bf16 else "fp32"
    precision = optimizer.precision
    if precision == "bf16" and not has_bf16:
        raise UsageError(f"precision is bf16, but this {device.type} has no bf16 arithmetic: use precision fp32.")
    if precision == "fp16" and device.type != "cuda":
        raise UsageError(f"precision is fp16, but the device is {device}: use device cuda or precision fp32.")


def _has_bf16(device: torch.device) -> bool:
    """Whether a device computes with bf16, rather than converting it."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # PyTorch 2.12 and later
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class Threads(NamedTuple):
    """Torch threads for acting, for learning, and for acting in evaluations during the run."""

    act: int
    learn: int
    evaluate: int


def choose_threads(config: Config, device: torch.device, *, images: bool, cores: int | None = None) -> Threads:
    """`num_threads`, or as many as the largest matrix product of a minibatch can use; at most the number of `cores`.

    Idle torch threads take cores from the envs. Acting has few rows, so that it uses one thread except for images. A
    policy on a GPU needs one thread, to start its work there; its evaluations are on the CPU.
    """
    cores = cores or available_cores()
    nets = config.policy
    rnn_size = nets.rnn_size if nets.rnn != "none" else 0
    widths = [*nets.hidden_sizes, *(nets.critic_hidden_sizes or []), rnn_size]
    product = config.algorithm.minibatch_size * max(widths) ** 2
    wanted = config.run.num_threads or (cores if images else 1 + product // _PRODUCT_PER_THREAD)
    learn = min(wanted, cores)
    act = learn if images else 1
    if device.type != "cpu" and config.run.num_threads is None:
        return Threads(act=1, learn=1, evaluate=act)
    return Threads(act, learn, evaluate=act)
