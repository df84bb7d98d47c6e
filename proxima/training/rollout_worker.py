"""A rollout worker: a collector with a part of the envs, in a process on any machine. `remote.py` starts and asks it.

Everything that it takes and returns is plain data and NumPy arrays, once per rollout.
"""

import contextlib
import logging
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from proxima.algo.adam import FlatParameters
from proxima.compiling import float32_by_default
from proxima.config import Config
from proxima.data.rollout import Block, tensor_of
from proxima.envs.action_hold import Hold
from proxima.nets.policy import Policy
from proxima.own_parts import give_parts
from proxima.runs.files import versions
from proxima.training.collector import Collector
from proxima.training.setup import make_run_envs
from proxima.training.source import EnvState, Share, Table

Arrays = dict[str, NDArray[Any]]


@dataclass
class Assignment:
    """What a worker does, as long as it lives."""

    config: Config
    policy: Policy
    share: Share
    num_steps: int
    options: dict[str, Any]
    """`sequence_length`, `store_values` and `env_seed` of the collector."""
    compiles: bool
    num_threads: int
    parts: dict[str, Any]
    """Envs and wrappers that the user gave as objects, by name."""
    spec: EnvSpec | None
    """Of a Gymnasium id, which the user's script may have registered."""


@dataclass
class Job:
    """What is the same for all workers in one rollout, besides weights and noise."""

    hold: Hold
    global_step: int
    policy_steps: int
    saves_state: bool
    """Whether to return the state of the envs."""


@dataclass
class Harvest:
    """What a worker returns."""

    block: Block
    ended: Table
    state: EnvState
    """After the rollout, as arrays."""
    info: dict[str, float]
    counters: dict[str, int]
    num_env_steps: int
    seconds: float
    no_toolchain: bool
    messages: list[tuple[int, str]]
    """Levels and texts of what was logged."""


class RolloutWorker:
    """The code of a Ray actor; without Ray, so that it can be used and tested as it is."""

    def ping(self) -> None:
        """Nothing: the answer shows that the process has started."""

    def build(self, assignment: bytes, folder: str, paths: Sequence[str]) -> dict[str, str]:
        """Make the envs; returns where the worker is and which versions it has.

        `folder` and `paths` are the learner's working folder and module search path: modules and files that it finds
        are found here too, where these exist. The assignment is pickled, because it may need these modules.
        """
        import cloudpickle  # type: ignore[import-untyped]

        with contextlib.suppress(OSError):
            os.chdir(folder)
        sys.path += [path for path in paths if path not in sys.path and Path(path).is_dir()]
        self._messages = _Messages()
        logging.getLogger("proxima").addHandler(self._messages)
        given: Assignment = cloudpickle.loads(assignment)
        torch.set_num_threads(given.num_threads if given.policy.image_keys else 1)
        give_parts(given.parts)
        if given.spec is not None and given.spec.id not in gym.registry:
            gym.registry[given.spec.id] = given.spec
        with float32_by_default():
            env = make_run_envs(given.config, given.share.count, device="cpu", num_threads=given.num_threads)
            self._policy = given.policy
            self._collector = Collector(
                env,
                given.policy,
                num_steps=given.num_steps,
                device=torch.device("cpu"),
                seed=0,  # never used: the learner sends the noise
                share=given.share,
                flat=FlatParameters(given.policy) if given.compiles else None,
                **given.options,
            )
        self._tensors = tensors_of(given.policy)
        return {"node": platform.node(), "pid": str(os.getpid()), **versions()}

    def collect(self, weights: Arrays, noise: NDArray[np.float32], job: Job, *networks: tuple[str, Arrays]) -> Harvest:
        """One rollout with these weights of the policy, noise `[T, n, A]`, and networks for the envs."""
        start, collector = time.perf_counter(), self._collector
        with torch.no_grad():
            for name, x in self._tensors.items():
                x.copy_(tensor_of(weights[name]))
        for name, own in networks:
            collector.set_weights(name, {key: tensor_of(x) for key, x in own.items()})
        collector.env.hold = job.hold
        collector.global_step, collector.policy_steps = job.global_step, job.policy_steps
        collector.noise.copy_(tensor_of(noise))
        with float32_by_default():
            ended = collector.fill()
        info, counters, _ = collector.report()
        return Harvest(
            block=collector.rollout.to_block(),
            ended=ended,
            state=self.get_state(job.saves_state),
            info=info,
            counters=counters,
            num_env_steps=collector.rollout.num_env_steps,
            seconds=time.perf_counter() - start,
            no_toolchain=collector.no_toolchain,
            messages=self._messages.take(),
        )

    def get_state(self, saves_state: bool) -> EnvState:
        """The next observations and recurrent states, and with `saves_state` the state of the envs, as arrays."""
        self._collector.obstacle = None if saves_state else "not asked for"
        state: EnvState = to_arrays(self._collector.get_envs())
        return state

    def set_state(self, state: EnvState) -> bool:
        """Continue from a state; False if it does not fit."""
        return self._collector.set_envs(to_tensors(state))

    def reset(self, seed: int) -> None:
        """Start new episodes; `seed` is that of the first env here."""
        self._collector.reset_envs(seed)

    def call_envs(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of a method of the envs."""
        return self._collector.call_envs(method, *args, **kwargs)


class _Messages(logging.Handler):
    """Keeps what is logged, for the learner to log."""

    def __init__(self) -> None:
        super().__init__()
        self._found: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self._found.append((record.levelno, record.getMessage()))

    def take(self) -> list[tuple[int, str]]:
        """Those since the last call."""
        found, self._found = self._found, []
        return found


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer once, by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def to_arrays(tree: Any) -> Any:
    """A tree with NumPy arrays in place of tensors."""
    return tree_map_only(Tensor, lambda x: x.detach().numpy(force=True), tree)


def to_tensors(tree: Any) -> Any:
    """A tree with tensors, copied, in place of NumPy arrays."""
    return tree_map_only(np.ndarray, lambda x: torch.from_numpy(np.array(x)), tree)
