"""Workers with a slow simulator, and a link of a given rate between them and the learner."""

from __future__ import annotations

import sys
import time
from typing import Any

from navrl.config import Config
from navrl.rl.environment import Environment
from navrl.training.remote.ray_workers import RayWorkers
from navrl.training.remote.worker import Worker


def slow_down(env: Environment, seconds: float) -> None:
    """Make every step of an environment take longer, without using the processor."""
    step = env.step

    def slowly(*arguments: Any, **options: Any) -> Any:
        time.sleep(seconds * env.num_envs)
        return step(*arguments, **options)

    env.step = slowly  # type: ignore[method-assign]


class SlowWorker(Worker):
    """A worker whose simulator takes `pause` seconds more for each environment and step."""

    def __init__(self, *arguments: Any, pause: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if pause:
            slow_down(self.env, pause)


class Link:
    """One direction of a link: messages pass in turn, at a rate in bit/s; 0: at once."""

    def __init__(self) -> None:
        self.rate = 0.0

    def set_rate(self, rate: float) -> None:
        self.rate = rate

    def carry(self, message: bytes) -> bytes:
        if self.rate:
            time.sleep(8 * len(message) / self.rate)
        return message


class LinkedWorkers(RayWorkers):
    """Workers behind a link: their batches share its way up, the weights take its way down once."""

    def __init__(self, config: Config, run: int, **options: Any) -> None:
        super().__init__(config, run, **options)
        link = self._ray.remote(Link).options(num_cpus=0)
        self.up, self.down = link.remote(), link.remote()

    def actor_options(self) -> dict[str, Any]:
        # the workers of all cases are there at once, and those of one case work
        return super().actor_options() | {"num_cpus": 0}

    def set_rate(self, rate: float) -> None:
        self._ray.get([self.up.set_rate.remote(rate), self.down.set_rate.remote(rate)])

    def publish(self, weights: bytes) -> None:
        self._weights = self.down.carry.remote(weights)

    def carry(self, batch: Any) -> Any:
        return self.up.carry.remote(batch)


def sendable() -> None:
    """Let Ray send these classes to workers, which cannot import this file."""
    from ray.cloudpickle import register_pickle_by_value

    register_pickle_by_value(sys.modules[__name__])
