"""Collects the next batch in a thread while the policy learns, with the weights from before."""

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

    A saved state does not hold the pending batch but what it was started from: the environment and
    the generator, which the trainer saves, and the acting weights (`state_dict`). Loading collects
    the batch again, bit for bit.

    Args:
        network: the network in training; a copy of it acts.
        make_collector: returns a collector that acts with a network.
    """

    def __init__(
        self, network: nn.Module, make_collector: Callable[[AppliedNetwork], Collector]
    ) -> None:
        self._network = network
        self._acting = copy.deepcopy(network).requires_grad_(False)
        self._applied = accelerate(self._acting)
        self._make_collector = make_collector
        # two, because training reads one's batch while the other collects
        self._collectors: deque[Collector] = deque()
        self._last: Rollout | None = None  # the batch that was taken
        self._statistics = (0.0, 1.0)  # mean and std that denormalise the critic's output
        self._advised = False  # whether a teacher is asked
        self._thread = ThreadPoolExecutor(1, "navrl-collect")
        self._batch: Future[Rollout] | None = None

    @property
    def pending(self) -> bool:
        """Whether a batch is ready or being collected."""
        return self._batch is not None

    def begin(self, statistics: tuple[float, float], *, advised: bool) -> None:
        """Start collecting a batch with the current weights; returns at once."""
        self._acting.load_state_dict(self._network.state_dict())
        self._statistics, self._advised = statistics, advised
        self._begin()

    def _begin(self) -> None:
        if not self._collectors:
            self._collectors.extend(self._make_collector(self._applied) for _ in range(2))
        self._collectors.rotate(1)
        if self._last is not None:
            self._collectors[0].go_on_from(self._last)
        self._batch = self._thread.submit(
            self._collectors[0].collect, *self._statistics, advised=self._advised
        )

    def wait(self) -> None:
        """Return when the pending batch is ready; raise its error if collection failed."""
        if self._batch is not None:
            self._batch.result()

    def take(self) -> Rollout:
        """Return the pending batch, once; valid until the batch after the next is started."""
        if self._batch is None:
            raise RuntimeError("no batch is pending; call begin() first")
        self._last, self._batch = self._batch.result(), None
        return self._last

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any] | None:
        """Return the acting weights of the pending batch, live tensors; None if none is pending."""
        if self._batch is None:
            return None
        return {
            "network": self._acting.state_dict(),
            "statistics": list(self._statistics),
            "advised": self._advised,
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Collect again the batch that was pending when the state was saved, if one was."""
        self.wait()
        self._batch = self._last = None
        self._collectors.clear()  # the environment's state has changed
        if state is not None:
            self._acting.load_state_dict(state["network"])
            mean, spread = state["statistics"]
            self._statistics = mean, spread
            self._advised = state.get("advised", False)
            self._begin()
            self.wait()
