"""Defaults that suit an env: by the kind of its actions and observations, sized by its time limit and its number.

`settle` fills the options that neither a preset, a file nor a flag has set, once the env is known. The values in
`sections.py` are those for continuous actions on vectors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from proxima.algorithms import find_algorithm
from proxima.config.config import Config, all_options
from proxima.errors import UsageError

_MASSIVELY_PARALLEL = 512
"""Envs from which rollouts are short and minibatches large, as for simulators on a GPU (Rudin et al. 2022)."""
_LEAST_STEPS = 16
_SEQUENCE_SAMPLES = 256
"""Samples in a minibatch of sequences."""

Choices = Iterator[tuple[str, Any]]


@dataclass(frozen=True)
class Traits:
    """What the defaults depend on."""

    discrete: bool
    """Discrete, MultiDiscrete or MultiBinary actions; otherwise continuous ones."""
    images: bool
    """Whether an observation key is an image."""
    time_limit: int | None
    """Env steps of the longest episode; None where there is no limit."""

    def __str__(self) -> str:
        limit = f"episodes of up to {self.time_limit:,} steps" if self.time_limit else "no time limit"
        actions = "discrete" if self.discrete else "continuous"
        return f"{actions} actions, {'image' if self.images else 'vector'} observations, {limit}"


def settle(config: Config, traits: Traits) -> tuple[dict[str, Any], list[str]]:
    """Fill in the options that nobody has set, fit the minibatches to the rollout, and check the result.

    Returns the values that were chosen, by option, and notices about surprising consequences.
    """
    section_name = find_algorithm(config.algorithm.algorithm).section
    chosen: dict[str, Any] = {}
    for name, value in _SUITED.get(section_name, _nothing)(config, traits):
        option = all_options()[name]
        section = getattr(config, option.section)
        # A Config that was changed in Python has values that no file or flag gave.
        if name not in config.given and getattr(section, name) == option.default:
            setattr(section, name, value)
            chosen[name] = value
    notices = [] if section_name == "dqn" else _fit_minibatches(config)
    return chosen, notices + config.validate_algorithm()


@cache
def suited_options() -> frozenset[str]:
    """Options whose default depends on the env."""
    kinds = [Traits(discrete=x, images=y, time_limit=None) for x in (False, True) for y in (False, True)]
    return frozenset(name for suit in _SUITED.values() for kind in kinds for name, _ in suit(Config(), kind))


def _ppo(config: Config, traits: Traits) -> Choices:
    """Pairs of option and value. Each is set before the next is computed, so that sizes can follow from sizes."""
    yield "gamma", _gamma(traits.time_limit)
    yield "entropy_coef", 0.01 if traits.discrete or traits.images else 0.0
    if traits.images:
        yield "hidden_sizes", []
        yield "cnn_features", 512
        yield "learning_rate", 2.5e-4
        yield "clip_range", 0.1
    yield from _sizes(config, traits)


def _sizes(config: Config, traits: Traits) -> Choices:
    """Of the rollout and its minibatches."""
    many = config.env.num_envs >= _MASSIVELY_PARALLEL
    yield "num_steps", 24 if many else max(_LEAST_STEPS, (1024 if traits.images else 2048) // config.env.num_envs)
    yield "update_epochs", 5 if many else 4 if traits.images else 10
    if many:
        yield "minibatch_size", max(1, config.num_sequences // 4)
    elif config.is_recurrent:
        yield "minibatch_size", max(1, _SEQUENCE_SAMPLES // config.sequence_length)
    else:
        yield "minibatch_size", 256 if traits.images else 64


def _dqn(config: Config, traits: Traits) -> Choices:
    """Pairs of option and value: for images as for Atari (Mnih et al. 2015), for vectors smaller and sooner."""
    yield "gamma", _gamma(traits.time_limit)
    yield "learning_rate", 1e-4 if traits.images else 5e-4
    yield "max_grad_norm", 10.0
    yield "minibatch_size", 32 if traits.images else 128
    yield "hidden_sizes", [] if traits.images else [128, 128]
    if traits.images:
        yield "cnn_features", 512
    else:
        yield "activation", "relu"
        yield "buffer_size", 50_000
        yield "learning_starts", 1_000
        yield "target_update_every", 500
        yield "return_steps", 3
        yield "exploration_fraction", 0.2


def _distill(config: Config, traits: Traits) -> Choices:
    """Sizes as for PPO; little noise, since the std is not learned and the teacher shows what to do."""
    yield "initial_std", 0.1
    if traits.images:
        yield "hidden_sizes", []
        yield "cnn_features", 512
    yield from _sizes(config, traits)


def _nothing(config: Config, traits: Traits) -> Choices:
    return iter(())


_SUITED = {"ppo": _ppo, "dqn": _dqn, "distill": _distill}


def _gamma(time_limit: int | None) -> float:
    """A horizon, 1 / (1 - gamma), of a tenth of the longest episode, but between 20 and 100 env steps."""
    return 0.99 if time_limit is None else 1 - 1 / min(100, max(20, time_limit // 10))


def _fit_minibatches(config: Config) -> list[str]:
    """Lower a minibatch_size that exceeds the rollout; an error if one file or command line gave both sizes."""
    size, minibatch, steps = config.num_sequences, config.algorithm.minibatch_size, config.sequence_length
    what, notices = "sequences" if config.is_recurrent else "samples", []
    if minibatch > size:
        cut = f", cut into sequences of {steps}" if config.is_recurrent else ""
        found = f"a rollout has only {size} {what} (num_envs {config.env.num_envs} x num_steps "
        found += f"{config.ppo.num_steps}{cut})"
        sources = {config.given[name] for name in ("num_envs", "num_steps") if name in config.given}
        if sources == {config.given.get("minibatch_size")}:
            raise UsageError(f"minibatch_size is {minibatch}, but {found}: lower minibatch_size or raise num_steps.")
        notices.append(f"minibatch_size is {minibatch}, but {found}: all of them are one minibatch.")
        config.algorithm.minibatch_size = size
    elif size % minibatch:
        count = config.num_minibatches
        notices.append(
            f"{size} {what} cannot be divided evenly into minibatches of {minibatch}: each epoch has {count} of at "
            f"most {-(-size // count)}."
        )
    if config.optimizer.gradient_accumulation > config.num_minibatches:
        raise UsageError(
            f"gradient_accumulation is {config.optimizer.gradient_accumulation}, but an epoch has only "
            f"{config.num_minibatches} minibatches: lower it or minibatch_size."
        )
    return notices
