"""The interface of every vector environment. `make.py` chooses between the back ends that implement it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from gymnasium import spaces
from torch import Tensor, device

from proxima.envs import state_parts
from proxima.envs.action_hold import Hold, Holder
from proxima.errors import UsageError

Obs = dict[str, Tensor]
"""One tensor `[N, *shape]` per key, in the env's own dtype (float64 for MuJoCo, uint8 for images)."""


@dataclass(slots=True)
class Episodes:
    """Undiscounted return and length of the episodes that ended in a step.

    Tensors of all N envs, so that nothing is gathered or synchronised. Rows where `Step.ended` is false are arbitrary.
    """

    return_: Tensor  # [N] float64
    length: Tensor  # [N] int64, in env steps
    success: Tensor | None = None  # [N] float64: 1 or 0 as reported by the env, else NaN
    info: dict[str, Tensor] = field(default_factory=dict)  # [N] float64 each, NaN if the env did not report it


@dataclass(slots=True)
class Step:
    """Result of one vector step. The next call may overwrite the tensors: read or copy them before it."""

    obs: Obs
    """What the policy acts on next. Where an episode ended, this is the first observation of the next episode."""
    reward: Tensor
    """[N] float64; for a held action `sum gamma^i r_i` over its steps, with the gamma of the env's `hold`."""
    terminated: Tensor
    """[N] bool: the task itself ended the episode; no bootstrap value."""
    truncated: Tensor
    """[N] bool: a time limit (or a lost worker) ended the episode; bootstrapped with V(final observation)."""
    final_obs: Obs | None
    """Last observation of the ended episodes. Rows where nothing ended are arbitrary; None if nothing ended at all."""
    episodes: Episodes
    duration: Tensor | None = None
    """[N] int64: env steps for which the action was held; None means 1 everywhere."""
    aux: dict[str, Tensor] = field(default_factory=dict)
    """Inputs and targets of a second learner, `[N, ...]` each; empty unless the env has some.

    Keys, shapes and dtypes are the same in every step. A row belongs to the transition of this step (the last env step
    of a held action), so where an episode ended, to the ended episode, like `reward` and unlike `obs`. It is not part
    of the env's state.
    """
    skipped: Tensor | None = None
    """[N] bool: the env only started a new episode, and its action was ignored; None if none did. Rows of reward 0
    that neither are env steps nor end episodes. Only envs with `skips` have them, in the step after an end, in which
    `obs` was still the final one."""

    @property
    def ended(self) -> Tensor:
        """[N] bool: the episode ended, terminated or truncated."""
        return self.terminated | self.truncated


@dataclass(frozen=True)
class Reflection:
    """A left-right mirror image of flattened numbers: number i becomes `sign[i] * x[index[i]]`. Twice is the identity.

    An image is reflected by an `index` that reverses its columns.
    """

    index: tuple[int, ...]
    sign: tuple[int, ...]
    """1 or -1."""

    def __post_init__(self) -> None:
        index, sign = self.index, self.sign
        fits = len(index) == len(sign) and all(0 <= i < len(index) for i in index) and set(sign) <= {1, -1}
        if not fits or any(index[j] != i or sign[i] != sign[j] for i, j in enumerate(index)):
            raise ValueError(
                "a reflection needs numbers that it swaps in pairs, with one sign of 1 or -1 for each pair."
            )


@dataclass(frozen=True)
class Mirror:
    """The left-right mirror of an env: a mirrored action in a mirrored state has a mirrored outcome."""

    obs: Mapping[str, Reflection]
    """For every observation key, flattened."""
    action: Reflection
    """Of a Box action in the env's units, flattened."""


class VecEnv(ABC):
    """`num_envs` copies of one environment, stepped together, with same-step autoreset."""

    num_envs: int
    observation_space: spaces.Dict
    """Of one env: a flat Dict of Box; a plain Box observation is `{"obs": Box}`.

    With Discrete or MultiDiscrete actions, the key `action_mask` is reserved for their mask: uint8 `[sum(sizes)]`, the
    choices of all columns one after another, 0 for those that are invalid now. At least one of each column is valid,
    except in final observations.
    """
    action_space: spaces.Space
    """Of one env: Box, Discrete, MultiDiscrete or MultiBinary."""
    device: device
    step_seconds: float | None
    """Simulated seconds per env step, None if unknown."""
    episode_info: tuple[str, ...] = ()
    """Names of the statistics that the env reports for every finished episode: the keys of `Episodes.info`."""
    log_info: tuple[str, ...] = ()
    """Keys of the envs' `info` whose numbers `take_info` returns; () for envs that have no `info`."""
    holder: Holder
    skips: bool = False
    """Whether steps may have `skipped` rows: the env starts episodes one step after the last has ended."""
    first_env: int = 0
    """Number of the first env, if this is a part of a larger set of envs."""
    total_envs: int | None = None
    """Size of that set; None: `num_envs`."""
    mirror: Mirror | None = None
    """Left-right symmetry of the task, for the option `symmetry`; None if it has none."""

    @property
    def hold(self) -> Hold:
        """For how many env steps `step` holds each action; can be set between steps, and is part of the state."""
        return self.holder.hold

    @hold.setter
    def hold(self, hold: Hold) -> None:
        self.holder.hold = hold

    def become_part(self, first: int, total: int) -> None:
        """Be the envs from `first` on, out of `total`, of which other processes have the others.

        To be called before `reset`. What an env does then depends on its number in the whole set, not on how the set is
        divided; the caller adds `first` to the seeds.
        """
        self.first_env, self.total_envs = first, total
        self.holder.become_part(first, total)

    @abstractmethod
    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env. Env i is seeded with `seed + i`; None continues with its generator."""

    @abstractmethod
    def step(self, action: Tensor) -> Step:
        """Apply one action per env, held for the env steps of `hold`, or until the episode ends or it becomes invalid.

        Box: float32 `[N, A]`, A the flattened size, in the env's own units, within the bounds; Discrete: int64 `[N]`
        counted from 0; MultiDiscrete and MultiBinary: int64 `[N, A]`, counted from 0.
        """

    @abstractmethod
    def close(self) -> None:
        """Free processes and memory. Calling it twice is harmless."""

    def why_inexact(self) -> str | None:
        """Why a resume from `get_state` would not be exact; None if it is."""
        return None if isinstance(self, ExactState) else "its state cannot be saved"

    def join_states(self, states: Sequence[Any]) -> Any:
        """One state of the envs of several states of `get_state`, in order."""
        return state_parts.join_states(states)

    def split_state(self, state: Any, counts: Sequence[int]) -> list[Any]:
        """The inverse of `join_states`, for parts of `counts` envs; ValueError if the state cannot be divided."""
        return state_parts.split_state(state, counts)

    def set_weights(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Use these weights in the network `name` that is part of the env, such as a muscle network."""
        raise UsageError(f"{type(self).__name__} has no network {name!r}.")

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the env, for example to change its difficulty; of single envs, of each: a list."""
        if not callable(found := getattr(self, method, None)):
            raise UsageError(f"{type(self).__name__} has no method {method!r} to call.")
        return found(*args, **kwargs)

    def take_info(self) -> dict[str, float]:
        """Means of the numbers of `log_info` over the env steps since the last call; NaN without any."""
        return {}

    def counters(self) -> dict[str, int]:
        """Cumulative counts for the metrics of every iteration, such as restarted workers."""
        return {}


@runtime_checkable
class ExactState(Protocol):
    """A vector env whose complete state can be saved and restored, so that a resume is bit-exact.

    The state consists of dicts, lists, tensors, numbers, strings and bytes: physics, generators, step counters,
    statistics of unfinished episodes and the last observation.
    """

    def get_state(self) -> dict[str, Any] | None:
        """Everything needed to continue exactly, copied; None if it is unavailable at the moment."""

    def set_state(self, state: dict[str, Any]) -> dict[str, Tensor]:
        """Restore a state and return the observation that the policy acts on next."""
