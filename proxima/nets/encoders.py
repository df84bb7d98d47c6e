"""Encoders: modules that map one observation key to features."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


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


class CNN(nn.Module):
    """Three convolutions and a linear layer (Mnih et al. 2015); images under 36 x 36 pixels get smaller kernels.

    Channels may come first or last: the shorter outer axis is the channels. Bytes are scaled to 0..1, floats are not.
    """

    def __init__(self, shape: tuple[int, ...], *, features: int, orthogonal: bool):
        super().__init__()
        self.channels_last = shape[-1] < shape[0]
        height, width, channels = shape if self.channels_last else (shape[1], shape[2], shape[0])
        small = min(height, width) < 36
        kernels = [(3, 2), (3, 2), (3, 1)] if small else [(8, 4), (4, 2), (3, 1)]
        example = torch.zeros(1, channels, height, width)
        layers: list[nn.Module] = []
        for (kernel, stride), out in zip(kernels, (32, 64, 64), strict=True):
            conv = nn.Conv2d(channels, out, kernel, stride, padding=1 if small else 0)
            init_layer(conv, gain=2**0.5, orthogonal=orthogonal)
            layers += [conv, nn.ReLU()]
            channels = out
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        with torch.no_grad():
            flat = self.convolutions(example).shape[1]
        self.linear = nn.Linear(flat, features)
        init_layer(self.linear, gain=2**0.5, orthogonal=orthogonal)
        self.out_features = features

    def forward(self, image: Tensor) -> Tensor:
        """`[B, *shape]` uint8 to `[B, features]`."""
        pixels = image.float() * (1.0 / 255.0) if image.dtype == torch.uint8 else image
        if self.channels_last:
            pixels = pixels.movedim(-1, -3)
        # In this memory format the backward pass of the convolutions takes a third less time.
        return torch.relu(self.linear(self.convolutions(pixels.contiguous(memory_format=torch.channels_last))))


def is_image(shape: tuple[int, ...]) -> bool:
    """Three axes, two of them at least 8 pixels long."""
    return len(shape) == 3 and sorted(shape)[1] >= 8
