"""Encoders of images: the default is the CNN of Mnih et al., options change it, and what does not fit is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from proxima.config import load_config
from proxima.errors import UsageError
from proxima.nets.actor_critic import ActorCritic
from proxima.nets.encoders import init_layer
from proxima.nets.spec import ActionSpec, ObsSpec, Spec

DEPTH = {"depth": ObsSpec((1, 58, 87), "float32"), "state": ObsSpec((4,), "float32")}
PARKOUR = {"kernels": [5, 3], "strides": [1, 1], "channels": [32, 64], "pool": 2, "features": 128, "widths": [32]}


def policy(obs: dict[str, ObsSpec], encoders: dict[str, Any], **options: Any) -> ActorCritic:
    config = load_config(None, {"encoders": encoders, "hidden_sizes": [8], "rnn_size": 6, **options})
    torch.manual_seed(0)
    return ActorCritic(Spec(obs, ActionSpec("box", (2,), (-1.0,) * 2, (1.0,) * 2)), config.policy, config.normalize)


def encoder(shape: tuple[int, ...], dtype: str = "uint8", options: dict[str, Any] | None = None) -> nn.Module:
    return policy({"image": ObsSpec(shape, dtype)}, {"image": options} if options else {}).actor_trunk.encoders[0]


def layers(module: nn.Module) -> list[nn.Module]:
    """Those with a meaning of their own, in order."""
    return [m for m in module.modules() if not list(m.children())]


def observe(obs: dict[str, ObsSpec], count: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {key: torch.rand(count, *o.shape, generator=generator) for key, o in obs.items()}


@pytest.mark.parametrize(
    ("shape", "sizes", "padding", "flat"),
    [
        ((4, 84, 84), [(8, 4), (4, 2), (3, 1)], 0, 64 * 7 * 7),
        ((58, 87, 3), [(8, 4), (4, 2), (3, 1)], 0, 64 * 3 * 7),
        ((12, 10, 3), [(3, 2), (3, 2), (3, 1)], 1, 64 * 3 * 3),
    ],
)
def test_the_default_is_the_nature_cnn_to_the_bit(
    shape: tuple[int, ...], sizes: list[tuple[int, int]], padding: int, flat: int
) -> None:
    """Weights that old checkpoints have under the same names, and the same from a seed."""
    module = encoder(shape)
    torch.manual_seed(0)
    channels, convolutions = min(shape[0], shape[2]), []
    for (kernel, stride), out in zip(sizes, (32, 64, 64), strict=True):
        conv = nn.Conv2d(channels, out, kernel, stride, padding=padding)
        init_layer(conv, gain=2**0.5, orthogonal=True)
        convolutions += [conv, nn.ReLU()]
        channels = out
    linear = nn.Linear(flat, 256)
    init_layer(linear, gain=2**0.5, orthogonal=True)
    expected = nn.ModuleDict({"convolutions": nn.Sequential(*convolutions), "linear": linear}).state_dict()
    assert list(expected) == list(module.state_dict())
    assert all(torch.equal(x, expected[name]) for name, x in module.state_dict().items())
    image = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    pixels = image / 255.0 if shape[0] == 4 else image.movedim(-1, 1) / 255.0
    features = linear(nn.Sequential(*convolutions)(pixels).flatten(1)).relu()
    torch.testing.assert_close(module(image), features)


def test_options_are_the_layers_in_their_order() -> None:
    module = encoder((1, 58, 87), "float32", PARKOUR | {"activation": "elu"})
    found = layers(module)
    kinds = [nn.Conv2d, nn.MaxPool2d, nn.ELU, nn.Conv2d, nn.ELU, nn.Flatten, nn.Linear, nn.ELU, nn.Linear]
    assert [type(layer) for layer in found[:9]] == kinds
    first, second = found[0], found[3]
    assert isinstance(first, nn.Conv2d) and isinstance(second, nn.Conv2d)
    assert (first.out_channels, first.kernel_size, first.padding) == (32, (5, 5), (0, 0))
    assert (second.out_channels, second.kernel_size, second.stride) == (64, (3, 3), (1, 1))
    assert [(m.in_features, m.out_features) for m in found if isinstance(m, nn.Linear)] == [
        (64 * 25 * 39, 128),
        (128, 32),
    ]
    image = torch.rand(2, 1, 58, 87)
    pooled = nn.functional.elu(nn.functional.max_pool2d(first(image), 2))
    by_hand = nn.functional.elu(found[6](nn.functional.elu(second(pooled)).flatten(1)))
    torch.testing.assert_close(module(image), found[9](found[8](by_hand)))


@pytest.mark.parametrize(
    ("options", "flat"),
    [
        ({"pool": 2, "strides": [2, 2, 1]}, 64 * 3 * 7),  # 58 x 87 -> 26 x 40 -> 13 x 20 -> 5 x 9 -> 3 x 7
        ({"channels": [8, 8, 16]}, 16 * 3 * 7),
        ({"strides": [2, 2, 2]}, 64 * 5 * 9),
        ({"kernels": [9, 5, 3], "pool": [2, 2, 2]}, 64 * 4 * 7),  # -> 25 x 39 -> 10 x 17 -> 4 x 7
        ({"kernels": [3], "strides": [3], "channels": [4], "pool": [3]}, 4 * 6 * 9),
    ],
)
def test_what_is_left_out_is_the_default(options: dict[str, Any], flat: int) -> None:
    module = encoder((1, 58, 87), "float32", options)
    linear = next(m for m in layers(module) if isinstance(m, nn.Linear))
    assert linear.in_features == flat and module(torch.rand(2, 1, 58, 87)).shape == (2, 256)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("shape", [(3, 20, 24), (20, 24, 3)])
def test_floats_bytes_and_both_orders_of_axes(shape: tuple[int, ...], dtype: str) -> None:
    module = encoder(shape, dtype, {"kernels": [4, 3], "strides": [2, 1], "channels": [4, 8], "features": 16})
    image = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
    seen = image if dtype == "uint8" else image / 255.0
    features = module(seen)
    assert features.shape == (5, 16)
    torch.testing.assert_close(features, module(image))


@pytest.mark.parametrize("rnn", ["gru", "lstm"])
def test_sequences_of_depth_images_are_what_was_acted_on(rnn: str) -> None:
    agent = policy(DEPTH, {"depth": PARKOUR}, rnn=rnn)
    steps, envs = 4, 2
    obs, state = observe(DEPTH, steps * envs), agent.first_state(envs)
    assert state is not None
    start = torch.zeros(steps, envs, dtype=torch.bool)
    start[2, 1] = True
    distribution, value = agent(obs, state, start.flatten())
    for t in range(steps):
        now = {key: x.unflatten(0, (steps, envs))[t] for key, x in obs.items()}
        state = state.masked_fill(start[t][:, None], 0.0)
        torch.testing.assert_close(agent.value(now, state), value.view(steps, envs)[t], rtol=1e-4, atol=1e-5)
        action, _, state, *_ = agent.act(now, None, state)
        torch.testing.assert_close(action, distribution.mean.view(steps, envs, 2)[t], rtol=1e-4, atol=1e-5)
        assert state is not None


@pytest.mark.parametrize(
    ("key", "options", "message"),
    [
        (
            "depth",
            {"kernels": [5, 3]},
            r"depth: kernels \[5, 3\], strides \[1, 1\] and channels \[32, 64, 64\] differ in length",
        ),
        ("depth", PARKOUR | {"strides": [1]}, r"strides \[1\] and channels \[32, 64\] differ in length"),
        ("depth", PARKOUR | {"pool": [2, 2, 2]}, "pool has 3 numbers, but there are 2 convolutions"),
        ("depth", PARKOUR | {"kernels": [5, 60]}, r"convolution 2 \(kernel 60, .*\) gets 27 x 41 pixels.*too small"),
        ("depth", PARKOUR | {"pool": [1, 60]}, r"convolution 2 .*pool 60\) gets 54 x 83 pixels.*too small"),
        ("depth", PARKOUR | {"kernels": [0, 3]}, "encoders: depth: kernels is 0, but it must be >= 1"),
        ("depth", {"activation": "softplus"}, "activation is 'softplus', but it must be one of tanh, relu"),
        ("depth", {"features": 0}, "features is 0, but it must be >= 1"),
        ("depth", {"kernel": [3]}, "there is no option 'kernel'. Did you mean kernels"),
        ("state", {"kernels": [5, 3]}, r"state: kernels is for images, but state has shape \(4,\): leave it out"),
        ("state", {"features": 8}, "features is for images"),
    ],
)
def test_what_does_not_fit_is_refused(key: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        policy(DEPTH, {key: options})
    assert "\n" not in str(error.value)
