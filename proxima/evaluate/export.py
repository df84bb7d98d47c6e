"""A trained policy as one file that runs without Proxima: ONNX, or TorchScript.

The file is `load_policy(path).act` for a batch: raw observations in, the likeliest action in the env's own units,
shape and dtype out; a recurrent state goes in and out as well. The normaliser, the encoders and the action
transform are inside; the critic and what only it sees stay behind.
"""

import contextlib
import importlib.util
import io
import logging
import os
import secrets
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor, nn

from proxima.errors import UsageError
from proxima.evaluate.restored import restore_policy
from proxima.nets.encoders import Tanh
from proxima.nets.policy import Policy
from proxima.nets.spec import ActionSpec, ObsSpec
from proxima.nets.trunk import Obs
from proxima.runs.checkpoint import Checkpoint

SUFFIXES = {"onnx": ".onnx", "torchscript": ".pt"}


def export(path: str | Path, *, format: str, out: str | Path | None = None) -> Path:
    """Write the deterministic policy of a checkpoint, or of a run's newest one, to a file; return where it is.

    Args:
        path: checkpoint folder or run folder.
        format: onnx (needs the packages of `proxima-rl[export]`) or torchscript.
        out: the file to write; without it, beside the checkpoint and with its name.
    """
    if format not in SUFFIXES:
        raise UsageError(f"format is {format!r}, but it must be one of {', '.join(SUFFIXES)}.")
    _require_packages(format)
    saved = restore_policy(path)
    target = _beside(saved.checkpoint, SUFFIXES[format]) if out is None else Path(out)
    with _whole_file(target) as file, _quiet(), torch.no_grad():
        file.write(_WRITERS[format](DeterministicPolicy(saved.policy)))
    return target


def signature(path: str | Path) -> str:
    """The inputs and outputs of what `export` makes of a checkpoint, one line each, for people."""
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
    """The actor alone, from raw observations to what the env takes: the function that is exported."""

    start: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, policy: Policy):
        super().__init__()
        self.spec, action = policy.spec, policy.spec.action
        self.policy = policy
        self.keys, keys = policy.actor_keys, set(policy.actor_keys)
        self.inputs = [Port(key, _input_dtype(self.spec.obs[key]), self.spec.obs[key].shape) for key in self.keys]
        self.outputs = [Port(_unused("action", keys), action.dtype, action.shape)]
        if policy.actor_state_size:
            form = ("float32", (policy.actor_state_size,))
            self.inputs.append(Port(_unused("state", keys), *form))
            self.outputs.append(Port(_unused("next_state", keys), *form))
        self.dtype = _torch_dtype(action)
        discrete = action.kind == "discrete"
        self.register_buffer("start", torch.tensor(action.start[0] if discrete and action.start else action.start))
        self.register_buffer("low", torch.tensor(action.low, dtype=torch.float64))
        self.register_buffer("high", torch.tensor(action.high, dtype=torch.float64))
        _use_plain_tanh(self)
        self.eval().requires_grad_(False)

    def forward(self, obs: Obs, state: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """`[B, *shape]` a key to actions `[B, *shape]`; if recurrent, also state to next state."""
        acted = self.policy.act(obs, None, state)
        action = self._in_env_form(acted.env_action)
        return action if acted.state is None else (action, acted.state)

    def _in_env_form(self, action: Tensor) -> Tensor:
        """What `ActionSpec.to_env` does, in operations that both formats have.

        Clipping comes before the cast here: no runtime clips in every dtype, and as rounding keeps the order of
        numbers, the result is the same.
        """
        spec = self.spec.action
        if spec.start:
            action = action + self.start
        if spec.kind == "box" and self.dtype != torch.float32:
            action = action if self.dtype.is_floating_point else action.round()
            action = action.double().clamp(self.low, self.high)
        return action.to(self.dtype).reshape(action.shape[0], *spec.shape)

    def example(self) -> dict[str, Any]:
        """Arguments of two rows of zeros, to trace with; with one, the exporter would take the batch for a constant."""
        zeros = [torch.zeros((2, *port.shape), dtype=getattr(torch, port.dtype)) for port in self.inputs]
        obs, state = dict(zip(self.keys, zeros, strict=False)), zeros[len(self.keys) :]
        return {"obs": obs} | dict(zip(["state"], state, strict=False))


def _use_plain_tanh(module: nn.Module) -> None:
    """Undo the detour through the logistic function, which the exporter would take for compiled code's sake."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Tanh):
                setattr(parent, name, nn.Tanh())


def _input_dtype(obs: ObsSpec) -> str:
    """Bytes stay bytes, all else is float32: as `LoadedPolicy` has it."""
    return "uint8" if obs.dtype == "uint8" else "float32"


def _unused(name: str, taken: set[str]) -> str:
    """The name, with underscores after it where something else is called that."""
    while name in taken:
        name += "_"
    return name


def _torch_dtype(action: ActionSpec) -> torch.dtype:
    dtype = getattr(torch, action.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"the actions are {action.dtype}, which exported files do not have: give the env another.")
    return dtype


# Formats -------------------------------------------------------------------------------------------------------------


def _onnx(policy: DeterministicPolicy) -> bytes:
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
    _clear_names(program.model.graph)
    model = program.model_proto
    for node in model.graph.node:  # notes of the exporter for its own developers, with paths on this machine
        del node.metadata_props[:]
    return model.SerializeToString()


def _clear_names(graph: Any) -> None:
    """Rename what is inside the graph and called as an input or the output is: a key may be `tanh` or `linear`."""
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
    torch.jit.save(torch.jit.freeze(traced, optimize_numerics=False), buffer)  # without the critic, which nothing uses
    return buffer.getvalue()


_WRITERS: dict[str, Callable[[DeterministicPolicy], bytes]] = {"onnx": _onnx, "torchscript": _torchscript}


def _require_packages(format: str) -> None:
    needed = ("onnx", "onnxscript") if format == "onnx" else ()
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f'{format} needs the package {missing[0]}: pip install "proxima-rl[export]".')


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' notes: that tracing is deprecated, that torchvision is absent, how axes are named."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


# Files ---------------------------------------------------------------------------------------------------------------


def _beside(checkpoint: Checkpoint, suffix: str) -> Path:
    """In the run's folder, not in the checkpoint's, which may be pruned."""
    return checkpoint.run_dir / f"{checkpoint.path.resolve().name}{suffix}"


@contextlib.contextmanager
def _whole_file(target: Path) -> Iterator[IO[bytes]]:
    """A file that takes its place when it is complete; opened at once, so that a bad place is known before the work."""
    _check_place(target)
    temporary = target.with_name(f".{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _check_place(target)  # again: what is there may have changed
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {target} ({error.strerror or error}): give --out another place.") from error


def _check_place(target: Path) -> None:
    """Only a regular file is ever replaced."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise UsageError(f"cannot write {target}: the folder {target.parent} does not exist.") from None
        return
    except (OSError, ValueError) as error:  # a file in place of a folder, a name that is too long, a NUL
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot write {target} ({reason}): give --out another place.") from None
    if stat.S_ISDIR(mode):
        raise UsageError(f"{target} is a folder: give --out the name of a file.")
    if not stat.S_ISREG(mode):
        what = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
        raise UsageError(f"{target} is {what}, which an export does not replace: give --out the name of a new file.")
