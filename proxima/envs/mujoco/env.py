"""The vector env that runs Gymnasium's MuJoCo tasks on batched physics, bit-identical to Gymnasium.

Not here: the tasks' arithmetic, the physics, and episodes (`episodes.py`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import registry, spaces
from gymnasium.utils import seeding
from numpy.random import Generator
from torch import Tensor

from proxima.envs.checks import check_count
from proxima.envs.contract import Obs, Step
from proxima.envs.episodes import EpisodicVecEnv
from proxima.envs.mujoco.physics import Array, ContactForcePhysics, Physics
from proxima.envs.mujoco.registry import make_template
from proxima.envs.mujoco.tasks import ALL
from proxima.errors import UsageError
from proxima.machine import available_cores


class MujocoBatchEnv(EpisodicVecEnv):
    """`num_envs` copies of a Gymnasium MuJoCo task, stepped on `num_threads` native threads.

    Args:
        env_id: A registered id of a task in `registry.TASKS`, such as `"HalfCheetah-v5"`.
        env_kwargs: Keyword arguments of the Gymnasium env.
        num_threads: None is every core that this process may use, at most `num_envs`.
        max_episode_steps: Time limit; None is the registered one.
        log_info: Keys of Gymnasium's `info` whose numbers are averaged, of those that the task has here.
        **options: `num_envs` and `spread_episodes` of `EpisodicVecEnv`.
    """

    uses_numpy = True

    def __init__(
        self,
        env_id: str,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        num_threads: int | None = None,
        max_episode_steps: int | None = None,
        log_info: Sequence[str] = (),
        **options: Any,
    ) -> None:
        check_count("num_threads", num_threads)
        template, task = make_template(env_id, env_kwargs)
        limit = registry[env_id].max_episode_steps if max_episode_steps is None else max_episode_steps
        super().__init__(max_episode_steps=limit, **options)
        self.env_id = self.name = env_id
        num_envs = self.num_envs
        self.action_space: spaces.Box = template.action_space
        self.observation_space = spaces.Dict({"obs": template.observation_space})
        self.step_seconds = float(template.dt)

        self.num_threads = min(num_threads or available_cores(), num_envs)
        physics = ContactForcePhysics if task.needs_contact_forces(template) else Physics
        sizes = {"num_envs": num_envs, "num_threads": self.num_threads, "nstep": template.frame_skip}
        self._physics = physics(template.model, **sizes)
        self._task = task(template, self._physics)
        template.close()
        self.log_info = self.episode_info = tuple(log_info)
        self._info_now = np.zeros((len(self.log_info), num_envs))
        """`[K, N]`: numbers of `log_info` in each env's last step."""
        self._info_sum, self._info_count = np.zeros(len(self.log_info)), 0
        self._check_log_info()

        self._rngs: list[Generator] = []
        # Two buffers: if an episode ends, one keeps the final observations and the other has the next ones.
        self._obs, self._spare_obs = (np.zeros((num_envs, *template.observation_space.shape)) for _ in range(2))
        self._obs_tensor, self._spare_tensor = ({"obs": torch.from_numpy(x)} for x in (self._obs, self._spare_obs))
        # With the model file of another body, Gymnasium's observation may not fit its observation space.
        size, shape = sum(part.shape[1] for part in self._task.observation(ALL)), template.observation_space.shape
        if (size,) != shape:
            raise UsageError(f"{env_id} observes {size} numbers of this model, but its space says {shape}")

    def step(self, action: Tensor) -> Step:
        """Apply one float32 action `[N, A]`, for as long as it is held."""
        controls = action.numpy(force=True)
        if controls.shape != self._physics.ctrl.shape:
            raise ValueError(f"an action must have shape {self._physics.ctrl.shape}, not {controls.shape}")
        if controls.dtype != np.float32 or not controls.flags.c_contiguous:
            controls = np.ascontiguousarray(controls, np.float32)
        self._controls = self._physics.ctrl[:] = controls
        with np.errstate(over="ignore", invalid="ignore"):  # an unstable simulation returns them
            return super().step(action)

    def _seed(self, seed: int | None) -> None:
        """One generator per env, as Gymnasium's `reset(seed=seed + i)` would make it."""
        self._rngs = [seeding.np_random(None if seed is None else seed + i)[0] for i in range(self.num_envs)]

    def _start(self, started: Array) -> None:
        ids = _ids(started)
        starts = [self._task.start(self._rngs[i]) for i in ids]
        qpos, qvel = (np.array(part) for part in zip(*starts, strict=True))
        self._physics.reset(ids, qpos, qvel)
        self._task.last[ids] = self._task.measure(ids)

    def _advance(self, action: Tensor, moving: Array | None) -> tuple[Array, Array | None]:
        """The task is evaluated for all envs; the measurement of one that did not move is unchanged."""
        self._physics.step(None if moving is None else _ids(moving))
        if not self.log_info:
            return self._task.evaluate(self._controls)
        before = self._task.last.copy()
        result = self._task.evaluate(self._controls)
        moved = ~self._never.numpy() if moving is None else moving
        found = self._task.info(self._controls, before)
        self._info_now = np.where(moved, [found[name] for name in self.log_info], self._info_now)
        self._info_sum += self._info_now @ moved
        self._info_count += int(moved.sum())
        return result

    def _observe(self, started: Array | None = None) -> Obs:
        if started is None:
            np.concatenate(self._task.observation(ALL), axis=1, out=self._obs)
            return self._obs_tensor
        self._obs, self._spare_obs = self._spare_obs, self._obs
        self._obs_tensor, self._spare_tensor = self._spare_tensor, self._obs_tensor
        ids = _ids(started)
        self._obs[:] = self._spare_obs
        self._obs[ids] = np.concatenate(self._task.observation(ids), axis=1)
        return self._obs_tensor

    def _check_log_info(self) -> None:
        known = self._task.info(self._physics.ctrl, self._task.last) if self.log_info else {}
        for name in self.log_info:
            if name not in known:
                raise UsageError(
                    f"log_info is {name}, but in batch mode {self.env_id} has {', '.join(known) or 'no info'}: use "
                    "vec_env_mode sync or async for everything in the env's info."
                )

    def _info(self) -> dict[str, Tensor]:
        return dict(zip(self.log_info, torch.from_numpy(self._info_now), strict=True))

    def take_info(self) -> dict[str, float]:
        """Means over the env steps since the last call."""
        total, count = self._info_sum, self._info_count
        self._info_sum, self._info_count = np.zeros_like(total), 0
        return dict(zip(self.log_info, (total / count if count else total + np.nan).tolist(), strict=True))

    def step_physics(self) -> None:
        """Only the physics of a step, for benchmarks; the envs cannot be used afterwards."""
        self._physics.step()

    def _get_world(self) -> dict[str, Any]:
        return {
            "physics": torch.from_numpy(self._physics.get_state()),
            "last": torch.from_numpy(self._task.last.copy()),
            "obs": torch.from_numpy(self._obs.copy()),
            # As text, because the generators' integers have 128 bits.
            "rngs": [json.dumps(rng.bit_generator.state) for rng in self._rngs],
        }

    def _set_world(self, state: dict[str, Any]) -> Obs:
        if state["obs"].shape != self._obs.shape:
            raise UsageError(
                f"a state with observations {tuple(state['obs'].shape)} does not fit {self.env_id} with "
                f"{self._obs.shape}"
            )
        self._physics.set_state(state["physics"].numpy())
        self._task.last[:] = state["last"].numpy()
        self._obs[:] = state["obs"].numpy()
        self._rngs = [np.random.Generator(np.random.PCG64(0)) for _ in state["rngs"]]
        for rng, text in zip(self._rngs, state["rngs"], strict=True):
            rng.bit_generator.state = json.loads(text)
        return self._obs_tensor

    def _upgrade(self, state: dict[str, Any]) -> dict[str, Any]:
        world = {name: state[name] for name in ("physics", "last", "obs", "rngs")}
        return {**state, "name": state["env_id"], "world": world}

    def close(self) -> None:
        """Free threads and memory. Calling it twice is harmless."""
        self._physics.close()


def _ids(mask: Array) -> Array:
    """Indices of the true rows, as the physics takes them."""
    return mask.nonzero()[0].astype(np.int32)
