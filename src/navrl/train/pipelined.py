"""Collects the next batch while the policy learns, with the weights from before the update."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import nn

from navrl.rl.accelerate import AppliedNetwork, accelerate
from navrl.rl.collect import Collector, Rollout

__all__ = ["PipelinedCollector"]


class PipelinedCollector:
    """Collects batches in a thread, each with one version of the weights.

    A pending batch is not part of a saved state. What it began from is: the drones and the random
    numbers, which the trainer knows, and the weights that act, which `state_dict` gives. Loading
    collects it again, bit for bit.

    Args:
        network: that is trained; a copy of it acts.
        make_collector: makes a collector that acts with a network.
    """

    def __init__(
        self, network: nn.Module, make_collector: Callable[[AppliedNetwork], Collector]
    ) -> None:
        self._network = network
        self._acting = copy.deepcopy(network).requires_grad_(False)
        self._applied = accelerate(self._acting)
        self._make_collector = make_collector
        # two: one flies while training reads the other's batch
        self._collectors: deque[Collector] = deque()
        self._last: Rollout | None = None  # that was taken
        # mean and spread of the returns: the unit of the critic's output
        self._statistics = (0.0, 1.0)
        self._thread = ThreadPoolExecutor(1, "navrl-ahead")
        self._batch: Future[Rollout] | None = None

    @property
    def pending(self) -> bool:
        """Whether a batch is ready or under way."""
        return self._batch is not None

    def begin(self, statistics: tuple[float, float]) -> None:
        """Begin to collect a batch with the weights as they are now; returns at once."""
        self._acting.load_state_dict(self._network.state_dict())
        self._statistics = statistics
        self._begin()

    def _begin(self) -> None:
        if not self._collectors:
            self._collectors.extend(self._make_collector(self._applied) for _ in range(2))
        self._collectors.rotate(1)
        if self._last is not None:
            self._collectors[0].go_on_from(self._last)
        self._batch = self._thread.submit(self._collectors[0].collect, *self._statistics)

    def wait(self) -> None:
        """Return when nothing is being collected; raise what went wrong."""
        if self._batch is not None:
            self._batch.result()

    def take(self) -> Rollout:
        """Return the batch that was begun, once; valid until the one after the next is begun."""
        if self._batch is None:
            raise RuntimeError("no batch was begun")
        self._last, self._batch = self._batch.result(), None
        return self._last

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any] | None:
        """Return the weights that act in the pending batch, live tensors; None if there is none."""
        if self._batch is None:
            return None
        return {"network": self._acting.state_dict(), "statistics": list(self._statistics)}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Collect the batch again that was pending when the state was saved, if there was one."""
        self.wait()
        self._batch = self._last = None
        self._collectors.clear()  # the drones are elsewhere now
        if state is not None:
            self._acting.load_state_dict(state["network"])
            mean, spread = state["statistics"]
            self._statistics = mean, spread
            self._begin()
            self.wait()
