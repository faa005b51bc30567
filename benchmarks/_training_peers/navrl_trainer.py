"""NavRL's own trainer, as `navrl train` starts it: one process of one thread for each core that it
may use.

The settings are the original's (`algo=ppo_exact network=navrl`), which are those of the task: four
epochs, clipping at 0.1, clipped Huber loss. Beyond what the peers do, it normalises returns and
sums statistics and gradients over the processes.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from torch.distributed import FileStore

from _training_peers.task import Task
from navrl.config import Config, load_config
from navrl.training.distributed.team import Team, connected
from navrl.training.ppo_trainer import PPOTrainer


def configuration(task: Task) -> Config:
    """Return the trainer's settings for the task."""
    rates = [
        f"algo.{part}.learning_rate={task.learning_rate}"
        for part in ("feature_extractor", "actor", "critic")
    ]
    clips = [f"algo.{part}.clip_ratio={task.clip}" for part in ("actor", "critic")]
    return load_config(
        [
            "algo=ppo_exact",
            "network=navrl",
            "algo.policy_coefficient=1.0",
            "algo.clip_heads_only=false",
            f"processes={task.threads}",
            f"env.num_envs={task.drones}",
            f"env.num_worlds={task.worlds}",
            "env.action_repeat=1",
            "env_dyn.obstacles_per_world=[]",
            f"algo.training_frame_num={task.steps}",
            f"algo.training_epoch_num={task.epochs}",
            f"algo.num_minibatches={task.minibatches}",
            *rates,
            *clips,
            f"algo.entropy_loss_coefficient={task.entropy}",
            f"algo.huber_delta={task.huber}",
            f"algo.gamma={task.discount}",
            f"algo.gae_lambda={task.trace}",
            f"algo.max_grad_norm={task.gradient_norm}",
        ]
    )


def follow(team: Team, task: Task) -> None:
    """Iterate whenever the leader does; what waits in between sleeps in a receive."""
    trainer = PPOTrainer(configuration(task), team)
    while team.broadcast(None):
        trainer.learn(trainer.collect())


def assemble(
    size: int, follow: Callable[[Team, Any], None], argument: Any, held: ExitStack
) -> Team:
    """Return rank 0 of a team; the other ranks are new processes that end with this one."""
    if size == 1:
        return Team()
    store = Path(held.enter_context(tempfile.TemporaryDirectory())) / "store"
    context = multiprocessing.get_context("spawn")
    for rank in range(1, size):
        words = (rank, size, store, follow, argument)
        context.Process(target=_join, args=words, daemon=True).start()
    return held.enter_context(_connected(0, size, store))


def _join(
    rank: int, size: int, store: Path, follow: Callable[[Team, Any], None], argument: Any
) -> None:
    with _connected(rank, size, store) as team:
        follow(team, argument)


def _connected(rank: int, size: int, store: Path) -> AbstractContextManager[Team]:
    return connected(rank, size, FileStore(str(store), size), one_machine=True)


class Leader:
    """The first process of the team. The others end with it."""

    def __init__(self, task: Task) -> None:
        self.held = ExitStack()  # the team lasts as long as this does
        self.team = assemble(task.threads, follow, task, self.held)
        self.trainer = PPOTrainer(configuration(task), self.team)

    def iterate(self) -> tuple[float, float]:
        self.team.broadcast(True)
        start = time.perf_counter()
        batch = self.trainer.collect()
        collected = time.perf_counter()
        self.trainer.learn(batch)
        return collected - start, time.perf_counter() - collected


def make(task: Task) -> Leader:
    return Leader(task)
