"""The policy as the collector calls it: once a vector step, on few rows, so that overhead is most of what it costs."""

import hashlib
import logging
import os
import platform
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

from proxima.algo.flat import FlatParameters
from proxima.nets.actor_critic import ActorCritic

log = logging.getLogger("proxima")

_NOT_FOR_ACTING = ("normalizer.moments", "return_scale")

Rows = tuple[Tensor, ...]
Record = Callable[[Rows, Tensor, Rows, Tensor], Tensor]
"""Observations as the env gave them, noise, and where observations and actions are stored; gives the env's actions."""


class Actor(nn.Module):
    """Acts, and stores in the rollout what was seen and done."""

    def __init__(self, policy: ActorCritic, env_device: torch.device):
        super().__init__()
        self.policy, self.env_device = policy, env_device
        self.keys = list(policy.spec.obs)

    def forward(self, seen: Rows, noise: Tensor, obs: Rows, action: Tensor) -> Tensor:
        """One vector step; `seen` may have the env's own dtypes."""
        for stored, x in zip(obs, seen, strict=True):
            stored.copy_(x)
        raw, env_action = self.policy.act(dict(zip(self.keys, obs, strict=True)), noise)
        action.copy_(raw)
        return env_action.to(self.env_device)


def compile_actor(actor: Actor, flat: FlatParameters, seen: Rows, noise: Tensor, obs: Rows, action: Tensor) -> Record:
    """The same for inputs like these in one call into native code; it follows the weights as they change in place.

    Compiled ahead of time: at this size `torch.compile` spends more on the way to the code than in it.
    """
    trained, keys = flat.views(flat.vector), len(obs)
    state = {name: p.detach() for name, p in actor.policy.named_parameters() if name not in trained}
    state |= {name: x for name, x in actor.policy.named_buffers() if not name.startswith(_NOT_FOR_ACTING)}
    weights = [flat.vector, *state.values()]

    def record(vector: Tensor, *rest: Tensor) -> Tensor:
        tensors = flat.views(vector) | dict(zip(state, rest, strict=False))
        rows = rest[len(state) :]
        arguments = (rows[:keys], rows[keys], rows[keys + 1 : -1], rows[-1])
        named = {f"policy.{name}": x for name, x in tensors.items()}
        return functional_call(actor, named, arguments, tie_weights=False)

    run = _compile(_Function(record), [*weights, *seen, noise, *obs, action])
    return lambda seen, noise, obs, action: run([*weights, *seen, noise, *obs, action])[0]


class _Function(nn.Module):
    """What the exporter takes for a module, though it has nothing of its own."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def _compile(module: nn.Module, inputs: list[Tensor]) -> Callable[[list[Tensor]], list[Tensor]]:
    """The module in native code, from the compiler's cache folder if the same was compiled before."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # a second to import, which a run without it saves

    with warnings.catch_warnings():  # the exporter's own
        warnings.simplefilter("ignore")
        program = torch.export.export(module, tuple(x.clone() for x in inputs))
    shapes = [(x.shape, x.stride(), x.dtype) for x in inputs]
    machine = platform.platform(), torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    key = hashlib.sha256(repr((program.graph_module.code, shapes, machine)).encode()).hexdigest()[:32]
    package = Path(cache_dir()) / "proxima" / f"{key}.pt2"
    if not package.exists():
        package.parent.mkdir(parents=True, exist_ok=True)
        part = package.with_suffix(f".{os.getpid()}.pt2")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch._inductor.aoti_compile_and_package(program, package_path=str(part))
        part.replace(package)
    return torch._inductor.aoti_load_package(str(package)).loader.boxed_run


def make_record(actor: Actor, flat: FlatParameters | None, *example: object) -> Record:
    """The actor, compiled if `flat` is given and a compiler works."""
    if flat is None:
        return actor
    try:
        return compile_actor(actor, flat, *example)  # type: ignore[arg-type]
    except Exception as error:  # the compiler and the toolchain raise whatever they like
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        log.warning("The actor is not compiled (%s): the run goes on, slower.", reason)
        return actor
