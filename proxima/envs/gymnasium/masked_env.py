"""Invalid-action masks of Gymnasium envs: where an env has its mask, and a wrapper that makes it an observation key.

No torch here: worker processes import this file.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proxima.envs.gymnasium.env_errors import asks_to_stop, close_env
from proxima.errors import UsageError
from proxima.masks import ACTION_MASK

Source = Literal["", "observation", "method", "info"]
"""Where an env has its mask: the observation key, the method `action_masks()`, `info`; "" if it has none."""


def mask_source(env: gym.Env, build: Callable[[], gym.Env] | None) -> Source:
    """Where `env` has its mask; the first of observation, method and info.

    To see an info takes a reset, which is done on another env that `build` makes, so that `env` is not disturbed. With
    None, info is left out.
    """
    if not isinstance(env.action_space, (spaces.Discrete, spaces.MultiDiscrete)):
        return ""
    if isinstance(env.observation_space, spaces.Dict) and ACTION_MASK in env.observation_space.spaces:
        return "observation"
    if env.has_wrapper_attr("action_masks") and callable(env.get_wrapper_attr("action_masks")):
        return "method"
    return "info" if build is not None and _is_in_info(build) else ""


def _is_in_info(build: Callable[[], gym.Env]) -> bool:
    """Whether a reset reports a mask; an env that fails here will fail again, and be reported, when it is used."""
    env = None
    try:
        env = build()
        _, info = env.reset(seed=0)
        return ACTION_MASK in info
    except BaseException as error:
        if asks_to_stop(error):
            raise
        return False
    finally:
        if env is not None:
            close_env(env)


class MaskedEnv(gym.Wrapper):
    """Adds the mask to the observation, as the key `action_mask`: uint8 `[sum(sizes)]`, 0 for invalid choices.

    Where an episode terminates, nothing is chosen any more: every choice counts as valid there, and the env is not
    asked. Any other mask must allow a choice in every column, except where the episode is truncated.
    """

    def __init__(self, env: gym.Env, source: Source) -> None:
        super().__init__(env)
        self._source = source
        self._sizes, self._start = choices(env.action_space)
        self._first = np.cumsum([0, *self._sizes[:-1]])  # the first number of each column
        self._now = self._everything()
        self._method = env.get_wrapper_attr("action_masks") if source == "method" else None
        self._is_dict = isinstance(env.observation_space, spaces.Dict)
        if source == "observation":
            check_mask_space(env.observation_space[ACTION_MASK], env.action_space)
        self.observation_space = space_with_mask(env.observation_space, sum(self._sizes))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation, with its mask."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._now = self._mask(obs, info)
        return self._with_mask(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The next observation, with its mask."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._now = self._everything() if terminated else self._mask(obs, info, is_last=bool(truncated))
        return self._with_mask(obs), reward, terminated, truncated, info

    def allows(self, obs: Any, action: Any) -> bool:
        """Whether the mask in an observation of this wrapper allows an action of the env."""
        return bool(obs[ACTION_MASK][self._first + np.ravel(action) - self._start].all())

    def sample(self) -> Any:
        """A random valid action, drawn with the generator of the action space."""
        columns = np.split(self._now, self._first[1:])
        chosen = [self.action_space.np_random.choice(np.flatnonzero(column)) for column in columns]
        return (chosen + self._start).astype(self.action_space.dtype).reshape(self.action_space.shape)[()]

    def _everything(self) -> NDArray[np.uint8]:
        return np.ones(sum(self._sizes), np.uint8)

    def _with_mask(self, obs: Any) -> dict[str, Any]:
        return {**(obs if self._is_dict else {"obs": obs}), ACTION_MASK: self._now}

    def _mask(self, obs: Any, info: Any, *, is_last: bool = False) -> NDArray[np.uint8]:
        if self._source == "observation":
            given = obs[ACTION_MASK]
        elif self._method is not None:
            given = self._method()
        elif is_last and ACTION_MASK not in info:
            return self._everything()
        elif ACTION_MASK in info:
            given = info[ACTION_MASK]
        else:
            raise ValueError(f"info has no {ACTION_MASK!r}, but that of the first reset had: give one in every step")
        # A mask of MultiDiscrete may be one array per column.
        flat = np.concatenate([np.ravel(part) for part in given]) if isinstance(given, (tuple, list)) else given
        mask: NDArray[np.uint8] = (np.ravel(flat) != 0).astype(np.uint8)
        if len(mask) != sum(self._sizes):
            raise ValueError(
                f"{ACTION_MASK} has {len(mask)} numbers, but {self.env.action_space} has {sum(self._sizes)} choices"
            )
        if not is_last and not np.maximum.reduceat(mask, self._first).all():
            column = "" if len(self._sizes) == 1 else f" in column {np.maximum.reduceat(mask, self._first).argmin()}"
            raise ValueError(
                f"{ACTION_MASK} allows no action{column}: at least one must be valid until the episode ends"
            )
        return mask


def choices(space: spaces.Space) -> tuple[tuple[int, ...], NDArray[np.int64]]:
    """The number of choices of each column, and the first of them."""
    assert isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))
    sizes = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return tuple(int(n) for n in np.ravel(sizes)), np.ravel(space.start).astype(np.int64)


def check_mask_space(space: spaces.Space, action_space: spaces.Space) -> None:
    """Raise a UsageError if the space of the observation key `action_mask` has another size than a mask."""
    size = spaces.flatdim(space) if space.shape is None else int(np.prod(space.shape))
    count = sum(choices(action_space)[0])
    if size != count:
        raise UsageError(
            f"observation {ACTION_MASK!r} has {size} numbers, but the action space {action_space} has {count} choices: "
            "this key is reserved for their mask, rename it if it is something else"
        )


def space_with_mask(space: spaces.Space, size: int) -> spaces.Dict:
    """An observation space with the key `action_mask`, which replaces one that it may have."""
    keys = OrderedDict(space.spaces if isinstance(space, spaces.Dict) else {"obs": space})
    keys[ACTION_MASK] = spaces.Box(0, 1, (size,), np.uint8)
    return spaces.Dict(keys)
