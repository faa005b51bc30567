"""PPO from batches of remote workers: the learner's part, in one process."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from navrl.config import Config
from navrl.environments.task import Task
from navrl.errors import ConfigError
from navrl.rl.collect import Rollout
from navrl.rl.environment import Environment
from navrl.rl.networks.build import MakeFeatures
from navrl.rl.off_policy import join_rollouts, reweighted
from navrl.training.distributed.team import Team
from navrl.training.ppo_trainer import PPOTrainer
from navrl.training.remote.collection import Counts, Received, RemoteCollection
from navrl.training.remote.contents import pack_value, read_batch
from navrl.training.remote.stamps import WEIGHTS, Stamp, seal
from navrl.training.remote.workers import Workers

__all__ = ["RemoteTrainer"]

MakeWorkers = Callable[[Config, int, int], Workers]  # settings, run, stream


def ray_workers(config: Config, run: int, stream: int) -> Workers:
    """Return workers on the Ray cluster that the settings name."""
    from navrl.training.remote.ray_workers import RayWorkers

    return RayWorkers(config, run, stream=stream)


class RemoteTrainer(PPOTrainer):
    """Learns from batches that workers collect, corrected for the weights that acted.

    An iteration takes as many batches as there are workers, from whichever come first, so that it
    has as many frames as one of local collection. Episodes live in the workers: they are not saved,
    and a resumed training begins new ones.

    Args:
        config: the settings.
        team: of one process.
        task: must be None: workers make their environments from the settings.
        network: must be None, likewise.
        make_workers: starts the workers.
    """

    def __init__(
        self,
        config: Config,
        team: Team,
        task: Task | None = None,
        network: MakeFeatures | None = None,
        make_workers: MakeWorkers = ray_workers,
    ) -> None:
        if task is not None or network is not None:
            raise ConfigError(
                "collect=ray: an environment or network that was given as an object cannot be sent "
                "to workers; expected one by name, env.target=module:name or network.target"
            )
        super().__init__(config, team)
        self._make_workers = make_workers
        self._collection: RemoteCollection | None = None
        self._run = secrets.randbits(63)
        self._missing = 0  # frames that were not there at an iteration's deadline
        self._before, self._staleness = Counts(), [0]
        self._note = ""

    def make_environment(self) -> Environment:
        """Return one worker's part of the environments, which tells what all of them are like."""
        return self.task.make(0, self.config.collect.workers)

    @property
    def frames(self) -> int:
        """Steps of all environments that were learned from so far."""
        return super().frames - self._missing

    def collect(self) -> Rollout:
        """Return batches of the workers as one, reweighted for the present policy."""
        collection = self._collection or self._open()
        taken = collection.take(self.config.collect.workers)
        self._staleness = [self.iteration - one.stamp.version for one in taken]
        batch = join_rollouts([self._reweighted(one) for one in taken])
        self._missing += self.frames_per_iteration - batch.reward.numel()
        return batch

    def learn(self, batch: Rollout) -> dict[str, float]:
        """Update the policy from a batch, send its weights to the workers, and return metrics."""
        report = super().learn(batch)
        self._publish()
        return report | self._metrics(batch)

    def news(self) -> list[str]:
        """Return sentences about the workers for the display, once each."""
        told = [self._note] if self._note else []
        self._note = ""
        return [*told, *(self._collection.news() if self._collection else [])]

    @property
    def collection(self) -> str:
        """The state of the workers in one line."""
        if self._collection is None:
            return ""
        counts = self._collection.counts
        dropped = ", ".join(
            f"{number} {name}"
            for name, number in vars(counts).items()
            if number and name in ("stale", "damaged", "lost")
        )
        staleness = sum(self._staleness) / len(self._staleness)
        return (
            f"{self._collection.delivering} of {self.config.collect.workers} workers, staleness "
            f"{staleness:.1f}, {counts.batch_bytes / 1e6:.2f} MB a batch"
            + (f", dropped: {dropped}" if dropped else "")
        )

    def close(self) -> None:
        """End the workers."""
        if self._collection is not None:
            self._collection.close()
            self._collection = None

    # ------------------------------------------------------------------ saving

    def own_state(self) -> dict[str, Any]:
        """Return the state of this rank; episodes are not part of it."""
        return super().own_state() | {"env": None}

    def shared_state(self) -> dict[str, Any]:
        """Return the state that all ranks have in common; live tensors."""
        return super().shared_state() | {"remote": {"missing_frames": self._missing}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, also from one of local collection, with new episodes."""
        ranks = state.get("ranks")
        if isinstance(ranks, list):
            state = {**state, "ranks": [rank and {**rank, "env": None} for rank in ranks]}
        super().load(state)
        self._missing = int(state.get("remote", {}).get("missing_frames", 0))

    # ------------------------------------------------------------------ workers

    def _open(self) -> RemoteCollection:
        collect, layout = self.config.collect, self.env.observation
        workers = self._make_workers(self.config, self._run, self.iteration)
        read = partial(read_batch, layout=layout, compress=collect.compress)
        self._collection = RemoteCollection(workers, collect, self._run, read)
        self._note = workers.describe()
        self._publish()
        return self._collection

    def _publish(self) -> None:
        if self._collection is None:
            return
        weights = {name: value.cpu() for name, value in self.network.state_dict().items()}
        contents = {"weights": weights, "progress": min(self.iteration / self.iterations, 1.0)}
        stamp = Stamp(self._run, self.iteration)
        self._collection.publish(self.iteration, seal(WEIGHTS, stamp, pack_value(contents)))

    def _reweighted(self, one: Received) -> Rollout:
        device, batch = self.generator.device, one.batch
        for name, value in vars(batch).items():
            if value is not None:
                setattr(batch, name, value.to(device))
        statistics = self.ppo.normaliser.statistics()
        return reweighted(batch, self.applied, self.distribution, *statistics)

    def _metrics(self, batch: Rollout) -> dict[str, float]:
        """Return what this iteration counted, by name."""
        if self._collection is None or batch.importance is None:
            return {}
        frames = self.frames_per_iteration / self.config.collect.workers  # of a batch
        counted = self._collection.counts.since(self._before)
        self._before = copy.copy(self._collection.counts)
        return {f"collect/{name}": float(number) for name, number in counted.items()} | {
            "collect/workers": float(self._collection.delivering),
            "collect/staleness": sum(self._staleness) / len(self._staleness),
            "collect/staleness_max": float(max(self._staleness)),
            "collect/frames": float(batch.reward.numel()),
            "collect/bytes_per_frame": self._before.batch_bytes / frames,
            "collect/importance": float(batch.importance.mean()),
        }
