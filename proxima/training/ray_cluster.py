"""The few things that are asked of Ray: connect, start an actor, send and wait. The only file that imports it."""

import importlib.util
import os
import signal
import socket
import threading
from typing import Any

from proxima.errors import ProximaError, UsageError, first_line
from proxima.machine import available_cores

# Object store of a Ray that is started here: room for some rollouts, whose memory is only used when it is needed.
_LEAST_STORE, _STORED_ROLLOUTS = 256 * 2**20, 12
_ANSWER_SECONDS = 10.0


class WorkerLost(Exception):
    """The process of an actor, or its machine, is gone."""


class Cluster:
    """A connection to a Ray cluster, or a Ray on this machine that ends with the run."""

    def __init__(self, address: str | None, *, cpus: float, rollout_bytes: int):
        """Connect to `address` or $RAY_ADDRESS; without these, start Ray here with room for actors with `cpus`."""
        if importlib.util.find_spec("ray") is None:
            raise UsageError('rollout_workers need Ray, which is not installed: pip install "proxima-rl[ray]".')
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        self._ray, self._actors = ray, list[Any]()
        self._is_ours = not ray.is_initialized()
        if not self._is_ours:
            return
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        _check_answer(address)
        options: dict[str, Any] = {"address": address}
        if address == "local":
            store = max(_LEAST_STORE, _STORED_ROLLOUTS * rollout_bytes)
            options |= {"num_cpus": max(available_cores(), int(cpus + 1)), "include_dashboard": False}
            options |= {"object_store_memory": store}
        in_main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM) if in_main else None
        try:
            ray.init(**options, log_to_driver=False, configure_logging=False)
        except SystemExit:  # of Ray's handler of SIGTERM, which exits with another code
            raise SystemExit(128 + signal.SIGTERM) from None
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
            what = "Ray cannot be started here" if address == "local" else f"no Ray cluster answers at {address!r}"
            raise UsageError(f"{what} ({first_line(error)}): check --ray-address and `ray status`.") from error
        finally:
            if in_main and before is not None:
                signal.signal(signal.SIGTERM, before)

    def start(self, actor: type, cpus: float) -> Any:
        """A new actor on some machine that has as many free CPUs; it may have to wait for them."""
        options = {"num_cpus": cpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        handle: Any = self._ray.remote(actor).options(**options).remote()
        self._actors.append(handle)
        return handle

    def kill(self, actor: Any) -> None:
        """End an actor, wherever it is."""
        self._actors = [other for other in self._actors if other is not actor]
        self._ray.kill(actor)

    def put(self, value: Any) -> Any:
        """Store a value once for all actors."""
        return self._ray.put(value)

    def wait(self, references: list[Any], timeout: float | None) -> list[Any]:
        """Those of the references whose values are there, or are lost; at least one, unless time is up."""
        return list(self._ray.wait(references, timeout=timeout, fetch_local=True)[0])

    def get(self, reference: Any) -> Any:
        """The value of a reference; WorkerLost if it is lost, or the error that the actor raised."""
        from ray import exceptions

        try:
            return self._ray.get(reference)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, ProximaError):
                raise error.cause from None
            raise
        except exceptions.RayError as error:
            raise WorkerLost(first_line(error)) from None

    def text(self) -> str:
        """The CPUs of the cluster, in words."""
        total, free = self._ray.cluster_resources(), self._ray.available_resources()
        return f"the cluster has {total.get('CPU', 0):g} CPUs, {free.get('CPU', 0):g} of them free"

    def close(self) -> None:
        """End the actors, and Ray if it was started or connected here; may be called twice."""
        actors, self._actors = self._actors, []
        for actor in actors if self._ray.is_initialized() else []:
            self._ray.kill(actor)
        if self._is_ours:
            self._ray.shutdown()


def _check_answer(address: str) -> None:
    """Raise a UsageError if nothing listens at HOST:PORT: Ray itself would try for minutes."""
    host, separator, port = address.rpartition(":")
    if "://" in address:
        raise UsageError(
            f"ray_address is {address!r}, but rollouts need a learner that runs on a machine of the cluster: start it "
            "there (`ray job submit`) with --ray-address auto."
        )
    if not separator:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no Ray cluster answers at {address!r} ({first_line(error)}): check --ray-address and `ray status`."
        ) from None
