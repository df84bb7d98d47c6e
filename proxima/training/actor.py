"""Acting, as the collector calls it: once per vector step, on few rows, where overhead dominates."""

import hashlib
import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from proxima.algo.adam import FlatParameters
from proxima.data.frames import newest
from proxima.nets.policy import Policy

_NOT_FOR_ACTING = ("normalizer.moments", "return_scale")

Rows = tuple[Tensor, ...]
Record = Callable[[Rows, Tensor, Rows, Tensor, Rows, Rows], Tensor]
"""(observations from the env, noise, rows to store observations in, row to store actions in, recurrent state or (),
rows to store log-probabilities and values in or ()) -> actions for the env. The recurrent state is updated in place."""
Native = Callable[[list[Tensor]], list[Tensor]]


class Actor(nn.Module):
    """Acts, and stores observations and actions in the rollout."""

    def __init__(self, policy: Policy, env_device: torch.device, stacks: Mapping[str, int] | None = None):
        """`stacks` has the number of frames of each key that is stored as its newest frame."""
        super().__init__()
        self.policy, self.env_device = policy, env_device
        self.keys = policy.keys
        self.stacks = [(stacks or {}).get(key, 1) for key in self.keys]

    def forward(self, seen: Rows, noise: Tensor, obs: Rows, action: Tensor, state: Rows, values: Rows = ()) -> Tensor:
        """One vector step; see `Record`. `seen` may have the env's own dtypes."""
        taken = []
        for stored, x, frames in zip(obs, seen, self.stacks, strict=True):
            stored.copy_(newest(x, frames))
            taken.append(x.to(stored) if frames > 1 else stored)
        now = dict(zip(self.keys, taken, strict=True))
        acted = self.policy.act(now, noise, *state, with_value=bool(values))
        if values:
            assert acted.log_prob is not None and acted.value is not None
            values[0].copy_(acted.log_prob)
            values[1].copy_(acted.value)
        action.copy_(acted.action)
        if acted.state is not None:
            state[0].copy_(acted.state)
        return acted.env_action.to(self.env_device)


@torch.no_grad()
def compile_actor(actor: Actor, flat: FlatParameters, *example: Any) -> Record:
    """The actor as one call into native code, for arguments like these of `Record`; it reads the weights in place.

    Compiled ahead of time: at this size the overhead of a `torch.compile` call exceeds the time of its code.
    """
    trained = flat.views(flat.vector)
    others = {name: p.detach() for name, p in actor.policy.named_parameters() if name not in trained}
    others |= {name: x for name, x in actor.policy.named_buffers() if not name.startswith(_NOT_FOR_ACTING)}
    weights = [flat.vector, *others.values()]

    def record(vector: Tensor, *rest: Tensor) -> Tensor:
        tensors = flat.views(vector) | dict(zip(others, rest, strict=False))
        named = {f"policy.{name}": x for name, x in tensors.items()}
        return functional_call(actor, named, tree_unflatten(rest[len(others) :], structure), tie_weights=False)

    leaves, structure = tree_flatten(example)
    run = _compile(_Function(record), [*weights, *leaves])
    forms = [(x.dtype, x.stride()) for x in example[0]]

    def call(seen: Rows, noise: Tensor, obs: Rows, action: Tensor, state: Rows, values: Rows = ()) -> Tensor:
        # Native code does not check dtypes and strides, so observations of another form must be converted.
        if [(x.dtype, x.stride()) for x in seen] != forms:
            seen = tuple([x.to(dtype).contiguous() for x, (dtype, _) in zip(seen, forms, strict=True)])
        return run([*weights, *seen, noise, *obs, action, *state, *values])[0]

    return call


class _Function(nn.Module):
    """A function as the module that the exporter needs."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def _compile(module: nn.Module, inputs: list[Tensor]) -> Native:
    """The module as native code, from the compiler's cache folder if it was compiled before."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # takes a second to import

    with warnings.catch_warnings():  # the exporter's own
        warnings.simplefilter("ignore")
        program = torch.export.export(module, tuple(x.clone() for x in inputs))
        folder = Path(cache_dir()) / "proxima"
        folder.mkdir(parents=True, exist_ok=True)
        package = folder / f"{cache_key(program, inputs)}.pt2"
        if package.exists():
            try:
                return _load(package)
            except RuntimeError:  # a damaged file
                package.unlink()
        with tempfile.TemporaryDirectory(dir=folder) as place:
            part = Path(place) / package.name
            torch._inductor.aoti_compile_and_package(program, package_path=str(part))
            part.replace(package)
        return _load(package)


def _load(package: Path) -> Native:
    return torch._inductor.aoti_load_package(str(package)).loader.boxed_run


def cache_key(program: ExportedProgram, inputs: list[Tensor]) -> str:
    """A hash of everything that the native code depends on: graph, inputs, and machine."""
    if program.constants:
        raise RuntimeError(f"the actor's graph holds constants: {', '.join(program.constants)}")
    modules = [module for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    code = [module.code for module in modules]
    shapes = [(x.shape, x.stride(), x.dtype) for x in inputs]
    machine = (platform.platform(), _cpu(), torch.__version__, torch.get_num_threads(), os.environ.get("CXX"))
    return hashlib.sha256(repr((code, shapes, machine)).encode()).hexdigest()[:32]


def _cpu() -> str:
    """Model and instruction sets of the CPU, which the compiler uses."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + torch.backends.cpu.get_cpu_capability()
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
