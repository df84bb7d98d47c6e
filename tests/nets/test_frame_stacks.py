"""A stack of colour frames [F, H, W, C] is an image with F * C channels."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from proxima import train
from proxima.evaluation.episodes import evaluate
from proxima.nets.encoders import CNN, image_axes, is_image, nature_layers


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((4, 84, 96, 3), (12, 84, 96)),
        ((4, 3, 84, 96), (12, 84, 96)),
        ((2, 16, 16, 1), (2, 16, 16)),
        ((84, 96, 3), (3, 84, 96)),
    ],
)
def test_frames_are_channels(shape: tuple[int, ...], axes: tuple[int, int, int]) -> None:
    assert is_image(shape)
    assert image_axes(shape) == axes


@pytest.mark.parametrize("shape", [(4, 7, 7, 3), (16, 16, 16, 1), (16, 16, 16, 16), (4, 84, 84, 8)])
def test_other_shapes_of_four_axes_are_no_images(shape: tuple[int, ...]) -> None:
    assert not is_image(shape)


@pytest.mark.parametrize("channels_last", [True, False])
def test_a_stack_is_encoded_as_its_frames_side_by_side(channels_last: bool) -> None:
    torch.manual_seed(0)
    frames = torch.randint(0, 256, (5, 2, 3, 20, 24), dtype=torch.uint8)  # [B, F, C, H, W]
    stack = frames.movedim(2, -1) if channels_last else frames
    shape = tuple(stack.shape[1:])
    stacked, plain = (CNN(x, nature_layers(x), features=8, orthogonal=False) for x in (shape, (6, 20, 24)))
    plain.load_state_dict(stacked.state_dict())
    assert torch.equal(stacked(stack), plain(frames.flatten(1, 2)))


class Video(gym.Env):
    """Pictures in colour."""

    observation_space = spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.observation_space.sample(), 1.0, self.time == 6, False, {}


@pytest.mark.slow
def test_a_stack_of_frames_is_trained_and_evaluated() -> None:
    options: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "total_timesteps": 32, "minibatch_size": 16}
    stack = (gym.wrappers.FrameStackObservation, {"stack_size": 4})
    done = train(env=Video, wrappers=[stack], cnn_features=8, update_epochs=1, quiet=True, tensorboard=False, **options)
    assert done.policy.spec.obs["obs"].shape == (4, 16, 16, 3)
    assert done.policy.image_keys == {"obs"}
    assert evaluate(done.run_dir, episodes=2).lengths.mean == 6
