"""From options to the objects of a run: device, threads, envs, policy."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from proxima.config import Config, Traits, settle
from proxima.envs.catalog import find_spec
from proxima.envs.contract import VecEnv
from proxima.envs.make import make_env
from proxima.errors import UsageError
from proxima.machine import available_cores, physical_memory
from proxima.nets.encoders import is_image
from proxima.nets.make import make_policy
from proxima.nets.policy import Policy
from proxima.nets.spec import Spec
from proxima.training.hold_schedule import HoldSchedule
from proxima.training.seeding import stream_seed

# Multiplications that another thread is worth its overhead for.
_PRODUCT_OF_A_THREAD = 2**20
# It takes some ten seconds once on a machine, and saves about a tenth of a millisecond a vector step.
_COMPILED_ACTOR_PAYS_AFTER = 100_000


@dataclass
class Parts:
    """What an algorithm is built from."""

    config: Config
    env: VecEnv
    spec: Spec
    device: torch.device
    threads: "Threads"
    hold_schedule: HoldSchedule
    traits: Traits
    defaults: dict[str, Any]
    """Options that were chosen to suit the env."""
    notices: list[str]

    @property
    def num_actions(self) -> int:
        """Actions that the run will choose, over all envs: fewer than env steps where they are held."""
        return max(1, round(self.config.run.total_timesteps / self.hold_schedule.steps_a_decision()))

    @property
    def compiles_actor(self) -> bool:
        """Whether acting is to be compiled: on the CPU, where the run takes vector steps enough to earn it back."""
        wish, vector_steps = self.config.run.compile, self.num_actions // self.env.num_envs
        pays = wish == "on" or (wish == "auto" and vector_steps >= _COMPILED_ACTOR_PAYS_AFTER)
        return self.device.type == "cpu" and pays


def build_parts(config: Config) -> Parts:
    """Everything of a run but its algorithm."""
    env = build_env(config)
    try:
        spec = Spec.from_spaces(env.observation_space, env.action_space)
        images = has_images(spec)
        limit = config.env.max_episode_steps or find_spec(config.env.env).max_episode_steps
        traits = Traits(discrete=spec.action.kind != "box", images=images, time_limit=limit)
        chosen, notices = settle(config, traits)
        device = choose_device(config, images=images or env.device.type == "cuda")
        check_precision(config, device)
        threads, wish = choose_threads(config, images=images), config.run.num_threads
        if wish is not None and wish > threads.learn:
            notices.append(f"num_threads is {wish}, but there are {threads.learn} cores: {threads.learn} are used.")
        return Parts(
            config, env, spec, device, threads, HoldSchedule(config, env.step_seconds), traits, chosen, notices
        )
    except BaseException:
        env.close()
        raise


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


def build_policy(spec: Spec, config: Config, device: torch.device) -> Policy:
    """The policy with weights that depend on the seed alone; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):  # shapes alone: a network that is too large is not to fill the memory first
            size = 4 * sum(parameter.numel() for parameter in make_policy(spec, config).parameters())
        if 4 * size > physical_memory():  # weights, gradient and Adam's two moments
            raise UsageError(
                f"the networks have {size // 4:,} parameters, and training them takes {4 * size / 2**30:,.0f} GiB of "
                f"the {physical_memory() / 2**30:,.0f} GiB here: lower hidden_sizes, rnn_size or encoders' widths."
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
    widths = [*config.policy.hidden_sizes, config.policy.rnn_size if config.policy.rnn != "none" else 0]
    product = config.algorithm.minibatch_size * max(widths) ** 2
    wanted = config.run.num_threads or (cores if images else 1 + product // _PRODUCT_OF_A_THREAD)
    learn = min(wanted, cores)
    return Threads(act=learn if images else 1, learn=learn)
