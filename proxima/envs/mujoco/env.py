"""The vector env that runs Gymnasium's MuJoCo tasks on batched physics, bit for bit as Gymnasium would.

Not here: the tasks' arithmetic, and the physics.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import registry, spaces
from gymnasium.utils import seeding
from numpy.random import Generator
from torch import Tensor

from proxima.envs.action_hold import Holder
from proxima.envs.checks import check_count, check_seed
from proxima.envs.contract import Episodes, Obs, Step, VecEnv
from proxima.envs.mujoco.physics import Array, ContactForcePhysics, Physics
from proxima.envs.mujoco.registry import make_template
from proxima.envs.mujoco.task import ALL
from proxima.errors import UsageError
from proxima.machine import available_cores

NO_LIMIT = sys.maxsize // 2


class MujocoBatchEnv(VecEnv):
    """`num_envs` copies of a Gymnasium MuJoCo task, stepped on `num_threads` native threads.

    Args:
        env_id: a registered id that `can_serve` accepts, such as `"HalfCheetah-v5"`.
        num_envs: how many copies.
        env_kwargs: keyword arguments of the Gymnasium env.
        num_threads: None takes every core this process may use, but no more than there are envs.
        max_episode_steps: time limit; None takes the registered one.
        spread_episodes: after `reset`, cut env i's first episode short by `i / num_envs` of the time limit, so that
            later on the limits of different envs do not fall on the same step.
    """

    def __init__(
        self,
        env_id: str,
        *,
        num_envs: int,
        env_kwargs: Mapping[str, Any] | None = None,
        num_threads: int | None = None,
        max_episode_steps: int | None = None,
        spread_episodes: bool = False,
    ) -> None:
        check_count("num_envs", num_envs)
        check_count("num_threads", num_threads)
        check_count("max_episode_steps", max_episode_steps)
        template, task = make_template(env_id, env_kwargs)
        limit = max_episode_steps or registry[env_id].max_episode_steps or NO_LIMIT
        self.env_id, self.num_envs = env_id, num_envs
        self.action_space: spaces.Box = template.action_space
        self.observation_space = spaces.Dict({"obs": template.observation_space})
        self.device = torch.device("cpu")
        self.holder = Holder(num_envs)
        self.step_seconds: float = float(template.dt)
        self.max_episode_steps: int = limit
        self._spread = spread_episodes and limit != NO_LIMIT

        self.num_threads = min(num_threads or available_cores(), num_envs)
        physics = ContactForcePhysics if task.needs_contact_forces(template) else Physics
        self._physics = physics(
            template.model,
            num_envs=num_envs,
            num_threads=self.num_threads,
            nstep=template.frame_skip,
        )
        self._task = task(template, self._physics)
        template.close()

        self._rngs: list[Generator] = []
        self._obs = np.zeros((num_envs, *template.observation_space.shape))
        # Steps are counted once for all envs: which step an episode began at, and which will truncate it.
        self._clock = 0
        self._begun = np.zeros(num_envs, np.int64)
        self._deadline = np.full(num_envs, limit, np.int64)
        self._next_deadline = limit
        self._return = np.zeros(num_envs)
        # Tensors made once: next to nothing is allocated in a step in which no episode ends.
        self._obs_tensor: Obs = {"obs": torch.from_numpy(self._obs)}
        self._never = torch.zeros(num_envs, dtype=torch.bool)
        self._nothing = Episodes(torch.from_numpy(self._return), torch.zeros(num_envs, dtype=torch.int64))
        self._check_observation(template.observation_space.shape)

    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env, as Gymnasium would with `reset(seed=seed + i)` in env i."""
        check_seed(seed)
        if seed is not None or not self._rngs:
            seeds = [None if seed is None else int(seed) + i for i in range(self.num_envs)]
            self._rngs = [seeding.np_random(one)[0] for one in seeds]
            self.holder.seed(seed)
        ids = np.arange(self.num_envs, dtype=np.int32)
        self._restart(ids)
        if self._spread:
            self._deadline -= self.max_episode_steps * ids.astype(np.int64) // self.num_envs
            self._next_deadline = int(self._deadline.min())
        return self._obs_tensor

    def step(self, action: Tensor) -> Step:
        """Apply one float32 action `[N, A]`, as long as it is held; ended envs start anew within the same step."""
        physics = self._physics
        controls = action.numpy(force=True)
        if controls.shape != physics.ctrl.shape or controls.dtype != np.float32 or not controls.flags.c_contiguous:
            controls = self._as_controls(controls)
        if not self._rngs:
            raise UsageError("call reset before the first step")
        physics.ctrl[:] = controls
        with np.errstate(over="ignore", invalid="ignore"):  # an unstable simulation shows in the numbers themselves
            reward, terminated, duration = (self._hold_steps if self.hold.holds else self._one_step)(controls)
            np.concatenate(self._task.observation(ALL), axis=1, out=self._obs)
        in_time = self._clock < self._next_deadline
        if in_time and (terminated is None or not terminated.any()):
            never, nothing = self._never, self._nothing
            return Step(self._obs_tensor, torch.from_numpy(reward), never, never, None, nothing, duration)
        truncated = self._clock >= self._deadline
        ended = truncated if terminated is None else truncated | terminated
        final_obs = {"obs": torch.from_numpy(self._obs.copy())}
        episodes = Episodes(torch.from_numpy(self._return.copy()), torch.from_numpy(self._clock - self._begun))
        self._restart(ended.nonzero()[0].astype(np.int32))
        return Step(
            obs=self._obs_tensor,
            reward=torch.from_numpy(reward),
            terminated=self._never if terminated is None else torch.from_numpy(terminated),
            truncated=torch.from_numpy(truncated),
            final_obs=final_obs,
            episodes=episodes,
            duration=duration,
        )

    def _one_step(self, controls: Array) -> tuple[Array, Array | None, None]:
        self._physics.step()
        reward, terminated = self._task.evaluate(controls)
        self._return += reward
        self._clock += 1
        return reward, terminated, None

    def _hold_steps(self, controls: Array) -> tuple[Array, Array, Tensor]:
        """Repeat the controls. An env whose hold or whose episode is over stands still while the others go on.

        A task is evaluated for all envs: one that stands still keeps what it measured, and its numbers go nowhere.
        """
        hold, gamma = self.holder.draw(), self.hold.gamma
        moving, taken, weight = np.arange(self.num_envs, dtype=np.int32), 0, 1.0
        reward, total = np.full(self.num_envs, -0.0), np.full(self.num_envs, -0.0)  # -0.0 + x is x, to the bit
        terminated, duration = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.int64)
        while len(moving):
            self._physics.step(moving)
            one, over = self._task.evaluate(controls)
            taken += 1
            reward[moving] += weight * one[moving]
            total[moving] += one[moving]
            weight *= gamma
            duration[moving] = taken
            if over is not None:
                terminated[moving] = over[moving]
            stops = (hold == taken) | terminated | (self._clock + taken >= self._deadline)
            moving = moving[~stops[moving]]
        self._return += total
        # The clock is common to all: where fewer steps were taken, an episode's times move instead.
        self._clock += taken
        self._begun += taken - duration
        self._deadline += taken - duration
        self._next_deadline = int(self._deadline.min())
        return reward, terminated, torch.from_numpy(duration)

    def step_physics(self) -> None:
        """The physics of a step and nothing else, for measurements; the envs are of no use afterwards."""
        self._physics.step()

    def get_state(self) -> dict[str, Any]:
        """Everything needed to go on exactly, copied."""
        return {
            "env_id": self.env_id,
            "physics": torch.from_numpy(self._physics.get_state()),
            "last": torch.from_numpy(self._task.last.copy()),
            "obs": torch.from_numpy(self._obs.copy()),
            "length": torch.from_numpy(self._clock - self._begun),
            "limit": self.max_episode_steps,
            "left": torch.from_numpy(self._deadline - self._clock),
            "return": torch.from_numpy(self._return.copy()),
            "hold": self.holder.get_state(),
            # As text: the generators' integers have 128 bits.
            "rngs": [json.dumps(rng.bit_generator.state) for rng in self._rngs],
        }

    def set_state(self, state: dict[str, Any]) -> Obs:
        """Put a state back and return the observation that the policy acts on next."""
        if state["env_id"] != self.env_id or state["obs"].shape != self._obs.shape:
            raise UsageError(
                f"a state of {state['env_id']} with observations {tuple(state['obs'].shape)} "
                f"does not fit {self.env_id} with {self._obs.shape}"
            )
        self._physics.set_state(state["physics"].numpy())
        self._task.last[:] = state["last"].numpy()
        self._obs[:] = state["obs"].numpy()
        self._begun[:] = self._clock - state["length"].numpy()
        self._deadline[:] = self._clock + state["left"].numpy() + (self.max_episode_steps - state["limit"])
        self._next_deadline = int(self._deadline.min())
        self._return[:] = state["return"].numpy()
        self.holder.set_state(state["hold"])
        self._rngs = [np.random.Generator(np.random.PCG64(0)) for _ in state["rngs"]]
        for rng, text in zip(self._rngs, state["rngs"], strict=True):
            rng.bit_generator.state = json.loads(text)
        return self._obs_tensor

    def close(self) -> None:
        """Free threads and memory. Calling it twice is harmless."""
        self._physics.close()

    def _restart(self, ids: Array) -> None:
        """Begin new episodes in `ids` (int32, sorted), each from its own generator."""
        starts = [self._task.start(self._rngs[i]) for i in ids]
        qpos, qvel = (np.array(part) for part in zip(*starts, strict=True))
        self._physics.reset(ids, qpos, qvel)
        self._task.last[ids] = self._task.measure(ids)
        self._obs[ids] = np.concatenate(self._task.observation(ids), axis=1)
        self._begun[ids] = self._clock
        self._deadline[ids] = self._clock + self.max_episode_steps
        self._next_deadline = int(self._deadline.min())
        self._return[ids] = 0.0

    def _as_controls(self, action: Array) -> Array:
        if action.shape != self._physics.ctrl.shape:
            raise ValueError(f"an action must have shape {self._physics.ctrl.shape}, not {action.shape}")
        return np.ascontiguousarray(action, np.float32)

    def _check_observation(self, shape: tuple[int, ...]) -> None:
        """A model file of another body can make Gymnasium observe more or less than its space says."""
        size = sum(part.shape[1] for part in self._task.observation(ALL))
        if (size,) != shape:
            raise UsageError(f"{self.env_id} observes {size} numbers of this model, but its space says {shape}")
