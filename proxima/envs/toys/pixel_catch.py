"""A toy game with the same observations as Mario and Atari, without an emulator; it can be learnt in minutes."""

from typing import Any

import numpy as np
from gymnasium import spaces

from proxima.envs.games.pixels import PixelEnv
from proxima.envs.gymnasium.plain import Plain
from proxima.errors import UsageError

_SIZE = 84
_BALL, _PADDLE, _THICKNESS = 6, 16, 4
_FALL, _MAX_DRIFT, _PADDLE_STEP = 6, 6, 5  # pixels per frame
_BALL_GREY, _PADDLE_GREY = 255, 160


class PixelCatch(PixelEnv):
    """Balls fall, drift and bounce off the walls; the paddle (left, stay, right) gets 1 per catch, -1 per miss.

    A ball may drift faster than the paddle moves, so a policy must infer its velocity, which takes two images.

    Args:
        drops: Balls per episode.
        frame_skip: Frames per step; 1 here by default.
        **pixels: Other options of `PixelEnv`.
    """

    frames_per_second = 15.0
    episode_info = ("caught",)

    def __init__(self, *, drops: int = 5, frame_skip: int = 1, **pixels: Any) -> None:
        super().__init__(frame_skip=frame_skip, **pixels)
        if drops < 1:
            raise UsageError(f"drops is {drops}; it must be at least 1")
        self.drops = drops
        self.action_space = spaces.Discrete(3)
        self._x = self._y = self._drift = self._paddle = self._done = self._caught = 0

    def _start(self, fresh: bool) -> bool:
        self._paddle = (_SIZE - _PADDLE) // 2
        self._done = self._caught = 0
        self._drop()
        return True

    def _drop(self) -> None:
        self._y = 0
        self._x = int(self.np_random.integers(0, _SIZE - _BALL + 1))
        self._drift = int(self.np_random.integers(-_MAX_DRIFT, _MAX_DRIFT + 1))

    def _advance(self, action: int) -> tuple[float, bool]:
        self._paddle = min(max(self._paddle + _PADDLE_STEP * (action - 1), 0), _SIZE - _PADDLE)
        self._y += _FALL
        self._x += self._drift
        wall = min(max(self._x, 0), _SIZE - _BALL)
        if wall != self._x:
            self._x, self._drift = 2 * wall - self._x, -self._drift
        if self._y < _SIZE - _THICKNESS - _BALL:
            return 0.0, False
        caught = -_BALL < self._x - self._paddle < _PADDLE
        self._caught += caught
        self._done += 1
        over = self._done == self.drops
        if not over:
            self._drop()
        return 1.0 if caught else -1.0, over

    def _draw(self) -> np.ndarray:
        image = np.zeros((_SIZE, _SIZE), np.uint8)
        image[self._y : self._y + _BALL, self._x : self._x + _BALL] = _BALL_GREY
        image[-_THICKNESS:, self._paddle : self._paddle + _PADDLE] = _PADDLE_GREY
        return image

    def _look(self) -> np.ndarray:
        return self._draw() if self.grayscale else self._screen()

    def _screen(self) -> np.ndarray:
        return np.repeat(self._draw()[..., None], 3, axis=-1)

    def _info(self) -> dict[str, Any]:
        return {"caught": self._caught, "is_success": self._caught == self.drops}

    def _get_game(self) -> Plain:
        return [self._x, self._y, self._drift, self._paddle, self._done, self._caught]

    def _set_game(self, state: Plain) -> None:
        self._x, self._y, self._drift, self._paddle, self._done, self._caught = state
