"""Encoders: modules that map one observation key to features."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from proxima.errors import UsageError, one_line
from proxima.nets.own import build, check_outputs, find_class, made_up


class Tanh(nn.Module):
    """Hyperbolic tangent; in compiled code computed by the sigmoid, at a quarter of the cost and equal to 1e-7."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return 2.0 * torch.sigmoid(2.0 * x) - 1.0 if torch.compiler.is_compiling() else torch.tanh(x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


def init_layer(layer: nn.Linear | nn.Conv2d, *, gain: float, orthogonal: bool) -> None:
    """Orthogonal weights and zero bias, or else PyTorch's default initialisation."""
    if orthogonal:
        nn.init.orthogonal_(layer.weight, gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


class MLP(nn.Sequential):
    """Linear layers, each followed by the activation."""

    def __init__(self, inputs: int, widths: Sequence[int], *, activation: str, orthogonal: bool):
        layers: list[nn.Module] = []
        for width in widths:
            linear = nn.Linear(inputs, width)
            init_layer(linear, gain=2**0.5, orthogonal=orthogonal)
            layers += [linear, ACTIVATIONS[activation]()]
            inputs = width
        super().__init__(*layers)
        self.out_features = inputs


class ConvLayer(NamedTuple):
    """A convolution, then max pooling."""

    channels: int
    """Of its output."""
    kernel: int
    stride: int
    pool: int = 1
    """Size and stride of the pooling; 1 is none."""
    padding: int = 0

    def pixels(self, before: int) -> int:
        """Pixels of its output along an axis; below 1 if its input is too small."""
        return ((before + 2 * self.padding - self.kernel) // self.stride + 1) // self.pool


def nature_layers(shape: tuple[int, ...]) -> list[ConvLayer]:
    """The convolutions of Mnih et al. (2015); images under 36 x 36 pixels get smaller kernels."""
    _, height, width = image_axes(shape)
    if min(height, width) < 36:
        return [ConvLayer(32, 3, 2, padding=1), ConvLayer(64, 3, 2, padding=1), ConvLayer(64, 3, 1, padding=1)]
    return [ConvLayer(32, 8, 4), ConvLayer(64, 4, 2), ConvLayer(64, 3, 1)]


class CNN(nn.Module):
    """Convolutions and a linear layer, each followed by the activation.

    Channels may come first or last: the shorter outer axis is the channels. The frames of a stack `[F, H, W, C]` are
    further channels. Bytes are scaled to 0..1, floats are not.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        layers: Sequence[ConvLayer],
        *,
        features: int,
        activation: str = "relu",
        orthogonal: bool,
    ):
        super().__init__()
        self.channels_last = has_channels_last(shape)
        channels, height, width = image_axes(shape)
        modules: list[nn.Module] = []
        for layer in layers:
            conv = nn.Conv2d(channels, layer.channels, layer.kernel, layer.stride, padding=layer.padding)
            init_layer(conv, gain=2**0.5, orthogonal=orthogonal)
            pooling = [nn.MaxPool2d(layer.pool)] if layer.pool > 1 else []
            modules += [conv, *pooling, ACTIVATIONS[activation]()]
            channels, height, width = layer.channels, layer.pixels(height), layer.pixels(width)
        self.convolutions = nn.Sequential(*modules, nn.Flatten())
        self.linear = nn.Linear(channels * height * width, features)
        init_layer(self.linear, gain=2**0.5, orthogonal=orthogonal)
        self.activation = ACTIVATIONS[activation]()
        self.out_features = features

    def forward(self, image: Tensor) -> Tensor:
        """`[B, *shape]`, bytes or floats, to `[B, features]`."""
        # In this memory format the backward pass of the convolutions takes a third less time.
        pixels = to_pixels(image, self.channels_last).contiguous(memory_format=torch.channels_last)
        features: Tensor = self.activation(self.linear(self.convolutions(pixels)))
        return features


class OwnEncoder(nn.Module):
    """A user's network for one key, `network(shape, out, **kwargs)`, which maps `[B, *shape]` to `[B, out]`.

    Its inputs are float32 and normalised; an image comes as `[B, C, H, W]`, bytes scaled to 0..1.
    """

    def __init__(self, name: str, shape: tuple[int, ...], *, out: int, kwargs: Mapping[str, Any], where: str):
        """`where` begins error messages, for example "encoders: lidar"."""
        super().__init__()
        self.is_image = is_image(shape)
        self.channels_last = self.is_image and has_channels_last(shape)
        self.shape, what = image_axes(shape) if self.is_image else shape, f"{where}: network {name}"
        kind = find_class(name, nn.Module, what=f"{where}: network")

        def check(network: nn.Module) -> None:
            inputs = made_up(self.shape)
            check_outputs(network, lambda rows: [_features(network, inputs[rows], out, what)], what)

        self.network = build(kind, self.shape, out, kwargs=kwargs, check=check, what=what)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, *shape]`, bytes or floats, to `[B, out]`."""
        if self.is_image:
            # In PyTorch's usual memory format, also with one channel: so that `view` works on what follows.
            x = to_pixels(x, self.channels_last).flatten(1).unflatten(1, self.shape)
        features: Tensor = self.network(x.float())
        return features


def _features(network: nn.Module, x: Tensor, out: int, what: str) -> Tensor:
    """The output for made-up inputs; a UsageError if it is not `[B, out]`."""
    try:
        found = network(x)
    except Exception as error:  # of the user's code
        raise UsageError(f"{what} failed for an input of shape {list(x.shape)} ({one_line(error)}).") from error
    if not isinstance(found, Tensor):
        raise UsageError(f"{what} returned a {type(found).__name__}, but it must be a tensor [B, {out}].")
    if found.shape != (len(x), out):
        raise UsageError(
            f"{what} turned {list(x.shape)} into {list(found.shape)}, but with out {out} it must be {[len(x), out]}: "
            "change the network, or out."
        )
    return found


def is_image(shape: tuple[int, ...]) -> bool:
    """Three axes, two of them at least 8 pixels long; or a stack of frames of such images with up to 4 channels."""
    if len(shape) == 4:
        channels, height, width = image_axes(shape[1:])
        return min(height, width) >= 8 and channels <= 4 and shape[0] < min(height, width)
    return len(shape) == 3 and sorted(shape)[1] >= 8


def image_axes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of an image; the frames of a stack are channels."""
    if len(shape) == 4:
        channels, height, width = image_axes(shape[1:])
        return shape[0] * channels, height, width
    return (shape[2], shape[0], shape[1]) if has_channels_last(shape) else (shape[0], shape[1], shape[2])


def has_channels_last(shape: tuple[int, ...]) -> bool:
    """Whether an image is stored as height, width, channels: the shorter outer axis is the channels."""
    return shape[-1] < shape[-3]


def to_pixels(image: Tensor, channels_last: bool) -> Tensor:
    """Images, or stacks of frames, `[B, *shape]` as `[B, C, H, W]`; bytes are scaled to 0..1, floats are not."""
    pixels = image.float() * (1.0 / 255.0) if image.dtype == torch.uint8 else image
    pixels = pixels.movedim(-1, -3) if channels_last else pixels
    return pixels.flatten(1, 2) if pixels.ndim == 5 else pixels
