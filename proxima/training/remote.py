"""The rollout source on Ray workers: each has a part of the envs and collects its part of every rollout.

The learner draws the noise of all envs and sends the weights once per rollout; each worker returns its part as one
block, and the state of its envs. A worker that is lost is replaced: the new one continues from the state before the
rollout, with the same weights and noise, and so repeats exactly what was lost.
"""

import copy
import dataclasses
import logging
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from proxima.config import Config
from proxima.envs.action_hold import Hold
from proxima.envs.contract import VecEnv
from proxima.envs.gymnasium.env_group import sendable_spec
from proxima.envs.gymnasium.snapshot import NotPlain
from proxima.errors import EnvFailure, UsageError, first_line
from proxima.nets.policy import Policy
from proxima.own_parts import given_parts
from proxima.training.hold_schedule import HoldSchedule
from proxima.training.partition import join_parts, one_state, take_envs
from proxima.training.ray_cluster import Cluster, WorkerLost
from proxima.training.rollout_worker import Arrays, Assignment, Harvest, Job, tensors_of, to_arrays, to_tensors
from proxima.training.source import EnvState, Gather, Share, Source, Table, in_order, mean_info
from proxima.training.worker_pool import Order, Worker, WorkerPool

log = logging.getLogger("proxima")


class _Running(NamedTuple):
    """A rollout that is being collected."""

    order: Order
    answers: dict[Any, Worker]
    content: dict[str, Any]
    """Weights, networks and hold, for a checkpoint that is saved meanwhile."""
    lag: int


class RemoteSource(Source):
    """Rollouts of envs on Ray workers; see the module's docstring.

    With `overlap`, the workers collect the next rollout while the learner updates: with the weights from before the
    update.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        config: Config,
        *,
        num_steps: int,
        device: torch.device,
        env_seed: int,
        seed: int,
        num_workers: int,
        hold_schedule: HoldSchedule | None = None,
        compiles: bool = False,
        sequence_length: int = 1,
        store_values: bool = False,
        share: Share | None = None,
        gather: Gather | None = None,
    ):
        """`env` is one env, which describes the others. `sequence_length` and `store_values`: see `Rollout`."""
        share = share or Share(0, config.env.num_envs, config.env.num_envs)
        super().__init__(env, policy, seed=seed, device=device, share=share, hold_schedule=hold_schedule, gather=gather)
        self.compiled, self.overlap, self._config = compiles, config.cluster.overlap, config
        stored: dict[str, Any] = {"sequence_length": sequence_length, "store_values": store_values}
        self.rollout = self.make_rollout(env.reset(env_seed), num_steps=num_steps, device=device, **stored)
        self.lag = 0
        """Updates of the policy between the one that collected the last rollout and the current one."""
        self._noise = torch.zeros(num_steps, share.count, policy.noise_size, device=device)
        self._networks: dict[str, Arrays] = {}
        self._running: _Running | None = None
        """The rollout that is being collected."""
        self._resumed: dict[str, Any] | None = None
        """The content of the order that a checkpoint was waiting for."""
        self._harvests: list[Harvest] = []
        self._lost_everywhere = self._lost_before = 0
        self._ended_at, self._wait_share = time.perf_counter(), 0.0
        self._cpus = config.cluster.worker_cpus
        self._assign: dict[str, Any] = {"num_steps": num_steps, "compiles": compiles}
        self._assign["options"] = stored | {"env_seed": env_seed}
        shares = share.split(num_workers)
        self._cluster = Cluster(config.cluster.ray_address, cpus=num_workers * self._cpus, rollout_bytes=self._bytes())
        try:
            workers = [Worker(i, part, self._assignment(part)) for i, part in enumerate(shares)]
            self._pool = WorkerPool(self._cluster, workers, cpus=self._cpus, seed=env_seed)
            self._pool.start()
            self._ended_at = time.perf_counter()
        except BaseException:
            self._cluster.close()
            raise

    def _bytes(self) -> int:
        block = self.rollout.to_block()
        return sum(x.nbytes for group in block.values() for x in group.values())

    def _assignment(self, share: Share) -> bytes:
        import cloudpickle  # type: ignore[import-untyped]

        options = self._config.env
        given = Assignment(
            config=self._config,
            policy=copy.deepcopy(self.policy).cpu(),
            share=share,
            num_threads=max(1, int(self._cpus)),
            parts=given_parts([options.env, options.wrappers]),
            spec=sendable_spec(options.env),
            **self._assign,
        )
        try:
            return bytes(cloudpickle.dumps(given))
        except Exception as error:
            raise UsageError(
                f"env {options.env!r} or the policy cannot be sent to a rollout worker ({first_line(error)}): give it "
                "as module:attribute, or with arguments that can be pickled."
            ) from error

    # Rollouts --------------------------------------------------------------------------------------------------------

    def _collect(self) -> Table:
        if self._running is None:
            self._begin(self._resumed, lag=0 if self._resumed is None else 1)
        assert self._running is not None
        running, self._running, self._resumed = self._running, None, None
        self.lag = running.lag
        self.rollout.clear()
        start, harvests = time.perf_counter(), {}
        for worker, harvest in self._pool.harvest(running.order, running.answers):
            self.rollout.put_block(harvest.block, worker.share.first - self.share.first)
            # Without what is in Ray's store, which would stay there.
            empty = EnvState({}, [], None)
            harvests[worker.index] = dataclasses.replace(harvest, block={}, state=empty, ended=harvest.ended.copy())
        shares, self._pool.restarted = self._pool.restarted, []
        starts = [share.first - self.share.first for share in shares]
        self.restarted = [slice(start, start + share.count) for start, share in zip(starts, shares, strict=True)]
        now = time.perf_counter()
        self._wait_share, self._ended_at = (now - start) / (now - self._ended_at), now
        self._harvests = [harvests[worker.index] for worker in self._workers]
        self.no_toolchain |= any(harvest.no_toolchain for harvest in self._harvests)
        if self.overlap:
            self._begin(lag=1, is_ahead=True)
        return in_order([harvest.ended for harvest in self._harvests])

    def _begin(self, content: dict[str, Any] | None = None, *, lag: int, is_ahead: bool = False) -> None:
        """Ask every worker for its part of the next rollout, with the current weights or those of a checkpoint."""
        if content is None:
            weights = {name: x.detach().numpy(force=True) for name, x in tensors_of(self.policy).items()}
            content = {"weights": weights, "networks": dict(self._networks), "hold": self.hold.to_dict()}
        counts = [self.global_step, self.policy_steps]
        if is_ahead:  # the rollout that is being returned is not counted yet
            share, rollout = self.share, self.rollout
            counts[0] += rollout.num_env_steps * share.total // share.count
            counts[1] += rollout.num_steps * share.total
        self._before = self.generator.get_state()
        noise = self.draw_noise(self._noise).cpu()
        starts = [worker.share.first - self.share.first for worker in self._workers]
        parts = [
            noise[:, start : start + worker.share.count] for start, worker in zip(starts, self._workers, strict=True)
        ]
        order = Order(
            weights=self._cluster.put(content["weights"]),
            noise=[part.contiguous().numpy() for part in parts],
            job=Job(Hold(**content["hold"]), counts[0], counts[1], self.obstacle is None),
            networks=[self._cluster.put(item) for item in content["networks"].items()],
        )
        # Copies, since the learner changes its weights in place.
        content = tree_map_only(np.ndarray, np.copy, content) if self.overlap else {}
        self._running = _Running(order, self._pool.ask(order), content, lag)

    @property
    def _workers(self) -> list[Worker]:
        return self._pool.workers

    # What the trainer asks -------------------------------------------------------------------------------------------

    def set_weights(self, name: str, weights: dict[str, Tensor]) -> None:
        """Hand the weights of a network that is part of the env to the envs, with the next order."""
        self._networks[name] = {key: x.numpy(force=True).copy() for key, x in weights.items()}

    def call_envs(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the envs on every worker; lists of results are joined."""
        if self.overlap:
            raise UsageError("call_envs is not possible with overlap: the envs are in the middle of the next rollout.")
        calls = [worker.actor.call_envs.remote(method, args, kwargs) for worker in self._workers]
        try:
            results = [self._cluster.get(call) for call in calls]
        except WorkerLost as lost:
            raise EnvFailure(f"{method} of the envs: a rollout worker was lost ({lost}).") from None
        for worker in self._workers:
            worker.state = to_tensors(self._pool.ask_one(worker, "get_state", self.obstacle is None))
        return [one for result in results for one in result] if isinstance(results[0], list) else results

    def report(self) -> tuple[dict[str, float], dict[str, int], int]:
        """Means of the envs' `info`, their counters, and the number of envs."""
        parts = zip(self._harvests, self._workers, strict=True)
        info = mean_info([(harvest.info, worker.share.count) for harvest, worker in parts])
        counters: dict[str, int] = {"lost_workers": self._pool.lost, "rollout_workers": len(self._workers)}
        for harvest in self._harvests:
            counters |= {name: counters.get(name, 0) + count for name, count in harvest.counters.items()}
        return info, counters, self.share.count

    def metrics(self, progress: float) -> dict[str, float]:
        """Also the speed of the workers, the share of time that the learner waited for them, and the lag."""
        speed = sum(harvest.num_env_steps / harvest.seconds for harvest in self._harvests)
        found = self._gather((speed, self._wait_share))
        own = {
            "worker_steps_per_second": sum(speed for speed, _ in found),
            "learner_wait": sum(share for _, share in found) / len(found),
        }
        metrics = super().metrics(progress)
        self._lost_everywhere = int(metrics["lost_workers"])
        return {**metrics, **own, **({"policy_lag": float(self.lag)} if self.overlap else {})}

    @property
    def num_threads(self) -> int | None:
        """Those of a worker."""
        return None if super().num_threads is None else max(1, int(self._cpus))

    def text(self) -> str:
        """Also the workers."""
        workers = self._config.cluster.rollout_workers
        return f"{super().text()}{workers} rollout worker{'s' * (workers > 1)}, "

    def wants_checkpoint(self) -> bool:
        """After a worker of any rank was lost: a machine may be about to go, and others with it."""
        before, self._lost_before = self._lost_before, self._lost_everywhere
        return self._lost_everywhere > before

    def close(self) -> None:
        """End the workers; may be called twice."""
        self._cluster.close()
        super().close()

    # State -----------------------------------------------------------------------------------------------------------

    def get_envs(self) -> EnvState:
        """What the workers returned last: nothing has to be asked of them, whatever happened to them since."""
        for worker in self._workers:
            if worker.state is None:
                worker.state = to_tensors(self._pool.ask_one(worker, "get_state", self.obstacle is None))
        states = [worker.state for worker in self._workers if worker.state is not None]
        return EnvState(
            {key: torch.cat([state.obs[key] for state in states]) for key in states[0].obs},
            [torch.cat(rows) for rows in zip(*(state.recurrent for state in states), strict=True)],
            join_parts([state.env for state in states], [worker.share.count for worker in self._workers]),
        )

    def set_envs(self, state: EnvState) -> bool:
        """Divide the state among the workers; False if it does not fit."""
        try:
            for worker in self._workers:
                first, count = worker.share.first - self.share.first, worker.share.count
                env = one_state(take_envs(state.env, first, count, self.share.count, self.env), self.env)
                rows = slice(first, first + count)
                obs, recurrent = {key: x[rows] for key, x in state.obs.items()}, [x[rows] for x in state.recurrent]
                worker.state = EnvState(obs, recurrent, env)
        except NotPlain as error:
            log.warning("The envs' state cannot be divided among the workers: %s.", error)
            return False
        fits = [self._pool.ask_one(worker, "set_state", to_arrays(worker.state)) for worker in self._workers]
        return all(fits)

    def reset_envs(self, seed: int) -> None:
        """Start new episodes."""
        self._resumed = None
        for worker in self._workers:
            worker.state, worker.seed = None, seed + worker.share.first - self.share.first
            worker.actor.reset.remote(worker.seed)

    def get_state(self) -> dict[str, Any]:
        """With `overlap`, also the order of the rollout that is being collected."""
        state = super().get_state()
        if self._running is not None:
            state["collector"] |= {"generator": self._before, "in_flight": to_tensors(self._running.content)}
        return state

    def set_state(self, state: dict[str, Any], *, new_episodes_seed: int) -> list[str]:
        """Also what was being collected with the weights before the last update."""
        if self.overlap and "in_flight" in state["collector"]:
            self._resumed = to_arrays(state["collector"]["in_flight"])
        return super().set_state(state, new_episodes_seed=new_episodes_seed)
