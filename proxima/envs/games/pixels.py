"""Base class of video games with pixel observations: frame skip, grayscale, resizing, frame stack, exact state.

Mario, Atari and our own toy game are subclasses. No torch here: worker processes import this file.
"""

import math
import zlib
from abc import abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from proxima.envs.gymnasium.plain import Plain
from proxima.envs.gymnasium.spaces import StackedBox
from proxima.errors import UsageError

GREY = (77, 150, 29)
"""Weights of red, green and blue, divided by 256: ITU-R 601 in integers, so that pixels are the same everywhere."""


class AreaResize:
    """Mean over the area that each new pixel covers, in integers: exact, and the same on every machine."""

    def __init__(self, shape: tuple[int, int], size: int) -> None:
        self._size = size
        self._rows, row_weights, row_total = _coverage(shape[0], size)
        self._columns, column_weights, column_total = _coverage(shape[1], size)
        self._total = row_total * column_total
        # 255 times the sum of weights, plus half of it for rounding, must fit.
        self._kind = np.uint16 if self._total * 256 < 2**16 else np.uint32
        self._row_weights = row_weights.astype(self._kind)[..., None]
        self._column_weights = column_weights.astype(self._kind)[..., None]

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """`[H, W]` of integers up to 255 to `[size, size]` uint8."""
        if image.shape == (self._size, self._size):
            return image.astype(np.uint8, copy=False)
        image = image.astype(self._kind, copy=False)
        tall = _weighted_rows(image, self._rows, self._row_weights)  # [size, W]
        small = _weighted_rows(np.ascontiguousarray(tall.T), self._columns, self._column_weights)  # [size, size]
        small += self._kind(self._total // 2)
        small //= self._kind(self._total)
        return small.T.astype(np.uint8)


def _weighted_rows(image: np.ndarray, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    total = image.take(rows[0], axis=0)
    total *= weights[0]
    for row, weight in zip(rows[1:], weights[1:], strict=True):
        part = image.take(row, axis=0)
        part *= weight
        total += part
    return total


def _coverage(length: int, size: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Which old pixels each new one covers `[taps, size]`, by how much `[taps, size]`, and the sum of the latter.

    An old pixel is `size` units wide and a new one `length`, so that all borders are at integers.
    """
    unit = math.gcd(length, size)
    old, new = size // unit, length // unit
    covered = []
    for index in range(size):
        start, stop = index * new, (index + 1) * new
        first, last = start // old, (stop - 1) // old
        covered.append(
            [(pixel, min(stop, (pixel + 1) * old) - max(start, pixel * old)) for pixel in range(first, last + 1)]
        )
    taps = max(len(pixels) for pixels in covered)
    table = np.array([[*pixels, *[(0, 0)] * (taps - len(pixels))] for pixels in covered])  # [size, taps, 2]
    return np.ascontiguousarray(table[..., 0].T), np.ascontiguousarray(table[..., 1].T), new


def grey(frame: np.ndarray) -> np.ndarray:
    """Brightness `[H, W]` (uint16, up to 255) of a frame `[H, W, 3]`."""
    red, green, blue = (np.uint16(weight) for weight in GREY)
    total = frame[..., 1] * green
    total += frame[..., 0] * red
    total += frame[..., 2] * blue
    total >>= 8
    return total


class PixelEnv(gym.Env[np.ndarray, Any]):
    """A game whose observation is its last `frame_stack` images, oldest first, `[frame_stack, size, size]` uint8.

    An action is held for `frame_skip` frames, whose rewards are summed. The image is the pixel-wise maximum of the last
    two frames, because old consoles draw some sprites in every other frame only. At the start of an episode the stack
    is filled with its first image.

    Args:
        frame_skip: Frames of the game per step.
        frame_stack: Images per observation.
        image_size: Height and width of an image.
        grayscale: One channel per image; else three (red, green, blue).
        noop_max: An episode starts after 1 to `noop_max` frames without input, drawn at random; 0: none.
        reward_clip: Replace each step's reward by its sign.
        render_mode: "rgb_array": `render()` returns the last frame in the game's own colours and size.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15.0}  # noqa: RUF012 (Gymnasium's way)
    frames_per_second = 60.0
    episode_info: tuple[str, ...] = ()
    """Keys of `info` that are reported as statistics when an episode ends."""

    def __init__(
        self,
        *,
        frame_skip: int = 4,
        frame_stack: int = 4,
        image_size: int = 84,
        grayscale: bool = True,
        noop_max: int = 0,
        reward_clip: bool = False,
        render_mode: str | None = None,
    ) -> None:
        least = {"frame_skip": (frame_skip, 1), "frame_stack": (frame_stack, 1)}
        least |= {"image_size": (image_size, 1), "noop_max": (noop_max, 0)}
        for name, (value, minimum) in least.items():
            if not isinstance(value, int) or value < minimum:
                raise UsageError(f"{name} is {value!r}; it must be a whole number of at least {minimum}")
        if render_mode not in (None, "rgb_array"):
            raise UsageError(f"render_mode is {render_mode!r}; it must be None or 'rgb_array'")
        self.frame_skip, self.grayscale, self.noop_max = frame_skip, grayscale, noop_max
        self.reward_clip, self.render_mode = reward_clip, render_mode
        self.metadata = {**self.metadata, "render_fps": self.frames_per_second / frame_skip}
        self._channels = 1 if grayscale else 3
        image = spaces.Box(0, 255, (self._channels, image_size, image_size), np.uint8)
        self.observation_space = StackedBox(image, frame_stack)
        self._stack = np.zeros(self.observation_space.shape, np.uint8)
        self._begun = False
        self._frame: np.ndarray | None = None  # the last frame in colour, if it has been read
        self._resizers: dict[tuple[int, int], AreaResize] = {}

    @abstractmethod
    def _start(self, fresh: bool) -> bool:
        """Start an episode; returns whether that is a new game, which it must be if `fresh`."""

    @abstractmethod
    def _advance(self, action: int) -> tuple[float, bool]:
        """Play one frame; returns its reward and whether the episode ended."""

    def _serve(self) -> float:
        """Whatever a game needs before the first observation of an episode; returns the reward of its frames."""
        return 0.0

    @abstractmethod
    def _screen(self) -> np.ndarray:
        """A copy of the current frame, `[H, W, 3]` uint8."""

    def _look(self) -> np.ndarray:
        """The frame that the image is made from; `[H, W]` if the game can return grayscale itself."""
        return self._screen()

    @abstractmethod
    def _info(self) -> dict[str, Any]:
        """The `info` of a step."""

    @abstractmethod
    def _get_game(self) -> Plain:
        """The exact state of the game."""

    @abstractmethod
    def _set_game(self, state: Plain) -> None:
        """Restore a state of `_get_game`."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        if self._start(fresh=seed is not None) and self.noop_max:
            for _ in range(int(self.np_random.integers(1, self.noop_max + 1))):
                if self._advance(0)[1]:
                    self._start(fresh=False)
        self._serve()
        image = self._image(self._see())
        self._begun = True
        self._stack.reshape(-1, *image.shape)[:] = image
        return self._stack.copy(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Hold an action for `frame_skip` frames, or until the episode ends."""
        action, total, ended = int(action), 0.0, False
        before: np.ndarray | None = None
        for left in range(self.frame_skip, 0, -1):
            reward, ended = self._advance(action)
            total += reward
            if ended:
                break
            if left == 2:
                before = self._look()
        frame = self._see()
        image = self._image(frame if before is None else np.maximum(before, frame, out=before))
        self._stack[: -self._channels] = self._stack[self._channels :]
        self._stack[-self._channels :] = image
        if self.reward_clip:
            total = float(np.sign(total))
        return self._stack.copy(), total, ended, False, self._info()

    def render(self) -> np.ndarray | None:
        """The last frame in the game's own colours and size."""
        return None if self.render_mode is None else self._last_frame().copy()

    def _last_frame(self) -> np.ndarray:
        if not self._begun:
            raise gym.error.ResetNeeded("call reset() before render()")
        if self._frame is None:
            self._frame = self._screen()
        return self._frame

    def _see(self) -> np.ndarray:
        """Read the current frame, and keep it for `render` if it is in colour."""
        frame = self._look()
        self._frame = frame if frame.ndim == 3 else None
        return frame

    def _image(self, frame: np.ndarray) -> np.ndarray:
        """The image `[C, size, size]` of a frame `[H, W, 3]` or `[H, W]`."""
        height, width = frame.shape[:2]
        resize = self._resizers.get((height, width))
        if resize is None:
            resize = self._resizers[height, width] = AreaResize((height, width), self._stack.shape[-1])
        if self.grayscale:
            return resize(frame if frame.ndim == 2 else grey(frame))[None]
        return np.stack([resize(frame[..., channel]) for channel in range(3)])

    def get_state(self) -> Plain:
        """The complete state, including the generator, as plain data."""
        generator = None if self._np_random is None else self._np_random.bit_generator.state
        frame = None
        if self._begun:
            last = self._last_frame()
            frame = {"shape": list(last.shape), "data": zlib.compress(last.tobytes(), 1)}
        return {"game": self._get_game(), "generator": generator, "stack": self._stack.copy(), "frame": frame}

    def set_state(self, state: Plain) -> None:
        """Restore a state of `get_state`, also from another process."""
        self._set_game(state["game"])
        self._np_random = None
        if state["generator"] is not None:
            self._np_random = np.random.Generator(np.random.PCG64(0))
            self._np_random.bit_generator.state = state["generator"]
        self._stack[:] = state["stack"]
        self._begun, self._frame = state["frame"] is not None, None
        if self._begun:
            data = np.frombuffer(zlib.decompress(state["frame"]["data"]), np.uint8)
            self._frame = data.reshape(state["frame"]["shape"]).copy()
