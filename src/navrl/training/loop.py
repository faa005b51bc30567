"""The training loop: collect, learn, and at intervals evaluate and save.

All processes take the same steps. Rank 0 leads: it decides, logs and saves. The other ranks follow:
they take each step that the leader broadcasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from navrl.conf.collect_settings import RAY
from navrl.config import NAVIGATION, Config, as_dict, as_saved, from_dict
from navrl.environments.task import Task
from navrl.errors import ConfigError
from navrl.metrics_log import MetricsLog
from navrl.rl.accelerate import slow_path
from navrl.rl.networks.build import MakeFeatures
from navrl.training.denormals import flushed_denormals
from navrl.training.display import Display
from navrl.training.distributed.team import Team, TeamError
from navrl.training.resume.training_state import rank_states
from navrl.training.run_folder import RunFolder
from navrl.training.run_log import RunLog
from navrl.training.saving.publisher import Publisher
from navrl.training.saving.rank_parts import RANKS, PartSaver, PartsOfOthers
from navrl.training.saving.run_files import RunFiles
from navrl.training.signals import StopRequest
from navrl.training.trainers import Trainer, make_trainer

# the steps that all processes take together
LEARN, EVALUATE, SAVE, STOP = ("learn", "evaluate", "save", "stop")


NOT_EXACT = (
    "{name} cannot save its episodes: new ones begin here, so this run continues, but not bit "
    "for bit as if it had not been interrupted"
)
OTHER_SIZE = (
    "the number of processes was {before} and is {now}: new episodes begin here, so this run "
    "continues, but not bit for bit as if it had not been interrupted"
)


@dataclass
class Start:
    """What every process starts from; neither state nor weights: from random weights."""

    config: Config
    state: dict[str, Any] | None = None  # a saved training state to resume
    weights: dict[str, Tensor] | None = None  # the weights of a policy
    # what a caller made itself, for a team of one: environments and networks cannot be sent
    task: Task | None = None
    network: MakeFeatures | None = None
    checkpoints: Path = Path()  # the folder for ranks other than 0

    def send(self, team: Team, checkpoints: Path) -> None:
        """Send it from rank 0 to the other ranks, each of which gets its own part of the state."""
        shared: dict[str, Any] | None = None
        parts: list[dict[str, Any] | None] = [None] * team.size
        if self.state is not None:
            shared = {name: part for name, part in self.state.items() if name != "ranks"}
            parts = rank_states(self.state, team.size)
        folder = str(checkpoints.absolute())
        team.broadcast([as_dict(self.config), folder, shared, self.weights])
        team.scatter(parts)

    @classmethod
    def receive(cls, team: Team) -> Start | None:
        """Return what rank 0 sends; None if it has nothing to train."""
        order = team.broadcast(None)
        if order is None:
            return None
        config, folder, state, weights = order
        own = team.scatter([])
        if state is not None:
            state["ranks"] = [own if rank == team.rank else None for rank in range(team.size)]
        return cls(from_dict(config), state, weights, checkpoints=Path(folder))


@dataclass(frozen=True)
class Ending:
    """How a training ended."""

    finished: bool  # False: stopped before its last iteration
    problem: str = ""  # what was not saved and what to do about it; empty if everything was


@flushed_denormals()
def follow(team: Team) -> bool:
    """Train as a rank other than 0: take each step that the leader broadcasts, until `STOP`.

    All ranks wait for the leader between steps, so it can save the state of all of them there.

    Returns:
        Whether a signal stopped the leader.
    """
    start = Start.receive(team)
    if start is None:
        return False
    _check_shares_folder(start.checkpoints, team)
    trainer = make_trainer(start.config, team)
    restore(trainer, start)
    with PartSaver(start.checkpoints, start.config, team) as parts:
        while (order := team.broadcast(None))[0] != STOP:
            step, *sequence = order
            if step == LEARN:
                trainer.learn(trainer.collect())
            elif step == EVALUATE:
                trainer.evaluate()
            elif step == SAVE:
                parts.save(trainer.iteration, sequence[0], trainer.own_state())
    return bool(order[1])


def _check_shares_folder(folder: Path, team: Team) -> None:
    """Raise a ConfigError if this machine does not see the folder that rank 0 has made."""
    if not folder.is_dir():
        raise ConfigError(
            f"rank {team.rank} does not see {folder}, the folder of rank 0; expected run_folder on "
            "a file system that all machines share, under the same path"
        )


@flushed_denormals()
def lead(
    team: Team,
    start: Start,
    folder: RunFolder,
    display: Display,
    stop: StopRequest,
    publisher: Publisher,
) -> Ending:
    """Train as rank 0 until the last iteration, a signal, or failing checkpoints."""
    start.send(team, folder.checkpoints)
    trainer = make_trainer(start.config, team, start.task, start.network)
    resumed = start.state is not None
    if start.state is not None and (name := _unsaved(trainer, start.state)):
        display.note(NOT_EXACT.format(name=name))
    elif start.state is not None and len(start.state["ranks"]) != team.size:
        display.note(OTHER_SIZE.format(before=len(start.state["ranks"]), now=team.size))
    restore(trainer, start)
    if not folder.model_path.exists():
        trainer.best = None  # it describes the model of another folder
    with (
        closing(trainer),
        stop.deferring(),
        MetricsLog(folder.metrics, on_error="hold") as metrics,
        RunFiles(folder, trainer) as files,
        PartsOfOthers(team) as parts,
    ):
        metrics.rewind(trainer.iteration)
        log = RunLog(trainer, folder, display, metrics, publisher)
        leader = _Leader(team, trainer, stop, log, files, parts, as_saved(trainer.config))
        if reason := slow_path(trainer.applied):
            display.note(reason)
        if not resumed:
            leader.save()  # a run that is killed before its first interval can be resumed too
        stopped, problem = leader.train(), leader.problem()
        team.broadcast([STOP, stop.signal is not None])
    # A signal after the last iteration's plan was only noted; from here on it raises Stopped.
    return Ending(not stopped and stop.signal is None, problem)


def _unsaved(trainer: Trainer, state: Mapping[str, Any]) -> str:
    """Return what could not save its episodes, now or when the state was saved; "" if all could."""
    if trainer.config.collect.name == RAY or "remote" in state:
        return "remote collection"
    return "" if trainer.task.exact else trainer.task.name


def restore(trainer: Trainer, start: Start) -> None:
    """Load the state or the weights that a trainer starts from, and free their memory."""
    if start.state is not None:
        trainer.load(start.state)
    elif start.weights is not None:
        trainer.network.load_state_dict(start.weights)
    start.state = start.weights = None


@dataclass(frozen=True)
class _Plan:
    """What is done after an iteration."""

    evaluate: bool
    save: bool
    stop: bool


@dataclass
class _Leader:
    """The leader's side of the loop."""

    team: Team
    trainer: Trainer
    stop: StopRequest
    log: RunLog
    files: RunFiles
    parts: PartsOfOthers
    saved_config: dict[str, Any]  # as every checkpoint has it
    gave_up: bool = False  # too many checkpoints in a row have failed
    last_saved: int = -1  # iteration

    def train(self) -> bool:
        """Run iterations; return whether the training was stopped before the last one."""
        stopped = False
        while self.trainer.iteration < self.trainer.iterations and not stopped:
            batch = self._collect()
            report = self._learn(batch)
            with self._saved_on_error():
                plan = self._plan()
                self.log.iteration(report)
                if plan.evaluate:
                    self._evaluate()
                elif self.log.publication_due:
                    self.log.publish_current()
                if plan.stop and self.stop.signal is not None:
                    self.log.display.note("saving a checkpoint before the training stops")
                if plan.save:
                    self.save(batch, evaluated=plan.evaluate)
                self.log.checkpoints(self.files.checkpoints, after_save=plan.save)
                self._show(report)
            stopped = plan.stop
        if not stopped and self.stop.signal is None:
            self.log.finished()
        self.files.flush()
        self.log.checkpoints(self.files.checkpoints, after_save=False)
        if self.log.failure is not None:
            raise self.log.failure
        return stopped

    # An error in the first two steps is not followed by a save: the ranks are at different places
    # of the iteration, so there is no state of all of them. The last checkpoint is whole.

    def _collect(self) -> Any:
        self.team.broadcast([LEARN])
        with self.log.monitor.timer("data_collection"):
            batch = self.trainer.collect()
        if self.files.rollout_due:
            with self.log.monitor.timer("rollout_save"):
                self.files.keep_rollout(batch)
        return batch

    def _learn(self, batch: Any) -> dict[str, float]:
        # the update also writes to critics that no optimiser owns
        self.files.checkpoints.barrier()
        with self.log.monitor.timer("policy_training"):
            return self.trainer.learn(batch)

    def _plan(self) -> _Plan:
        config, iteration = self.trainer.config, self.trainer.iteration
        last = iteration == self.trainer.iterations
        failing = self.files.checkpoints.gives_up and config.on_save_failure == "stop"
        self.gave_up = failing and not last
        stop = self.stop.signal is not None or self.log.failure is not None or self.gave_up
        requested = self.stop.take_save_request()
        return _Plan(
            evaluate=last or _due(iteration, config.eval_interval),
            save=last or stop or requested or _due(iteration, config.save_interval),
            stop=stop,
        )

    def _evaluate(self) -> None:
        with self.log.monitor.timer("evaluation"):
            self.team.broadcast([EVALUATE])
            flights = self.trainer.evaluate()
        self.log.evaluation(flights)

    def save(self, batch: Any = None, *, evaluated: bool = False) -> None:
        """Save the state of all ranks in the background, with the metrics of an evaluation."""
        trainer = self.trainer
        with self.log.monitor.timer("checkpoint_save"):
            # may raise, so before the other ranks are asked
            own, shared = trainer.own_state(), trainer.shared_state()
            sequence = self.files.checkpoints.directory.next_sequence()
            self.team.broadcast([SAVE, sequence])
            state = shared | {RANKS: [own], "config": self.saved_config}
            if trainer.config.env.name != NAVIGATION:
                state["record"] = trainer.task.record(trainer.env)
            parts = partial(self.parts.wait, sequence) if self.team.size > 1 else None
            self.files.save(state, self.log.score if evaluated else None, sequence, parts)
        self.last_saved = trainer.iteration
        if batch is not None and trainer.config.compress_lidar:
            with self.log.monitor.timer("rollout_save"):
                self.files.keep_last_batch(batch)

    @contextmanager
    def _saved_on_error(self) -> Iterator[None]:
        """Save on an exception between two iterations, where the state of all ranks is whole."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, TeamError) and self.last_saved < self.trainer.iteration:
                self.save()
            raise

    def _show(self, report: dict[str, float]) -> None:
        if self.stop.terminal_gone:
            self.log.display.close()
        else:
            self.log.show(report)
        self.log.summarise_if_due()

    def problem(self) -> str:
        """Return what was not saved and what to do about it; empty if everything was."""
        sentences = self.files.problems(self.gave_up)
        if missing := self.log.missing():
            more = ", ..." if len(missing) > 5 else ""
            sentences.append(f"not written: {', '.join(missing[:5])}{more}")
        return "; ".join(sentences)


def _due(iteration: int, interval: int) -> bool:
    return bool(interval) and iteration % interval == 0
