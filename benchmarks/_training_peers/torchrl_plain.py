"""TorchRL's Collector with the plain loop's update: what is left of TorchRL where its losses are
too slow.
"""

from __future__ import annotations

import time
import warnings

import torch

from _training_peers.plain_loop import PlainUpdate
from _training_peers.task import Task
from _training_peers.torchrl_collector import SEEN, make_collector


class CollectorWithPlainUpdate:
    """Data comes as a TensorDict of (N, T) and is packed once for the update."""

    def __init__(self, task: Task) -> None:
        self.update = PlainUpdate(task)
        collector, _, self.limit = make_collector(task, self.update.network)
        self.batches = iter(collector)

    def iterate(self) -> tuple[float, float]:
        start = time.perf_counter()
        data = next(self.batches)
        collected = time.perf_counter()
        after = data["next"]
        with torch.no_grad():
            rows = torch.cat([data[name].flatten(2) for name in SEEN], 2)
            last = torch.cat([after[name][:, -1].flatten(1) for name in SEEN], 1)
            value = (
                torch.cat([data["passed_value"], self.update.network(last)[:, None, 6:]], 1)
                .squeeze(2)
                .T
            )
            reward = after["reward"].squeeze(2).T.contiguous()
            cut = after["truncated"].squeeze(2)
            if cut.any():
                final = torch.cat([after[name][cut].flatten(1) for name in SEEN], 1)
                reward.T[cut] += self.update.task.discount * self.update.network(final)[:, 6]
            advantage = self.update.advantages(reward, after["done"].squeeze(2).T, value)
            action = ((data["action"] + self.limit) / (2 * self.limit)).clamp(1e-6, 1 - 1e-6)
        columns = (data["action_log_prob"].flatten(), advantage.T.flatten(), value[:-1].T.flatten())
        self.update.learn(rows.flatten(0, 1), action.flatten(0, 1), *columns)
        return collected - start, time.perf_counter() - collected


def make(task: Task) -> CollectorWithPlainUpdate:
    warnings.filterwarnings("ignore")
    torch.distributions.Distribution.set_default_validate_args(False)
    return CollectorWithPlainUpdate(task)
