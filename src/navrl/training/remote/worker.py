"""A worker: environments and a copy of the policy, which return sealed batches. It knows no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from navrl.config import Config, as_saved, from_dict
from navrl.environments.table import find_task
from navrl.errors import ContainerError
from navrl.rl.accelerate import accelerate
from navrl.rl.collect import Collector
from navrl.rl.distributions.action_distribution import distribution_for
from navrl.rl.networks.build import build_policy_network
from navrl.rl.ppo import imitation_weight
from navrl.training.compile_kernels import compile_kernels
from navrl.training.denormals import flushed_denormals
from navrl.training.remote.contents import pack_batch, read_value
from navrl.training.remote.stamps import BATCH, WEIGHTS, Stamp, seal, unseal

__all__ = ["Worker", "worker_settings"]

SEEDS = 1 << 29  # evaluations have the seeds from here on


def worker_settings(config: Config) -> dict[str, Any]:
    """Return the settings of a training as its workers get them, without any password."""
    saved = as_saved(config)
    saved["device"] = "cpu"
    if config.collect.workers == 1:
        saved["sim"]["num_threads"] = config.collect.cpus  # several have one thread each
    return saved


class Worker:
    """Collects batches with the weights that it is given.

    Args:
        settings: see `worker_settings`.
        worker: its number, from 0.
        run: see `Stamp.run`.
        stream: 0: the random numbers that the training's seed gives this worker; else others, for
            one that takes the place of an earlier one.
    """

    def __init__(self, settings: Mapping[str, Any], worker: int, run: int, stream: int = 0) -> None:
        config = from_dict(settings)
        self.config, self.worker, self.run, self.number = config, worker, run, 0
        torch.set_num_threads(config.collect.cpus)
        task = find_task(config)
        if task.compiles:
            compile_kernels(config)
        seed = config.seed * 1024 + worker
        self.env = task.make(worker, config.collect.workers)
        if stream:
            self.env.reset(seed=(seed + stream) % SEEDS)
        with torch.random.fork_rng(devices=[]):
            self.network = build_policy_network(
                config.network, self.env.observation, self.env.action
            ).requires_grad_(False)
        self.collector = Collector(
            self.env,
            self.env.observe(),
            accelerate(self.network),
            config.algo.training_frame_num,
            distribution_for(self.env.action),
            torch.Generator().manual_seed(seed + (stream << 32)),
        )

    @flushed_denormals()
    def collect(self, message: bytes) -> bytes:
        """Return the next batch, sealed, collected with the weights of a message.

        Raises:
            ContainerError: the weights are damaged, or of another training.
        """
        stamp, contents = unseal(WEIGHTS, message)
        if stamp.run != self.run:
            raise ContainerError(f"weights of the training {stamp.run:x}; expected {self.run:x}")
        given = read_value(contents)
        self.network.load_state_dict(given["weights"])
        progress = given["progress"]
        self.env.set_progress(progress)
        advised = imitation_weight(self.config.algo, progress) > 0
        # the learner computes the values
        batch = self.collector.collect(0.0, 1.0, advised=advised)
        packed = pack_batch(batch, self.env.observation, compress=self.config.collect.compress)
        self.number += 1
        return seal(BATCH, Stamp(self.run, stamp.version, self.worker, self.number), packed)
