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
from proxima.masks import ACTION_MASK
from proxima.nets.encoders import CNN, MLP, ConvLayer, OwnEncoder, image_axes, is_image, nature_layers
from proxima.nets.rnn import RNN
from proxima.nets.spec import ObsSpec, Spec

Obs = dict[str, Tensor]


@dataclass
class EncoderOptions:
    """The encoder of one observation key."""

    widths: list[int] = option([], at_least=1)
    """Layers of its MLP, which follows the convolutions of an image."""
    use: Literal["all", "critic", "none"] = option("all")
    """Who sees the key: all, critic (only the critic), or none."""
    kernels: list[int] = option([], at_least=1)
    """Of an image: size of each convolution; left out, those of Mnih et al. (2015)."""
    strides: list[int] = option([], at_least=1)
    """Of an image: stride of each convolution; left out, 1 for kernels that are given, else those of Mnih et al."""
    channels: list[int] = option([], at_least=1, at_most=65_536)
    """Of an image: channels of each convolution; left out, those of Mnih et al."""
    pool: list[int] = option([], at_least=1)
    """Of an image: size of the max pooling after the first convolution, or after each (1: none)."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = option("relu")
    """Of an image: activation function of the convolutions and of the features."""
    features: int | None = option(None, at_least=1, at_most=65_536)
    """Of an image: outputs of the linear layer after the convolutions. None: cnn_features."""
    network: str | None = option(None, part=True)
    """A network of the user's own in place of ours, module:Class, made as `Class(shape, out, **kwargs)`."""
    out: int | None = option(None, at_least=1, at_most=65_536)
    """Of an own network: its output features."""
    kwargs: dict[str, Any] = option({})
    """Of an own network: its keyword arguments."""


_FOR_IMAGES = ("kernels", "strides", "channels", "pool", "activation", "features")
_FIELDS: dict[str, Option] = {opt.name: opt for opt in options_of("encoders", EncoderOptions)}


def encoder_options(encoders: Mapping[str, Any], spec: Spec) -> dict[str, EncoderOptions]:
    """The encoder of every observation key, from the option `encoders`; a mask is not an input unless it says so."""
    obs = spec.obs
    found = {key: EncoderOptions() for key in obs}
    if spec.has_masks:
        found[ACTION_MASK].use = "none"
    for key, given in encoders.items():
        where = f"encoders: {key}"
        if key not in found and given == {"use": "none"}:
            continue  # left out of the observation, because its space has no array form
        if key not in found:
            raise UsageError(
                f"encoders names {key!r}, but the observation has {', '.join(obs)}.{nearest(str(key), obs)}"
            )
        if not isinstance(given, Mapping):
            raise UsageError(f"{where} is {given!r}, but it must be a mapping such as '{{widths: [64, 32]}}'.")
        for name, value in given.items():
            if name not in _FIELDS:
                raise UsageError(f"{where}: there is no option {name!r}.{nearest(str(name), _FIELDS)}")
            if name in _FOR_IMAGES and not is_image(obs[key].shape):
                raise UsageError(
                    f"{where}: {name} is for images, but {key} has shape {obs[key].shape}: leave it out; widths are "
                    "the layers of its MLP."
                )
            setattr(found[key], name, _FIELDS[name].parse(value, source=where))
        _check_network(found[key], given, where)
        if is_image(obs[key].shape) and found[key].network is None:
            conv_layers(obs[key].shape, found[key], where)
    if all(encoder.use != "all" for encoder in found.values()):
        raise UsageError("encoders leave the actor nothing to see: give at least one key the use all.")
    return found


def _check_network(encoder: EncoderOptions, given: Mapping[str, Any], where: str) -> None:
    """Refuse options that do not go with an own network, or without one."""
    if encoder.network is None:
        if unused := [name for name in ("out", "kwargs") if name in given]:
            raise UsageError(f"{where}: {unused[0]} is for a network of your own: give network, or leave it out.")
    elif encoder.out is None:
        raise UsageError(f"{where}: network is {encoder.network!r}, but out is missing: give its output features.")
    elif unused := [name for name in _FOR_IMAGES if name in given]:
        raise UsageError(f"{where}: {unused[0]} is for our convolutions, and network is in their place: leave one out.")


def conv_layers(shape: tuple[int, ...], encoder: EncoderOptions, where: str = "encoders") -> list[ConvLayer]:
    """The convolutions of an image's encoder; a UsageError that begins with `where` if they do not fit."""
    default = nature_layers(shape)
    kernels = encoder.kernels or [layer.kernel for layer in default]
    strides = encoder.strides or ([1] * len(kernels) if encoder.kernels else [layer.stride for layer in default])
    channels = encoder.channels or [layer.channels for layer in default]
    count = len(kernels)
    if not count == len(strides) == len(channels):
        raise UsageError(
            f"{where}: kernels {kernels}, strides {strides} and channels {channels} differ in length: give each one "
            "number per convolution (what is left out has a default)."
        )
    if len(encoder.pool) not in (0, 1, count):
        raise UsageError(
            f"{where}: pool has {len(encoder.pool)} numbers, but there are {count} convolutions: give one number for "
            f"the first of them, or {count}."
        )
    pool = [*encoder.pool, *[1] * (count - len(encoder.pool))]
    padding = 0 if encoder.kernels else default[0].padding
    layers = [ConvLayer(*layer, padding=padding) for layer in zip(channels, kernels, strides, pool, strict=True)]
    _, height, width = image_axes(shape)
    for index, layer in enumerate(layers, 1):
        smaller = layer.pixels(height), layer.pixels(width)
        if min(smaller) < 1:
            raise UsageError(
                f"{where}: convolution {index} (kernel {layer.kernel}, stride {layer.stride}, pool {layer.pool}) gets "
                f"{height} x {width} pixels, which is too small: use smaller kernels, strides or pool."
            )
        height, width = smaller
    return layers


class Encoders(nn.ModuleList):
    """Encodes keys and joins them to one vector: a CNN for images, or the user's network, then the key's own MLP."""

    def __init__(self, obs: dict[str, ObsSpec], encoders: dict[str, EncoderOptions], options: PolicyOptions):
        super().__init__(_encoder(key, o, encoders[key], options) for key, o in obs.items())
        self.keys_taken = list(obs)
        self.out_features = sum(_features(o, encoders[key], options) for key, o in obs.items())

    def forward(self, obs: Obs) -> Tensor:
        """`[B, *shape]` per key to `[B, features]`."""
        encoded = [encoder(obs[key]).float() for key, encoder in zip(self.keys_taken, self, strict=True)]
        return encoded[0] if len(encoded) == 1 else torch.cat(encoded, -1)


class Trunk(nn.Module):
    """Encoders, then recurrent layers or an MLP of `hidden_sizes`."""

    def __init__(
        self,
        obs: dict[str, ObsSpec],
        encoders: dict[str, EncoderOptions],
        options: PolicyOptions,
        *,
        hidden_sizes: list[int],
    ):
        super().__init__()
        orthogonal = options.orthogonal_init
        self.encoders = Encoders(obs, encoders, options)
        width, widths = self.encoders.out_features, hidden_sizes
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


def _encoder(key: str, spec: ObsSpec, encoder: EncoderOptions, options: PolicyOptions) -> nn.Module:
    orthogonal = options.orthogonal_init
    first: nn.Module = nn.Flatten(1)
    if encoder.network is not None and encoder.out is not None:
        where = f"encoders: {key}"
        first = OwnEncoder(encoder.network, spec.shape, out=encoder.out, kwargs=encoder.kwargs, where=where)
    elif is_image(spec.shape):
        layers, features = conv_layers(spec.shape, encoder), _first_features(spec, encoder, options)
        first = CNN(spec.shape, layers, features=features, activation=encoder.activation, orthogonal=orthogonal)
    if not encoder.widths:
        return first
    inputs = _first_features(spec, encoder, options)
    return nn.Sequential(first, MLP(inputs, encoder.widths, activation=options.activation, orthogonal=orthogonal))


def _first_features(spec: ObsSpec, encoder: EncoderOptions, options: PolicyOptions) -> int:
    """Inputs of the key's MLP."""
    if encoder.network is not None and encoder.out is not None:
        return encoder.out
    return (encoder.features or options.cnn_features) if is_image(spec.shape) else math.prod(spec.shape)


def _features(spec: ObsSpec, encoder: EncoderOptions, options: PolicyOptions) -> int:
    return encoder.widths[-1] if encoder.widths else _first_features(spec, encoder, options)
