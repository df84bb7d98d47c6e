"""Any `gymnasium.vector.VectorEnv` as a vector env of ours: NumPy or torch on any device, every autoreset mode.

Our contract is same-step autoreset. SAME_STEP is that already, DISABLED is by a reset of the ended envs. In NEXT_STEP
mode the step after an end resets the env and ignores its action: it is returned as `Step.skipped`, and nothing is
learned from it. Gymnasium's own `SyncVectorEnv` and `AsyncVectorEnv` can reset some of their envs in that mode too,
so they skip nothing.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from torch import Tensor

from proxima.envs.action_hold import Hold, Holder
from proxima.envs.checks import check_seed
from proxima.envs.contract import Episodes, Obs, Step, VecEnv
from proxima.envs.gymnasium.spaces import ONE_HOT, ActionLayout, Leaf, ObservationLayout, episode_names, step_seconds
from proxima.envs.gymnasium.step_values import reported_number
from proxima.envs.gymnasium.vector_masks import VectorMasks
from proxima.errors import EnvFailure, UsageError, one_line


class GymnasiumVectorEnv(VecEnv):
    """A user's vector env. It is reset once in the constructor, to see what kind of arrays it returns.

    Args:
        env: The vector env.
        name: What messages call it.
        leave_out: Observation keys to leave out where a policy cannot take their space.
        log_info: Keys of the `info` whose numbers `take_info` averages: one per env, or one for all.
        device: "cpu" to have the tensors of a GPU on the CPU; None is the env's own device.
        closes: Whether `close` closes the env; False for an object that belongs to the user.
    """

    def __init__(
        self,
        env: VectorEnv,
        *,
        name: str,
        leave_out: Collection[str] = (),
        log_info: Collection[str] = (),
        device: str | None = None,
        closes: bool = True,
    ) -> None:
        self._env, self._name, self._closes = env, name, closes
        self.num_envs = env.num_envs
        self.holder = Holder(self.num_envs)
        mode = _autoreset_mode(env, name)
        seen, info = env.reset()
        self._masks = VectorMasks(env, name, info)
        self._layout = ObservationLayout(self._masks.space, leave_out)
        self._action = ActionLayout(env.single_action_space)
        self.observation_space, self.action_space = self._layout.space, env.single_action_space
        self.left_out = self._layout.left_out
        self.step_seconds = step_seconds(env)
        self.log_info, self.episode_info = tuple(log_info), episode_names(env, log_info)
        self._resets = mode is AutoresetMode.DISABLED or type(env) in (SyncVectorEnv, AsyncVectorEnv)
        self._resets &= mode is not AutoresetMode.SAME_STEP
        self.skips = mode is AutoresetMode.NEXT_STEP and not self._resets
        first = _part(self._masks.add(seen, info), self._layout.leaves[0])
        self._takes_tensors = isinstance(first, Tensor)
        self._own_device = first.device if isinstance(first, Tensor) else torch.device("cpu")
        self.device = self._own_device if device is None else torch.device(device)
        self._started = False
        self._info_sum = torch.zeros(2, len(self.log_info), dtype=torch.float64, device=self.device)
        """Sums of the numbers of `log_info`, and how many they are."""
        self._return: Tensor
        self._length: Tensor
        self._ended: Tensor
        self._forget()

    @property
    def time_limit(self) -> int | None:
        """Env steps of the longest episode, where the env or its spec says so."""
        limits = [getattr(owner, "max_episode_steps", None) for owner in (self._env.unwrapped, self._env.spec)]
        return next((int(limit) for limit in limits if isinstance(limit, int | np.integer)), None)

    @property
    def hold(self) -> Hold:
        """Always one env step: single envs of a vector env cannot wait for the others."""
        return self.holder.hold

    @hold.setter
    def hold(self, hold: Hold) -> None:
        if hold.holds:
            raise UsageError(
                f"actions cannot be held in {self._name}: a Gymnasium vector env steps all its envs together. Leave "
                "out action_hold_seconds, or hold actions inside the env."
            )
        self.holder.hold = hold

    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env."""
        check_seed(seed)
        self._forget()
        self._started = True
        return self._read(self._masks.add(*self._env.reset(seed=seed)))

    def step(self, action: Tensor) -> Step:
        """Apply one action per env; see `VecEnv.step` for its shape."""
        if not self._started:
            raise UsageError("call reset before the first step")
        seen, reward, terminated, truncated, info = self._env.step(self._to_env(action))
        reward, terminated, truncated = self._row(reward).double(), self._row(terminated), self._row(truncated)
        terminated, truncated, skipped, after_end = terminated.bool(), truncated.bool(), None, self._ended
        if self.skips and (self.device.type != "cpu" or bool(after_end.any())):
            skipped = after_end
            reward = reward.masked_fill(skipped, 0.0)
            terminated, truncated = terminated & ~skipped, truncated & ~skipped
        self._return = self._return.masked_fill(after_end, 0.0) + reward
        self._length = self._length.masked_fill(after_end, 0) + (1 if skipped is None else (~skipped).long())
        self._ended = ended = terminated | truncated
        obs = self._read(self._with_masks(seen, info, terminated, ended))
        # On a GPU this test would synchronise; an env that must be reset needs its result.
        final_obs, last = None, info
        if (self.device.type != "cpu" and not self._resets) or bool(ended.any()):
            final_obs, obs, last = self._end(obs, ended, truncated & ~terminated, info)
        success = self._reported(last, "is_success" if "is_success" in last else "success")
        reported = {name: self._reported(last, name) for name in self.episode_info}
        for column, name in enumerate(self.log_info):
            numbers = self._reported(info, name)
            if last is not info:
                numbers = torch.where(ended, self._reported(last, name), numbers)
            self._sum_info(column, numbers if skipped is None else numbers.masked_fill(skipped, torch.nan))
        episodes = Episodes(self._return, self._length, success, reported)
        return Step(obs, reward, terminated, truncated, final_obs, episodes, skipped=skipped)

    def _with_masks(self, seen: Any, info: Mapping[str, Any], terminated: Tensor, ended: Tensor) -> Any:
        if not self.skips and not self._resets:  # these are the observations after the end of an episode
            return self._masks.add(seen, info)
        # A skipped row chooses an action that is ignored; nothing is wrong if the mask of its final observation is 0.
        return self._masks.add(seen, info, needed=~ended, over=ended if self.skips else terminated)

    def _sum_info(self, column: int, numbers: Tensor) -> None:
        known = numbers.isfinite()
        self._info_sum[0, column] += numbers.masked_fill(~known, 0.0).sum()
        self._info_sum[1, column] += known.sum()

    def take_info(self) -> dict[str, float]:
        """Means over the env steps since the last call."""
        means = self._info_sum[0] / self._info_sum[1]
        self._info_sum.zero_()
        return dict(zip(self.log_info, means.tolist(), strict=True))

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the vector env, or of each env in Gymnasium's `SyncVectorEnv` and `AsyncVectorEnv`."""
        inner = self._env
        while not callable(found := getattr(inner, method, None)) and isinstance(inner, VectorWrapper):
            inner = inner.env
        try:
            if callable(found):
                return found(*args, **kwargs)
            if callable(each := getattr(inner, "call", None)):
                return list(each(method, *args, **kwargs))
        except Exception as error:  # of the user's code
            raise UsageError(f"{method} of env {self._name!r}: {one_line(error)}.") from error
        raise UsageError(f"env {self._name!r} has no method {method!r} to call.")

    def _end(self, obs: Obs, ended: Tensor, cut: Tensor, info: Mapping[str, Any]) -> tuple[Obs, Obs, Mapping[str, Any]]:
        """The final observations, those to act on next, and the info of the ended episodes."""
        if self.skips:
            return obs, obs, info
        if self._resets:
            final = {key: x.clone() for key, x in obs.items()}
            mask = ended.to(self._own_device) if self._takes_tensors else ended.numpy()
            first = self._read(self._masks.add(*self._env.reset(options={"reset_mask": mask}), needed=ended))
            return final, {key: torch.where(_like(ended, x), first[key], x) for key, x in final.items()}, info
        found = info.get("final_obs", info.get("final_observation"))
        if found is None and bool(cut.any()):
            raise EnvFailure(
                f"{self._name} truncated an episode without its last observation, whose value is needed: an env with "
                "autoreset mode SAME_STEP must return it as info['final_obs']."
            )
        last = info.get("final_info")
        last = last if isinstance(last, Mapping) else info
        if found is None:
            return obs, obs, last
        return self._read_final(self._masks.add_final(found, {} if last is info else last)), obs, last

    # Conversion ------------------------------------------------------------------------------------------------------

    def _read(self, seen: Any) -> Obs:
        """A batch of observations as tensors, without a copy where they are tensors or arrays already."""
        return {leaf.key: self._tensor(leaf, _part(seen, leaf)) for leaf in self._layout.leaves}

    def _tensor(self, leaf: Leaf, value: Any) -> Tensor:
        x = self._row(value)
        if isinstance(leaf.space, ONE_HOT):
            return _one_hot(leaf.space, x)
        if tuple(x.shape) != (self.num_envs, *leaf.space.shape):
            raise EnvFailure(
                f"{self._name} returned {leaf.key!r} of shape {tuple(x.shape)}, but its space says "
                f"{(self.num_envs, *leaf.space.shape)}."
            )
        return x.view(self.num_envs, *leaf.box.shape)

    def _read_final(self, found: Any) -> Obs:
        """Final observations: a batch like all others, or an array of single ones and None, as Gymnasium has it."""
        if not isinstance(found, np.ndarray) or found.dtype != object:
            return self._read(found)
        arrays = [np.zeros((self.num_envs, *leaf.box.shape), leaf.box.dtype) for leaf in self._layout.leaves]
        for row, one in enumerate(found):
            if one is not None:
                self._layout.write(one, arrays, row)
        return {leaf.key: self._row(x) for leaf, x in zip(self._layout.leaves, arrays, strict=True)}

    def _row(self, value: Any) -> Tensor:
        """One tensor of the env's device, with an entry per env."""
        if not isinstance(value, Tensor):
            array = np.asarray(value)
            value = torch.from_numpy(array if array.flags.writeable else array.copy())
        return value.detach().to(self.device)

    def _to_env(self, action: Tensor) -> Any:
        """Actions as the env's batched space has them, in tensors if it returns tensors."""
        layout, shape = self._action, (self.num_envs, *self._action.shape)
        if not self._takes_tensors:
            array = np.empty(shape, layout.dtype)  # a new one, because an env may keep it
            layout.write(action.detach().cpu().numpy(), array)
            return array
        action = action.detach().to(self._own_device).view(shape)
        if isinstance(layout.space, spaces.Box):
            action = action.round() if layout.dtype.kind in "iu" else action
        elif np.any(layout.start):
            action = action + torch.as_tensor(layout.start, device=self._own_device)
        return action.to(_torch_dtype(layout.dtype)) if layout.dtype.kind in "iuf" else action

    def _reported(self, info: Mapping[str, Any], name: str) -> Tensor:
        """`[N]` float64: numbers of the info, one per env or one for all; NaN where there is none."""
        value = info.get(name)
        if isinstance(value, np.ndarray) and value.dtype == object:
            value = np.array([reported_number(one) for one in np.ravel(value)])
        if not isinstance(value, np.ndarray | Tensor):
            return torch.full_like(self._return, reported_number(value))
        if value.shape not in ((), (1,), (self.num_envs,), (self.num_envs, 1)):
            return torch.full_like(self._return, torch.nan)
        known = info.get(f"_{name}")
        numbers = self._row(value).double().flatten().expand(self.num_envs)
        return numbers if known is None else numbers.masked_fill(~self._row(known).bool(), torch.nan)

    def _forget(self) -> None:
        self._return = torch.zeros(self.num_envs, dtype=torch.float64, device=self.device)
        self._length = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._ended = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)

    def why_inexact(self) -> str:
        """The interface of Gymnasium has no state."""
        return "the state of a Gymnasium vector env cannot be saved"

    def close(self) -> None:
        """Close the env, unless it belongs to the user. Calling it twice is harmless."""
        if self._closes:
            self._closes = False
            self._env.close()


def _autoreset_mode(env: VectorEnv, name: str) -> AutoresetMode:
    try:
        return AutoresetMode(env.metadata["autoreset_mode"])
    except (KeyError, ValueError):
        found = env.metadata.get("autoreset_mode")
        raise UsageError(
            f"{name} has the autoreset mode {found!r}: set metadata['autoreset_mode'] of the vector env to "
            "AutoresetMode.SAME_STEP, NEXT_STEP or DISABLED, whichever it implements"
        ) from None


def _part(seen: Any, leaf: Leaf) -> Any:
    for part in leaf.path:
        seen = seen[part]
    return seen


def _like(mask: Tensor, x: Tensor) -> Tensor:
    """A mask `[N]` that is broadcast over the other axes of `x`."""
    return mask.view(-1, *[1] * (x.ndim - 1))


def _one_hot(space: spaces.Space, x: Tensor) -> Tensor:
    """Discrete numbers `[N]` or `[N, ...]` as `spaces.flatten` encodes them, `[N, K]`."""
    if isinstance(space, spaces.MultiBinary):
        return x.flatten(1).float()
    sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    columns = x.long().reshape(len(x), -1) - torch.as_tensor(np.ravel(space.start), device=x.device)
    encoded = [torch.nn.functional.one_hot(c, int(n)) for c, n in zip(columns.unbind(1), sizes, strict=True)]
    return torch.cat(encoded, 1).float()


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
