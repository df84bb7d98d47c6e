"""Networks that users bring along: their classes are found by name, built, and tried out before the run starts.

PPO's first probability ratio is exactly 1, and a resumed run has the same bits, only if the outputs of a network depend
on nothing but its weights and inputs. Dropout and batch statistics break that, and are refused.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from proxima.errors import UsageError
from proxima.masks import ACTION_MASK
from proxima.own_parts import find_part

if TYPE_CHECKING:
    from proxima.nets.policy import Policy

Module = TypeVar("Module", bound=nn.Module)
ROWS = 4
"""Made-up inputs of a trial."""


def find_class(name: str, base: type[Module], *, what: str) -> type[Module]:
    """The class of this name. It must be derived from `base`: a name in a checkpoint must not call anything else."""
    kind = find_part(name, what=what)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        if isinstance(kind, base):
            raise UsageError(f"{what} is {name!r}, an object: give the class {type(kind).__name__}, which makes it.")
        found = f"an object of class {type(kind).__name__}" if not isinstance(kind, type) else "a class"
        raise UsageError(f"{what} is {name!r}, {found} that is not a subclass of {_name(base)}: give such a class.")
    return kind


def build(
    kind: type[Module], *arguments: Any, kwargs: Mapping[str, Any], check: Callable[[Module], None], what: str
) -> Module:
    """The module, after its layers and its behaviour (`check`) were checked.

    It is made with real weights even where PyTorch makes tensors without storage, since a user's code may read them.
    """
    try:
        inspect.signature(kind).bind(*arguments, **kwargs)
    except TypeError as error:
        raise UsageError(f"{what} cannot be made with {len(arguments)} arguments and {kwargs}: {error}.") from None

    def checked() -> Module:
        module = kind(*arguments, **kwargs)
        check_layers(module, what)
        check(module)
        return module

    if torch.get_default_device().type != "meta":
        return checked()
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        module = checked()
    return module.to("meta")


def made_up(shape: Sequence[int]) -> Tensor:
    """Inputs `[ROWS, *shape]` for a trial, between -1 and 1."""
    return torch.arange(1.0, 1.0 + ROWS * math.prod(shape)).mul(12.9898).sin().view(ROWS, *shape)


def check_layers(module: nn.Module, what: str) -> None:
    """Refuse layers that do not compute the same for the same inputs, and parameters that cannot be trained."""
    for name, layer in module.named_modules():
        if isinstance(layer, _NormBase) and (layer.track_running_stats or not isinstance(layer, _InstanceNorm)):
            raise UsageError(
                f"{what}: layer {name!r} is {type(layer).__name__}, whose outputs depend on other samples and earlier "
                "steps, so that PPO's ratios are wrong: use LayerNorm or GroupNorm."
            )
        share = layer.p if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0.0)
        if isinstance(share, float) and share > 0.0:
            raise UsageError(
                f"{what}: layer {name!r} is {type(layer).__name__} with dropout {share:g}, so that PPO's ratios are "
                "random: leave it out, or set it to 0."
            )
    owners: dict[int, str] = {}
    for path, layer in module.named_modules():
        for name, parameter in layer.named_parameters(path, recurse=False):
            if parameter.dtype != torch.float32:
                raise UsageError(f"{what}: parameter {name!r} is {parameter.dtype}, but it must be float32.")
            if owners.setdefault(id(parameter), name) != name:
                raise UsageError(
                    f"{what}: {owners[id(parameter)]!r} and {name!r} are one parameter in two layers, of which only "
                    "one would be trained: use the same layer twice instead."
                )


@torch.no_grad()
def check_outputs(module: nn.Module, run: Callable[[slice], Sequence[Tensor]], what: str) -> None:
    """Refuse a module whose outputs are random, change its buffers, or depend on its mode or on other rows.

    `run` returns the outputs for some of the `ROWS` made-up inputs.
    """
    buffers = {name: x.clone() for name, x in module.named_buffers()}
    was_training = module.training
    with torch.random.fork_rng(devices=[]):
        outputs, again, alone = run(slice(ROWS)), run(slice(ROWS)), run(slice(1))
        module.train(not was_training)
        evaluated = run(slice(ROWS))
    module.train(was_training)
    for name, x in module.named_buffers():
        if name in buffers and not torch.equal(x, buffers[name]):
            raise UsageError(
                f"{what} changes its buffer {name!r} when it is called: it must depend on its inputs only."
            )
    if not _same(outputs, again):
        raise UsageError(f"{what} gives other outputs for the same inputs: it must not draw random numbers.")
    if not _same(outputs, evaluated):
        raise UsageError(f"{what} gives other outputs in eval mode than in training: it must compute the same in both.")
    if not _same([x[:1] for x in outputs], alone, tolerance=1e-3):
        raise UsageError(f"{what} mixes the rows of a batch: its output for one sample must not depend on the others.")


def policy_trial(policy: "Policy", what: str) -> Callable[[slice], list[Tensor]]:
    """Runs the policy on rows of made-up observations, and checks the shapes of what it returns."""
    obs = {key: made_up(o.shape) for key, o in policy.obs_specs.items()}
    obs |= {key: obs[key].abs().mul(255).byte() for key, o in policy.obs_specs.items() if o.dtype == "uint8"}
    sizes = policy.spec.action.sizes if policy.spec.has_masks else ()
    valid = (torch.arange(1, 1 + ROWS)[:, None] % torch.tensor(sizes)).long()  # [ROWS, columns], one choice each
    if sizes:
        columns = zip(valid.unbind(-1), sizes, strict=True)
        obs[ACTION_MASK] = torch.cat([F.one_hot(column, size) for column, size in columns], -1).byte()
        valid = valid[:, 0] if policy.spec.action.kind == "discrete" else valid
    noise, first = made_up((policy.noise_size,)), policy.first_state(ROWS)

    def run(rows: slice) -> list[Tensor]:
        seen, count = {key: x[rows] for key, x in obs.items()}, len(noise[rows])
        state = None if first is None else first[rows]
        start = None if state is None else torch.zeros(count, dtype=torch.bool)
        acted = policy.act(seen, noise[rows], state, with_value=True)
        normal = policy.normalizer(seen)
        distribution, value = policy(normal, state, start)
        found = {
            "the value of forward": value,
            "the value of value": policy.value(normal, state, start),
            "the value of act": acted.value,
            "the log_prob of act": acted.log_prob,
            "the log_prob of forward": distribution.log_prob(acted.action),
            "the entropy of forward": distribution.entropy(),
        }
        for name, x in found.items():
            _check_shape(f"{what}: {name}", x, (count,))
        if state is not None:
            _check_shape(f"{what}: the state of act", acted.state, tuple(state.shape))
        if sizes:
            taken = (acted.action, policy.act(seen, None, state).action)
            is_certain = bool((distribution.log_prob(valid[rows]).abs() < 1e-3).all())
            if not is_certain or any(not torch.equal(action, valid[rows]) for action in taken):
                raise UsageError(
                    f"{what} takes invalid actions: give its head the mask, "
                    "self.action_head(features, self.action_mask(obs))."
                )
        return [acted.action, acted.env_action, *(x for x in (*found.values(), acted.state) if x is not None)]

    return run


def _check_shape(what: str, x: Tensor | None, shape: tuple[int, ...]) -> None:
    found = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
    if found != list(shape):
        raise UsageError(f"{what} is {found} for {shape[0]} observations, but it must have the shape {list(shape)}.")


def _same(one: Sequence[Tensor], two: Sequence[Tensor], *, tolerance: float = 0.0) -> bool:
    pairs = zip(one, two, strict=True)
    return all(torch.allclose(a.double(), b.double(), tolerance, tolerance, equal_nan=True) for a, b in pairs)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
