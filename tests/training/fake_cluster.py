"""A stand-in for Ray in this process: what is sent is pickled, arrays come back read-only, workers can be lost."""

from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
from torch.utils._pytree import tree_map_only

from proxima.training.ray_cluster import WorkerLost


def sent(value: Any) -> Any:
    """As another process receives it."""

    def lock(array: np.ndarray) -> np.ndarray:
        array.flags.writeable = False
        return array

    return tree_map_only(np.ndarray, lock, cloudpickle.loads(cloudpickle.dumps(value)))


class Reference:
    def __init__(self, work: Callable[[], Any]):
        self.value, self.error = None, None
        try:
            self.value = sent(work())
        except Exception as error:
            self.error = error


class Actor:
    def __init__(self, cluster: "FakeCluster", kind: type):
        self._cluster, self._worker, self.is_lost = cluster, kind(), False

    def __getattr__(self, name: str) -> Any:
        return _Method(self, name)


class _Method:
    def __init__(self, actor: Actor, name: str):
        self._actor, self._name = actor, name

    def remote(self, *arguments: Any) -> Reference:
        actor, name = self._actor, self._name

        def work() -> Any:
            given = [argument.value if isinstance(argument, Reference) else argument for argument in sent(arguments)]
            FakeCluster.calls.append(name)
            if name == "collect" and FakeCluster.calls.count("collect") in FakeCluster.losses:
                getattr(actor._worker, name)(*given)  # it has done its work, and is gone before it could say so
                actor.is_lost = True
            if actor.is_lost:
                raise WorkerLost("the test ended it")
            return getattr(actor._worker, name)(*given)

        return Reference(work)


class FakeCluster:
    """Like `ray_cluster.Cluster`. `losses` are the calls of `collect`, counted from 1, in which a worker is lost."""

    calls: list[str] = []  # noqa: RUF012
    losses: set[int] = set()  # noqa: RUF012

    def __init__(self, address: str | None, *, cpus: float, rollout_bytes: int):
        assert rollout_bytes > 0
        FakeCluster.calls = []

    def start(self, actor: type, cpus: float) -> Actor:
        return Actor(self, actor)

    def kill(self, actor: Actor) -> None:
        actor.is_lost = True

    def put(self, value: Any) -> Reference:
        FakeCluster.calls.append("put")
        return Reference(lambda: value)

    def wait(self, references: list[Reference], timeout: float | None) -> list[Reference]:
        return references[-1:]  # not in the order in which they were asked

    def get(self, reference: Reference) -> Any:
        if reference.error is not None:
            raise reference.error
        return reference.value

    def text(self) -> str:
        return "the cluster has 2 CPUs, 0 of them free"

    def close(self) -> None:
        pass
