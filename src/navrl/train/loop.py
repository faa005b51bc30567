"""The training loop: collect, learn, and now and then evaluate and save. The other processes do
what the leader says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from navrl.config import NAVIGATION, Config, as_saved
from navrl.environments.task import Task
from navrl.io.rollouts.storage import RolloutStorage
from navrl.monitor import MetricsLog
from navrl.rl.networks.build import MakeFeatures
from navrl.train.denormals import flushed_denormals
from navrl.train.display import Display
from navrl.train.distributed.team import Team, TeamError
from navrl.train.run_folder import RunFolder
from navrl.train.run_log import SUMMARY_INTERVAL, RunLog
from navrl.train.saving.batches import keep_rollout
from navrl.train.saving.checkpoints import PATIENCE, CheckpointSaving
from navrl.train.saving.publisher import Publisher
from navrl.train.signals import StopRequest
from navrl.train.trainers import Trainer, make_trainer

# the steps that a team takes together
LEARN, EVALUATE, SAVE, STOP = ("learn", "evaluate", "save", "stop")


NOT_EXACT = (
    "{name} cannot save its episodes: new ones begin here, so that this run goes on, but not bit "
    "for bit as if it had not been interrupted"
)


@dataclass
class Order:
    """What every process of a team is told."""

    config: Config
    state: dict[str, Any] | None = None  # to go on from
    weights: dict[str, Tensor] | None = None  # to begin with, instead of random ones
    # what a caller made itself, for a team of one: environments and networks cannot be sent
    task: Task | None = None
    network: MakeFeatures | None = None


@dataclass(frozen=True)
class Ending:
    """How a training ended."""

    finished: bool  # False: it was stopped before its end
    problem: str = ""  # what could not be saved, and what to do; empty if everything was


@flushed_denormals()
def follow(team: Team, order: Order) -> None:
    """Train as one of the others: take each step that the leader shares, until it shares `STOP`.

    Between two steps every process waits for the leader, so it can save whatever happened to it
    there.
    """
    trainer = make_trainer(order.config, team)
    restore(trainer, order)
    while (step := team.broadcast(None)) != STOP:
        if step == LEARN:
            trainer.learn(trainer.collect())
        elif step == EVALUATE:
            trainer.evaluate()
        elif step == SAVE:
            team.gather(trainer.own_state())


@flushed_denormals()
def lead(
    team: Team,
    order: Order,
    folder: RunFolder,
    display: Display,
    stop: StopRequest,
    publisher: Publisher,
) -> Ending:
    """Train as the leader until the end, a signal, or checkpoints that fail; return how it
    ended.
    """
    config, begins = order.config, order.state is None
    trainer = make_trainer(config, team, order.task, order.network)
    if not begins and not trainer.task.exact:
        display.note(NOT_EXACT.format(name=trainer.task.name))
    restore(trainer, order)
    if not folder.model_path.exists():
        trainer.best = None  # it is of another folder's model
    with (
        stop.deferring(),
        MetricsLog(folder.metrics, on_error="hold") as metrics,
        CheckpointSaving(folder.checkpoints, config, trainer.optimizers) as saving,
        _storage(folder.path / "rollouts", config.rollout_keep_last_n or None) as rollouts,
        # without rules of its own: a batch is removed with its checkpoint
        _storage(folder.checkpoints, None) as beside,
    ):
        metrics.rewind(trainer.iteration)
        record = RunLog(trainer, folder, display, metrics, publisher)
        leader = _Leader(team, trainer, folder, stop, record, saving, rollouts, beside)
        if begins:
            leader.save()  # a run killed early can go on too
        ending = leader.train()
        team.broadcast(STOP)
    # From here on a signal raises Stopped. One that came later than the last iteration's plan was
    # only noted.
    return replace(ending, finished=ending.finished and stop.signal is None)


def _storage(folder: Path, keep_last_n: int | None) -> RolloutStorage:
    return RolloutStorage(folder, keep_last_n=keep_last_n, time_first=True, on_error="warn")


def restore(trainer: Trainer, order: Order) -> None:
    """Give a trainer the state or the weights that it starts from, in every process the same."""
    if order.state is not None:
        trainer.load(order.state)
    elif order.weights is not None:
        trainer.network.load_state_dict(order.weights)
    order.state = order.weights = None  # their memory is not needed twice


@dataclass
class _Leader:
    """The leader's part of the loop."""

    team: Team
    trainer: Trainer
    folder: RunFolder
    stop: StopRequest
    record: RunLog
    saving: CheckpointSaving
    rollouts: RolloutStorage
    beside: RolloutStorage
    gave_up: bool = False  # too many checkpoints in a row have failed
    saved: int = -1  # the last iteration that was handed to the saver

    def train(self) -> Ending:
        """Run iterations until the end, or until something stops the training; everything is
        flushed then.
        """
        trainer, stopped = self.trainer, False
        while trainer.iteration < trainer.iterations and not stopped:
            # Not saved after an error in here: the processes of a team are at different places of
            # the iteration, and no state of all of them exists. The last checkpoint is whole.
            batch, report = self._learn()
            try:
                plan = self._plan()
                self._follow_up(plan, batch, report)
            except Exception as error:
                if not isinstance(error, TeamError) and self.saved < trainer.iteration:
                    # the state between two iterations is whole, whatever failed after them
                    self.save()
                raise
            stopped = plan["stop"]
        if not stopped and self.stop.signal is None:
            self.record.finished()
        self.saving.flush()
        self.beside.flush()
        self.saving.prune()  # a batch may have been written after its checkpoint was removed
        self.record.checkpointed(self.saving, now=False)
        if self.record.failure is not None:
            raise self.record.failure
        return Ending(not stopped, self._problem())

    def _learn(self) -> tuple[Any, dict[str, float]]:
        """Fly a batch and learn from it."""
        trainer, monitor, config = self.trainer, self.record.monitor, self.trainer.config
        self.team.broadcast(LEARN)
        with monitor.timer("data_collection"):
            batch = trainer.collect()
        number = trainer.iteration + 1
        if config.rollout_save_interval and number % config.rollout_save_interval == 0:
            with monitor.timer("rollout_save"):
                keep_rollout(self.rollouts, trainer, batch, number)
        self.saving.barrier()  # the update writes to critics outside of the optimisers too
        with monitor.timer("policy_training"):
            return batch, trainer.learn(batch)

    def _plan(self) -> dict[str, Any]:
        """Return what is done after an iteration."""
        config, iteration = self.trainer.config, self.trainer.iteration
        ends = iteration == self.trainer.iterations
        due = bool(config.eval_interval) and iteration % config.eval_interval == 0
        self.gave_up = config.on_save_failure == "stop" and self.saving.gives_up and not ends
        stop = self.stop.signal is not None or self.record.failure is not None or self.gave_up
        requested = self.stop.take_save_request()
        return {
            "evaluate": ends or due,
            "save": ends or stop or requested or iteration % config.save_interval == 0,
            "stop": stop,
        }

    def _follow_up(self, plan: dict[str, Any], batch: Any, report: dict[str, float]) -> None:
        """Log an iteration, evaluate and save if it is due, and show where the training stands."""
        trainer, record = self.trainer, self.record
        record.learnt(report)
        if plan["evaluate"]:
            with record.monitor.timer("evaluation"):
                self.team.broadcast(EVALUATE)
                flights = trainer.evaluate()
            record.evaluated(flights)
        elif record.publisher.due(record.save_number):
            record.publish_present()
        if plan["save"]:
            with record.monitor.timer("checkpoint_save"):
                self.save(record.score if plan["evaluate"] else None)
            if trainer.config.compress_lidar:
                with record.monitor.timer("rollout_save"):
                    keep_rollout(self.beside, trainer, batch, trainer.iteration)
        record.checkpointed(self.saving, now=plan["save"])
        if self.stop.terminal_gone:
            record.display.close()
        else:
            record.show(report)
        if trainer.iteration % SUMMARY_INTERVAL == 0:
            record.summarise()

    def save(self, score: dict[str, float] | None = None) -> None:
        """Save the state of the whole team in the background."""
        trainer, config = self.trainer, self.trainer.config
        # may raise, so before the team is asked
        own, shared = (trainer.own_state(), trainer.shared_state())
        self.team.broadcast(SAVE)
        state = shared | {"ranks": self.team.gather(own), "config": as_saved(config)}
        if config.env.name != NAVIGATION:
            state["record"] = trainer.task.record(trainer.env)
        self.saving.save(trainer.iteration, state, score, config.compress_checkpoint)
        self.saved = trainer.iteration

    def _problem(self) -> str:
        """Return what could not be saved and what to do, in sentences; nothing if everything
        was.
        """
        status, told = self.saving.status, []
        if self.gave_up:
            told.append(
                f"training stopped after iteration {self.trainer.iteration}: {PATIENCE} "
                "checkpoints in a row failed"
            )
        if status.failure:
            told.append(f"the last checkpoint was not written: {status.failure}")
        if told:
            told.append(self.saving.newest())
            told.append(
                "free space or make the folder writable, then go on with "
                f"`navrl train resume=auto run_folder={self.folder.path}`"
                + (
                    " (on_save_failure=continue trains on without checkpoints)"
                    if self.gave_up
                    else ""
                )
            )
        if missing := self.record.missing():
            told.append(
                f"not written: {', '.join(missing[:5])}" + (", ..." if len(missing) > 5 else "")
            )
        return "; ".join(told)
