"""Export of a trained policy to one file that runs without Proxima: ONNX or TorchScript.

The file computes `load_policy(path).act` for a batch: from raw observations to the most likely action, in the env's
units, shape and dtype; a recurrent state is both input and output. It contains the normaliser, the encoders and the
action transform, but not the critic and its own observations.
"""

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from proxima.errors import UsageError
from proxima.evaluation.files import complete_file
from proxima.evaluation.restored import restore_policy
from proxima.nets.encoders import Tanh
from proxima.nets.policy import Policy
from proxima.nets.trunk import Obs

_ONE_BATCH_SIZE = (
    "the exported policy would work for one batch size only: a network of your own reads it as a number, as len(x) "
    "does: use x.shape[0], or x.flatten(1)."
)


def export(path: str | Path, *, format: str, out: str | Path | None = None) -> Path:
    """Write the deterministic policy of a checkpoint to a file, and return its path.

    Args:
        path: checkpoint folder, or run folder for its newest checkpoint.
        format: onnx (needs the packages of `proxima-rl[export]`) or torchscript.
        out: the file to write; None is in the run folder, with the checkpoint's name.
    """
    if format not in _FORMATS:
        raise UsageError(f"format is {format!r}, but it must be one of {', '.join(_FORMATS)}.")
    suffix, convert = _FORMATS[format]
    saved = restore_policy(path)
    beside = saved.checkpoint.run_dir / f"{saved.checkpoint.path.resolve().name}{suffix}"
    target = beside if out is None else Path(out)
    with complete_file(target) as file, _quiet(), torch.no_grad():
        file.write_bytes(convert(DeterministicPolicy(saved.policy)))
    return target


def signature(path: str | Path) -> str:
    """Inputs and outputs of the exported policy of a checkpoint, one line each."""
    policy = DeterministicPolicy(restore_policy(path).policy)
    rows = [("input", *port) for port in policy.inputs] + [("output", *port) for port in policy.outputs]
    names, dtypes = (max(len(str(row[column])) for row in rows) for column in (1, 2))
    return "\n".join(
        f"{way:<8}  {name:<{names}}  {dtype:<{dtypes}}  [{', '.join(map(str, ('batch', *shape)))}]"
        for way, name, dtype, shape in rows
    )


class Port(NamedTuple):
    """An input or an output: `[batch, *shape]`."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class DeterministicPolicy(nn.Module):
    """The exported function: the actor, from raw observations to actions of the env's space."""

    start: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, policy: Policy):
        super().__init__()
        self.spec, action = policy.spec, policy.spec.action
        self.policy = policy
        self.keys, keys = policy.actor_keys, set(policy.actor_keys)
        seen = [(key, self.spec.obs[key]) for key in self.keys]
        self.inputs = [Port(key, "uint8" if o.dtype == "uint8" else "float32", o.shape) for key, o in seen]
        self.outputs = [Port(_unused("action", keys), action.dtype, action.shape)]
        if policy.actor_state_size:
            form = ("float32", (policy.actor_state_size,))
            self.inputs.append(Port(_unused("state", keys), *form))
            self.outputs.append(Port(_unused("next_state", keys), *form))
        self.dtype: torch.dtype = getattr(torch, action.dtype, None)  # type: ignore[assignment]
        if not isinstance(self.dtype, torch.dtype):
            raise UsageError(f"the actions are {action.dtype}, which neither format has: use another dtype in the env.")
        discrete = action.kind == "discrete"
        self.register_buffer("start", torch.tensor(action.start[0] if discrete and action.start else action.start))
        self.register_buffer("low", torch.tensor(action.low, dtype=torch.float64))
        self.register_buffer("high", torch.tensor(action.high, dtype=torch.float64))
        _use_plain_tanh(self)
        self.eval().requires_grad_(False)

    def forward(self, obs: Obs, state: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Observations `[B, *shape]` per key to actions `[B, *shape]`; if recurrent, also state to next state."""
        acted = self.policy.act(obs, None, state)
        action = self._in_env_form(acted.env_action)
        return action if acted.state is None else (action, acted.state)

    def _in_env_form(self, action: Tensor) -> Tensor:
        """`ActionSpec.to_env` in operations that both formats support.

        Clipping comes before the cast: no runtime clips in every dtype, and the result is the same since rounding is
        monotonic.
        """
        spec = self.spec.action
        if spec.start:
            action = action + self.start
        if spec.kind == "box" and self.dtype != torch.float32:
            action = action if self.dtype.is_floating_point else action.round()
            action = action.double().clamp(self.low, self.high)
        return action.to(self.dtype).reshape(action.shape[0], *spec.shape)

    def example(self, rows: int = 2) -> dict[str, Any]:
        """Arguments to trace with: a batch of two, since the exporter treats a batch size of one as a constant."""
        zeros = [torch.zeros((rows, *port.shape), dtype=getattr(torch, port.dtype)) for port in self.inputs]
        obs = dict(zip(self.keys, zeros, strict=False))
        return {"obs": obs, "state": zeros[-1]} if len(zeros) > len(obs) else {"obs": obs}


def _use_plain_tanh(module: nn.Module) -> None:
    """Replace our `Tanh`, written with sigmoids for the compiler, by PyTorch's."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Tanh):
                setattr(parent, name, nn.Tanh())


def _unused(name: str, taken: set[str]) -> str:
    """The name, with underscores appended until it is free."""
    while name in taken:
        name += "_"
    return name


def _onnx(policy: DeterministicPolicy) -> bytes:
    for name in ("onnx", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            raise UsageError(f'onnx needs the package {name}: pip install "proxima-rl[export]".')
    example, rows = policy.example(), {0: torch.export.Dim("batch")}
    program = torch.onnx.export(
        policy,
        kwargs=example,
        input_names=[port.name for port in policy.inputs],
        output_names=[port.name for port in policy.outputs],
        dynamic_shapes={name: dict.fromkeys(x, rows) if name == "obs" else rows for name, x in example.items()},
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    graph: Any = program.model.graph
    if any(isinstance(value.shape[0], int) for value in graph.inputs):
        raise UsageError(_ONE_BATCH_SIZE)
    _clear_names(graph)
    model = program.model_proto
    for node in model.graph.node:  # debug information, with paths on this machine
        del node.metadata_props[:]
    return model.SerializeToString()


def _clear_names(graph: Any) -> None:
    """Rename inner values that have the name of an input or output: a key may be `tanh` or `linear`."""
    outer = {value.name for value in (*graph.inputs, *graph.outputs)}
    inner = [value for node in graph for value in node.outputs if not value.is_graph_output()]
    inner += graph.initializers.values()
    taken = outer | {value.name for value in inner}
    for value in inner:
        if value.name in outer:
            value.name = _unused(value.name, taken)
            taken.add(value.name)


def _torchscript(policy: DeterministicPolicy) -> bytes:
    buffer = io.BytesIO()
    traced = torch.jit.trace(policy, tuple(policy.example().values()), check_trace=False)
    try:
        traced(*policy.example(3).values())
    except RuntimeError:
        raise UsageError(_ONE_BATCH_SIZE) from None
    torch.jit.save(torch.jit.freeze(traced, optimize_numerics=False), buffer)  # freezing drops the unused critic
    return buffer.getvalue()


_FORMATS: dict[str, tuple[str, Callable[[DeterministicPolicy], bytes]]] = {
    "onnx": (".onnx", _onnx),
    "torchscript": (".pt", _torchscript),
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters: tracing is deprecated, torchvision is absent, how axes are named."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)
