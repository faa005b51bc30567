"""Workers as Ray actors, spread over the machines of a cluster; Ray restarts those that die."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from navrl.config import Config
from navrl.training.remote.ray_cluster import connect, describe_cluster
from navrl.training.remote.worker import Worker, worker_settings
from navrl.training.remote.workers import Arrived, Event, Finished, Lost, Workers

__all__ = ["RayWorkers"]

LONGEST_REASON = 200  # characters
STREAMS = 28  # bits of a random stream's number


class WorkerProcess:
    """A Ray actor. It makes its worker at the first batch, so that an error reaches the learner."""

    def __init__(self, make: Callable[..., Worker], arguments: dict[str, Any]) -> None:
        self._make, self._arguments = make, arguments
        self._worker: Worker | None = None

    def collect(self, weights: bytes) -> tuple[int, bytes]:
        """Return the size of the next batch, and the batch, which Ray stores where it was made."""
        import ray

        if self._worker is None:
            arguments = dict(self._arguments)
            if ray.get_runtime_context().was_current_actor_reconstructed:
                arguments["stream"] = _new_stream()
            self._worker = self._make(**arguments)
        batch = self._worker.collect(weights)
        return len(batch), batch


class RayWorkers(Workers):
    """The workers of a training on a Ray cluster.

    Args:
        config: of the training.
        run: see `Stamp.run`.
        stream: 0, or what makes the random numbers of a resumed training others.
        make: makes a worker in its process.

    Raises:
        CollectorError: there is no cluster.
    """

    def __init__(
        self, config: Config, run: int, *, stream: int = 0, make: Callable[..., Worker] = Worker
    ) -> None:
        self.count = config.collect.workers
        self._connected_here = connect(config.collect)
        import ray

        self._ray: Any = ray
        self._cpus, self._make = config.collect.cpus, make
        self._arguments = {"settings": worker_settings(config), "run": run}
        self._weights: Any = None
        self._actors = [self._actor(worker, stream) for worker in range(self.count)]
        self._collecting: dict[Any, tuple[int, Any]] = {}  # size: worker and batch, references
        self._travelling: dict[Any, int] = {}  # batch: worker

    def publish(self, weights: bytes) -> None:
        """Have batches that are started from now on collected with these weights."""
        self._weights = self._ray.put(weights)

    def start(self, worker: int) -> None:
        """Start a batch; returns at once."""
        size, batch = self._actors[worker].collect.options(num_returns=2).remote(self._weights)
        self._collecting[size] = worker, batch

    def wait(self, seconds: float) -> list[Event]:
        """Return what has happened, in order; wait at most so long if nothing has."""
        end = time.monotonic() + seconds
        while True:
            events = [*self._finished(), *self._arrived()]
            left = end - time.monotonic()
            if events or left <= 0:
                return events
            references = [*self._collecting, *self._travelling]
            if references:
                self._ray.wait(references, num_returns=1, timeout=left)
            else:
                time.sleep(left)

    def restart(self, worker: int) -> None:
        """Replace a worker's process; what it was collecting is lost without an event."""
        for size in [size for size, (whose, _) in self._collecting.items() if whose == worker]:
            del self._collecting[size]
        self._ray.kill(self._actors[worker])
        self._actors[worker] = self._actor(worker, _new_stream())

    def describe(self) -> str:
        """Return one sentence about the cluster."""
        return f"{describe_cluster()}; {self.count} workers take {self._cpus} each"

    def close(self) -> None:
        """End all workers; disconnect if this object has connected."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors.clear()
        if self._connected_here:
            self._ray.shutdown()

    def actor_options(self) -> dict[str, Any]:
        """Return Ray's options of a worker's process."""
        return {
            "num_cpus": self._cpus,
            "max_restarts": -1,  # wherever the cluster has room
            "scheduling_strategy": "SPREAD",
        }

    def carry(self, batch: Any) -> Any:
        """Return the reference of a batch as it arrives here; an emulated link overrides this."""
        return batch

    def _actor(self, worker: int, stream: int) -> Any:
        arguments = self._arguments | {"worker": worker, "stream": stream}
        actor = self._ray.remote(WorkerProcess).options(**self.actor_options())
        return actor.remote(self._make, arguments)

    def _finished(self) -> list[Event]:
        """Return which workers have finished; their batches begin to travel."""
        events: list[Event] = []
        for size in self._ready(self._collecting):
            worker, batch = self._collecting.pop(size)
            try:
                self._ray.get(size)
            except self._ray.exceptions.RayError as error:
                events.append(self._failed(worker, error))
                continue
            self._travelling[self.carry(batch)] = worker
            events.append(Finished(worker))
        return events

    def _arrived(self) -> list[Event]:
        events: list[Event] = []
        for batch in self._ready(self._travelling):
            worker = self._travelling.pop(batch)
            try:
                events.append(Arrived(worker, self._ray.get(batch)))
            except self._ray.exceptions.RayError as error:
                events.append(Lost(worker, _short(error), finished=True))
        return events

    def _ready(self, references: dict[Any, Any]) -> list[Any]:
        """Return which objects are on this machine; the transfer of the others goes on."""
        if not references:
            return []
        ready, _ = self._ray.wait([*references], num_returns=len(references), timeout=0)
        return [*ready]

    def _failed(self, worker: int, error: Exception) -> Lost:
        errors = self._ray.exceptions
        if isinstance(error, errors.RayTaskError):
            cause = getattr(error, "cause", None) or error
            return Lost(worker, f"{type(cause).__name__}: {_short(cause)}", raised=True)
        if isinstance(error, errors.ActorDiedError):  # Ray will not start it again
            self._actors[worker] = self._actor(worker, _new_stream())
        return Lost(worker, _short(error))


def _new_stream() -> int:
    return 1 + secrets.randbits(STREAMS)


def _short(error: BaseException) -> str:
    told = " ".join(str(error).split())
    return told if len(told) <= LONGEST_REASON else f"{told[:LONGEST_REASON]}..."
