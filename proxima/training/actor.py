"""The policy as the collector calls it: once a vector step, on few rows, so that overhead is most of what it costs."""

import hashlib
import logging
import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from proxima.algo.flat import FlatParameters
from proxima.nets.actor_critic import ActorCritic

log = logging.getLogger("proxima")

Rows = tuple[Tensor, ...]
Record = Callable[[Rows, Tensor, Rows, Tensor], Tensor]
"""Observations as the env gave them, noise, and where observations and actions are stored; gives the env's actions."""


class Actor(nn.Module):
    """Acts, and stores in the rollout what was seen and done."""

    def __init__(self, policy: ActorCritic):
        super().__init__()
        self.policy = policy
        self.keys = list(policy.spec.obs)

    def forward(self, seen: Rows, noise: Tensor, obs: Rows, action: Tensor) -> Tensor:
        """One vector step; `seen` may have the env's own dtypes."""
        for stored, x in zip(obs, seen, strict=True):
            stored.copy_(x)
        raw, env_action = self.policy.act(dict(zip(self.keys, obs, strict=True)), noise)
        action.copy_(raw)
        return env_action


def compile_actor(actor: Actor, flat: FlatParameters, seen: Rows, noise: Tensor, obs: Rows, action: Tensor) -> Record:
    """The same for inputs like these in one call into native code; it follows the weights as they change in place.

    Compiled ahead of time: at this size `torch.compile` spends more on the way to the code than in it.
    """
    trained, keys = flat.views(flat.vector), len(obs)
    state = {f"policy.{name}": x for name, x in actor.policy.named_buffers()}
    state |= {f"policy.{name}": p.detach() for name, p in actor.policy.named_parameters() if name not in trained}
    inputs = [flat.vector, *state.values(), *seen, noise, *obs, action]

    def record(vector: Tensor, *rest: Tensor) -> Tensor:
        tensors = {f"policy.{name}": x for name, x in flat.views(vector).items()}
        tensors |= dict(zip(state, rest, strict=False))
        rows = rest[len(state) :]
        return functional_call(
            actor, tensors, (rows[:keys], rows[keys], rows[keys + 1 : -1], rows[-1]), tie_weights=False
        )

    graph = make_fx(record)(*(x.clone() for x in inputs))
    used = []
    for place, x in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True):
        if place.users:
            used.append(x)
        else:  # what the normaliser counts with
            graph.graph.erase_node(place)
    graph.recompile()
    run = _load(graph, used)
    weights = used[: len(used) - 2 * keys - 2]
    return lambda seen, noise, obs, action: run([*weights, *seen, noise, *obs, action])[0]


def _load(graph: GraphModule, inputs: list[Tensor]) -> Callable[[list[Tensor]], list[Tensor]]:
    """The compiled graph, from the compiler's cache folder if the same was compiled before."""
    shapes = [(x.shape, x.stride(), x.dtype) for x in inputs]
    machine = platform.platform(), torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    key = hashlib.sha256(repr((graph.code, shapes, machine)).encode()).hexdigest()[:32]
    package = Path(cache_dir()) / "proxima" / f"{key}.pt2"
    if not package.exists():
        package.parent.mkdir(parents=True, exist_ok=True)
        program = torch.export.export(graph, tuple(inputs))
        made = torch._inductor.aoti_compile_and_package(
            program, package_path=str(package.with_suffix(f".{os.getpid()}.pt2"))
        )
        Path(made).replace(package)
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
