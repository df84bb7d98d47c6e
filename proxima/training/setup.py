"""From options to the objects of a run: device, threads, envs, policy."""

from typing import NamedTuple

import torch

from proxima.config import Config
from proxima.envs.base import VecEnv
from proxima.envs.make import make_env
from proxima.errors import UsageError
from proxima.machine import available_cores, physical_memory
from proxima.nets.encoders import is_image
from proxima.nets.make import Agent, make_policy
from proxima.nets.spec import Spec
from proxima.training.seeding import stream_seed

# Multiplications that another thread is worth its overhead for.
_PRODUCT_OF_A_THREAD = 2**20
# It takes some ten seconds once on a machine, and saves about a tenth of a millisecond a vector step.
_COMPILED_ACTOR_PAYS_AFTER = 100_000


def build_env(config: Config) -> VecEnv:
    """The vector env of a run."""
    env = config.env
    return make_env(
        env.env,
        num_envs=env.num_envs,
        mode=env.vec_env_mode,
        env_kwargs=env.env_kwargs,
        max_episode_steps=env.max_episode_steps,
        num_workers=env.num_workers,
        spread_episodes=env.spread_episodes,
        num_threads=config.run.num_threads and min(config.run.num_threads, available_cores()),
        device=str(choose_device(config, images=True)),  # those that can live on a GPU do where there is one
    )


def build_policy(spec: Spec, config: Config, device: torch.device) -> Agent:
    """The policy with weights that depend on the seed alone; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):  # shapes alone: a network that is too large is not to fill the memory first
            size = 4 * sum(parameter.numel() for parameter in make_policy(spec, config).parameters())
        if 4 * size > physical_memory():  # weights, gradient and Adam's two moments
            raise UsageError(
                f"the networks have {size // 4:,} parameters, and training them takes {4 * size / 2**30:,.0f} GiB of "
                f"the {physical_memory() / 2**30:,.0f} GiB here: lower hidden_sizes, memory_size or encoders' widths."
            )
        torch.manual_seed(stream_seed(config.run.seed, "networks"))
        policy = make_policy(spec, config)
    return policy.to(device)


def has_images(spec: Spec) -> bool:
    """Whether any observation key is an image."""
    return any(is_image(obs.shape) for obs in spec.obs.values())


def choose_device(config: Config, *, images: bool) -> torch.device:
    """The device that was asked for, if it is there."""
    wish = config.run.device
    if wish == "auto":
        return torch.device("cuda" if images and torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wish)
    except RuntimeError:
        raise UsageError(f"device is {wish!r}, but it must be cpu, cuda, cuda:N or auto.") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device is {wish!r}, but it must be cpu, cuda, cuda:N or auto.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"device is {wish!r}, but PyTorch sees {torch.cuda.device_count()} CUDA GPUs here: use device cpu, or "
            "install a CUDA build of PyTorch and a driver."
        )
    return device


def check_precision(config: Config, device: torch.device) -> None:
    """Reduced precision is for GPUs, and bf16 for CPUs that can multiply in it; for others it would be slower."""
    precision = config.optimizer.precision
    if precision == "fp32" or device.type == "cuda" or (precision == "bf16" and _cpu_has_bf16()):
        return
    why = "this CPU has no bf16 arithmetic" if precision == "bf16" else f"the device is {device}"
    raise UsageError(f"precision is {precision}, but {why}: use device cuda or precision fp32.")


def _cpu_has_bf16() -> bool:
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # PyTorch 2.12 and later
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class Threads(NamedTuple):
    """Torch threads of the two halves of an iteration."""

    act: int
    learn: int


def choose_threads(config: Config, *, images: bool) -> Threads:
    """As many as were asked for, or as the largest product of a minibatch can use; never more than the cores.

    Acting has few rows, and threads that wait for its next product would take the cores from the physics: images
    apart, it has one.
    """
    cores = available_cores()
    widths = [*config.policy.hidden_sizes, config.policy.memory_size if config.policy.memory != "none" else 0]
    product = config.algorithm.minibatch_size * max(widths) ** 2
    wanted = config.run.num_threads or (cores if images else 1 + product // _PRODUCT_OF_A_THREAD)
    learn = min(wanted, cores)
    return Threads(act=learn if images else 1, learn=learn)


def compiles_actor(config: Config, device: torch.device, vector_steps: int) -> bool:
    """Whether acting is to be compiled: on the CPU, where the run takes vector steps enough to earn it back."""
    wish = config.run.compile
    return device.type == "cpu" and (wish == "on" or (wish == "auto" and vector_steps >= _COMPILED_ACTOR_PAYS_AFTER))


def share_states(one: str, two: str) -> bool:
    """Whether a state of one back end fits another: sync and async keep the same envs, batch has its own."""
    gymnasium_envs = {"SyncVecEnv", "AsyncVecEnv"}
    return one == two or {one, two} <= gymnasium_envs
