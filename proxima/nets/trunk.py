"""Trunks: one encoder per observation key, then recurrent layers or an MLP on the joined features."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from proxima.config.options import Option, nearest, option, options_of
from proxima.config.sections import PolicyOptions
from proxima.errors import UsageError
from proxima.nets.encoders import CNN, MLP, is_image
from proxima.nets.rnn import RNN
from proxima.nets.spec import ObsSpec

Obs = dict[str, Tensor]


@dataclass
class EncoderOptions:
    """The encoder of one observation key."""

    widths: list[int] = option([], at_least=1)
    """Layers of its MLP, which follows the convolutions of an image."""
    use: Literal["all", "critic", "none"] = option("all")
    """Who sees the key: all, critic (only the critic), or none."""


_FIELDS: dict[str, Option] = {opt.name: opt for opt in options_of("encoders", EncoderOptions)}


def encoder_options(encoders: Mapping[str, Any], obs: Mapping[str, ObsSpec]) -> dict[str, EncoderOptions]:
    """The encoder of every observation key, from the option `encoders`."""
    found = {key: EncoderOptions() for key in obs}
    for key, given in encoders.items():
        where = f"encoders: {key}"
        if key not in found:
            raise UsageError(
                f"encoders names {key!r}, but the observation has {', '.join(obs)}.{nearest(str(key), obs)}"
            )
        if not isinstance(given, Mapping):
            raise UsageError(f"{where} is {given!r}, but it must be a mapping such as '{{widths: [64, 32]}}'.")
        for name, value in given.items():
            if name not in _FIELDS:
                raise UsageError(f"{where}: there is no option {name!r}.{nearest(str(name), _FIELDS)}")
            setattr(found[key], name, _FIELDS[name].parse(value, source=where))
    if all(encoder.use != "all" for encoder in found.values()):
        raise UsageError("encoders leave the actor nothing to see: give at least one key the use all.")
    return found


class Encoders(nn.ModuleList):
    """Encodes keys and joins them to one vector: a CNN for images, then the key's own MLP."""

    def __init__(self, obs: dict[str, ObsSpec], encoders: dict[str, EncoderOptions], options: PolicyOptions):
        super().__init__(_encoder(o, encoders[key].widths, options) for key, o in obs.items())
        self.keys_taken = list(obs)
        self.out_features = sum(_features(o, encoders[key].widths, options) for key, o in obs.items())

    def forward(self, obs: Obs) -> Tensor:
        """`[B, *shape]` per key to `[B, features]`."""
        encoded = [encoder(obs[key]).float() for key, encoder in zip(self.keys_taken, self, strict=True)]
        return encoded[0] if len(encoded) == 1 else torch.cat(encoded, -1)


class Trunk(nn.Module):
    """Encoders, then recurrent layers or an MLP."""

    def __init__(self, obs: dict[str, ObsSpec], encoders: dict[str, EncoderOptions], options: PolicyOptions):
        super().__init__()
        orthogonal = options.orthogonal_init
        self.encoders = Encoders(obs, encoders, options)
        width, widths = self.encoders.out_features, options.hidden_sizes
        self.rnn: RNN | None = None
        if options.rnn != "none":
            size, layers = options.rnn_size, options.rnn_layers
            self.rnn = RNN(width, kind=options.rnn, size=size, layers=layers, orthogonal=orthogonal)
            width, widths = size, []  # the hidden layers belong to the heads then
        self.mlp = MLP(width, widths, activation=options.activation, orthogonal=orthogonal)
        self.out_features = self.mlp.out_features

    @property
    def state_size(self) -> int:
        """Size of the recurrent state of one env; 0 without recurrent layers."""
        return self.rnn.state_size if self.rnn else 0

    def forward(self, obs: Obs, state: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """`[B, *shape]` per key to `[B, features]`; with `start`, sequences `[L * B, ...]` as in `RNN.sequence`."""
        if start is None:
            return self.step(obs, state)[0]
        assert self.rnn is not None and state is not None
        return self.rnn.sequence(self.encoders(obs), state, start)

    def step(self, obs: Obs, state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Features `[B, features]` of one step, and the next state; None is the state at the start of an episode."""
        x = self.encoders(obs)
        if self.rnn is None:
            return self.mlp(x), None
        return self.rnn.step(x, x.new_zeros(len(x), self.state_size) if state is None else state)


def _encoder(spec: ObsSpec, widths: list[int], options: PolicyOptions) -> nn.Module:
    orthogonal = options.orthogonal_init
    first: nn.Module = nn.Flatten(1)
    if is_image(spec.shape):
        first = CNN(spec.shape, features=options.cnn_features, orthogonal=orthogonal)
    if not widths:
        return first
    inputs = _features(spec, [], options)
    return nn.Sequential(first, MLP(inputs, widths, activation=options.activation, orthogonal=orthogonal))


def _features(spec: ObsSpec, widths: list[int], options: PolicyOptions) -> int:
    if widths:
        return widths[-1]
    return options.cnn_features if is_image(spec.shape) else math.prod(spec.shape)
