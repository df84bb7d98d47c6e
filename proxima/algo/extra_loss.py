"""A term of the user's own in the loss: a function of the minibatch and of the policy's outputs.

It is part of the compiled step. A Python number that it reads is a constant there: a change of it recompiles on a CPU,
and is not seen on a GPU, which replays the step. What changes has to be a tensor that is changed in place, or be
computed from `Outputs.progress`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from proxima.algo.distributions import Distribution
from proxima.errors import UsageError, one_line
from proxima.masks import ACTION_MASK
from proxima.own_parts import find_part

if TYPE_CHECKING:
    from proxima.nets.policy import Policy

TERM = "extra_loss"
Sequence = tuple[dict[str, Tensor], Tensor | None, Tensor | None]
"""Observations, first recurrent state, and where episodes start."""


class Outputs(NamedTuple):
    """The policy's outputs for the steps of a minibatch, with gradient."""

    distribution: Distribution  # DQN's has the Q-values `q` [B, A]
    value: Tensor  # [L * B]
    progress: Tensor  # [], fraction of the run that is done, for schedules


class ExtraLoss:
    """The function `module:function` of the option `extra_loss`.

    It returns a scalar tensor, or a dictionary of them: `loss` is added to the loss, all others are metrics.
    """

    def __init__(self, name: str, policy: "Policy", minibatch: Any):
        """Find the names of its metrics, and its mistakes, by a trial on a made-up minibatch."""
        self._function, self._what = find_part(name, what=TERM), f"{TERM} {name}"
        if not callable(self._function):
            raise UsageError(f"{self._what} is a {type(self._function).__name__}, but it must be a function.")
        self.progress = torch.zeros_like(policy.return_scale)
        """[], to be changed in place."""
        sequences = (minibatch.state, minibatch.start) if hasattr(minibatch, "state") else ()
        with torch.enable_grad():
            distribution, value = policy(minibatch.obs, *sequences)
            terms = self._try(minibatch, Outputs(distribution, value, self.progress))
        self.names = (TERM, *(name for name in terms if name != "loss"))

    def __call__(self, minibatch: Any, distribution: Distribution, value: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The term [] that is added to the loss, and the metrics [] in the order of `names`."""
        terms = _as_terms(self._function(minibatch, Outputs(distribution, value, self.progress)))
        return terms["loss"], [terms["loss" if name == TERM else name].float() for name in self.names]

    def check_names(self, is_taken: Callable[[str], bool]) -> None:
        """Raise a UsageError if one of its own metrics has the name of another."""
        for name in self.names[1:]:
            if is_taken(name):
                raise UsageError(f"{self._what} returns {name!r}, which is a metric already: give it another name.")

    def _try(self, minibatch: Any, outputs: Outputs) -> Mapping[str, Tensor]:
        try:
            terms = _as_terms(self._function(minibatch, outputs))
        except Exception as error:  # of the user's code
            raise UsageError(f"{self._what} failed on a made-up minibatch ({one_line(error)}).") from error
        if not isinstance(terms, Mapping) or "loss" not in terms:
            found = f"the keys {', '.join(map(str, terms))}" if isinstance(terms, Mapping) else type(terms).__name__
            raise UsageError(f"{self._what} returned {found}: return a scalar tensor, or a dict with the key 'loss'.")
        for name, x in terms.items():
            if not isinstance(x, Tensor) or x.shape:
                found = f"a tensor of shape {list(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
                raise UsageError(f"{self._what}: {name!r} is {found}, but it must be a scalar tensor: take a mean.")
        if not terms["loss"].requires_grad:
            raise UsageError(f"{self._what} has no gradient: compute it from the distribution or the value.")
        return terms


def example_obs(policy: "Policy", rows: int) -> dict[str, Tensor]:
    """Made-up observations `[rows, ...]` of a minibatch."""
    device, obs = policy.return_scale.device, policy.obs_specs
    dtypes = {key: torch.uint8 if o.dtype == "uint8" else torch.float32 for key, o in obs.items()}
    found = {key: torch.ones(rows, *o.shape, dtype=dtypes[key], device=device) for key, o in obs.items()}
    if policy.spec.has_masks:
        found[ACTION_MASK] = torch.ones(rows, sum(policy.spec.action.sizes), dtype=torch.uint8, device=device)
    return found


def example_sequence(policy: "Policy", length: int) -> tuple[Sequence, Distribution, Tensor]:
    """A made-up sequence of `length` steps: its obs, state and start, and the policy's outputs for it."""
    obs, state = example_obs(policy, length), policy.first_state(1)
    start = None if state is None else torch.zeros(length, dtype=torch.bool, device=state.device)
    distribution, value = policy(obs, state, start)
    return (obs, state, start), distribution, value


def _as_terms(returned: Any) -> Any:
    """A scalar alone is the loss."""
    return {"loss": returned} if isinstance(returned, Tensor) else returned
