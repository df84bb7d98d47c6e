"""One quadruped as a Gymnasium env, with pictures."""

from typing import Any

from proxima.envs.locomotion.env import Quadruped
from proxima.envs.rendered import RenderedEnv


class QuadrupedEnv(RenderedEnv):
    """The same trajectories as `Quadruped` with one env.

    Args:
        render_mode: rgb_array or None.
        width: Of a picture, in pixels.
        height: Of a picture, in pixels.
        **settings: As for `Quadruped`.
    """

    def __init__(self, *, render_mode: str | None = None, width: int = 640, height: int = 480, **settings: Any) -> None:
        super().__init__(Quadruped(num_envs=1, **settings), render_mode=render_mode, width=width, height=height)
