"""The training loop: collect, learn, and now and then evaluate and save. Every process of the team runs it in step."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from navrl.config import Config, as_saved
from navrl.errors import RegistryError
from navrl.evaluate import OUTCOMES, Flights, conditions
from navrl.io.directory import CheckpointDirectory
from navrl.io.rollouts import RolloutStorage
from navrl.model import model_state, save_model
from navrl.monitor import MetricsLog, PerformanceMonitor
from navrl.train.denormals import flushed_denormals
from navrl.train.display import Display, Status
from navrl.train.folder import RunFolder
from navrl.train.publish import Publisher
from navrl.train.report import summary
from navrl.train.rollouts import keep_rollout
from navrl.train.stopping import StopRequest
from navrl.train.team import Team
from navrl.train.trainers import AnyTrainer, make_trainer

SUMMARY_INTERVAL = 100  # iterations between tables of where the time goes
SMOOTHED = 10  # iterations that the shown rates are taken over


@dataclass
class Order:
    """What every process of a team is told."""

    config: Config
    state: dict[str, Any] | None = None  # to go on from


@flushed_denormals()
def follow(team: Team, order: Order) -> None:
    """Train as one of the others, until the leader says that it is over."""
    trainer = make_trainer(order.config, team)
    if order.state is None:
        team.gather(trainer.own_state())
    _restore(trainer, order)
    while trainer.iteration < trainer.iterations:
        trainer.learn(trainer.collect())
        plan = team.share(None)
        if plan["evaluate"]:
            trainer.evaluate()
        if plan["save"]:
            team.gather(trainer.own_state())
        if plan["stop"]:
            return


@flushed_denormals()
def lead(
    team: Team, order: Order, folder: RunFolder, display: Display, stop: StopRequest, publisher: Publisher
) -> bool:  # fmt: skip
    """Train as the leader; return whether the training came to its end, or a signal came first."""
    config, begins = order.config, order.state is None
    trainer = make_trainer(config, team)
    _restore(trainer, order)
    if not folder.model_path.exists():
        trainer.best = None  # it is of another folder's model
    with (
        MetricsLog(folder.metrics) as metrics,
        CheckpointDirectory(
            folder.checkpoints, keep_last_n=config.keep_last_n, optimizers=trainer.optimizers,
            max_queue_size=config.async_checkpoint_queue_size, level=config.save_compression_level or None, on_error="warn",
        ) as checkpoints,
        RolloutStorage(
            folder.path / "rollouts", keep_last_n=config.rollout_keep_last_n or None, time_first=True, on_error="warn"
        ) as rollouts,
        RolloutStorage(folder.checkpoints, keep_last_n=config.keep_last_n, time_first=True, on_error="warn") as beside,
    ):  # fmt: skip
        metrics.rewind(trainer.iteration)
        record = _Record(trainer, folder, display, metrics, publisher)
        if begins:
            _save(trainer, team, checkpoints)  # so that a run killed before its first checkpoint can go on too
        while trainer.iteration < trainer.iterations:
            with record.monitor.timer("data_collection"):
                batch = trainer.collect()
            if config.rollout_save_interval and (trainer.iteration + 1) % config.rollout_save_interval == 0:
                with record.monitor.timer("rollout_save"):
                    keep_rollout(rollouts, trainer, batch, trainer.iteration + 1)
            checkpoints.saver.barrier()  # the update writes to critics outside of the optimisers too
            with record.monitor.timer("policy_training"):
                report = trainer.learn(batch)
            ends = trainer.iteration == trainer.iterations
            plan = _plan(config, trainer.iteration, ends, stop.signal is not None or record.failure is not None)
            team.share(plan)
            record.learnt(report)
            if plan["evaluate"]:
                with record.monitor.timer("evaluation"):
                    flights = trainer.evaluate()
                record.evaluated(flights)
            elif publisher.due(trainer.iteration):
                record.publish_present()
            if plan["save"]:
                with record.monitor.timer("checkpoint_save"):
                    _save(trainer, team, checkpoints, record.score if plan["evaluate"] else None)
                record.saved(checkpoints)
                if config.compress_lidar:
                    with record.monitor.timer("rollout_save"):
                        keep_rollout(beside, trainer, batch, trainer.iteration)
            record.show(report)
            if trainer.iteration % SUMMARY_INTERVAL == 0:
                record.summarise()
            if plan["stop"]:
                checkpoints.flush()
                beside.flush()
                if record.failure is not None:
                    raise record.failure
                display.note(f"stopped by a signal; `navrl train resume=auto run_folder={folder.path}` goes on")
                return False
        record.finished()
        checkpoints.flush()
        if record.failure is not None:
            raise record.failure
        return True


def _save(trainer: AnyTrainer, team: Team, checkpoints: CheckpointDirectory, score: dict[str, float] | None = None) -> None:
    """Save the state of the whole team in the background."""
    config = as_saved(trainer.config)
    state = trainer.shared_state() | {"ranks": team.gather(trainer.own_state()), "config": config}
    checkpoints.save(trainer.iteration, state, metrics=score, compress=trainer.config.compress_checkpoint)


def _restore(trainer: AnyTrainer, order: Order) -> None:
    if order.state is not None:
        trainer.load(order.state)
        order.state = None  # its memory is not needed twice


def _plan(config: Config, iteration: int, ends: bool, stop: bool) -> dict[str, Any]:
    """Return what all processes do after an iteration."""
    due = bool(config.eval_interval) and iteration % config.eval_interval == 0
    return {
        "evaluate": ends or due,
        "save": ends or stop or iteration % config.save_interval == 0,
        "stop": stop and not ends,
    }


class _Record:
    """What the leader tells the user, and the best model so far."""

    def __init__(
        self, trainer: AnyTrainer, folder: RunFolder, display: Display, metrics: MetricsLog, publisher: Publisher
    ) -> None:  # fmt: skip
        self.trainer, self.folder, self.display = trainer, folder, display
        self.metrics, self.publisher, self.tracker = metrics, publisher, publisher.tracking
        self.monitor = PerformanceMonitor()
        self._start, self._first = time.perf_counter(), trainer.iteration
        earlier = MetricsLog.read(folder.metrics, "eval")
        self._before = earlier[-1].get("seconds", 0.0) if earlier else 0.0  # what a resumed run took until its last evaluation
        self._recent: deque[dict[str, float]] = deque(maxlen=SMOOTHED)
        self._evaluation: dict[str, float] | None = None
        self.score: dict[str, float] | None = None  # of the last evaluation
        self._stall: float | None = None
        self.failure: RegistryError | None = None  # that ends the training after the next checkpoint
        self._checkpoints: dict[str, Any] = {}

    def learnt(self, report: dict[str, float]) -> None:
        """Log what an iteration did."""
        iteration, frames = self.trainer.iteration, self.trainer.frames
        self.metrics.write("train", iteration, frames=frames, **report)
        self.tracker.log(iteration, {"env_frames": frames} | {f"train/{name}": value for name, value in report.items()})

    def evaluated(self, flights: dict[str, Flights]) -> None:
        """Log an evaluation, and keep the model if none was better: by success, then by clearance."""
        trainer = self.trainer
        rows = {label: summary(flight) for label, flight in flights.items()}
        self._evaluation = {label: flight.rate("success_100")[0] for label, flight in flights.items()}
        seconds = self._before + time.perf_counter() - self._start
        self.metrics.write("eval", trainer.iteration, frames=trainer.frames, seconds=round(seconds, 2), conditions=rows)
        self.tracker.log(trainer.iteration, {f"eval/{label}": rate for label, rate in self._evaluation.items()})
        self.folder.save_evaluation(f"iteration_{trainer.iteration:06d}", rows)
        label, hardest = list(flights.items())[-1]
        clearance = hardest.of_successes("min_clearance")
        self.score = {"success": hardest.rate("success_100")[0], "clearance": clearance if clearance == clearance else 0.0}
        best, score = trainer.best, (self.score["success"], self.score["clearance"])
        told = ", ".join(f"{100 * rate:.1f} % among {label}" for label, rate in self._evaluation.items())
        self.display.note(f"iteration {trainer.iteration}: {told}")
        measured = {name: hardest.rate(name)[0] for name in OUTCOMES} | {"mean_return": rows[label]["mean_return"]}
        if best is None or score >= (best["success"], best["clearance"]):
            trainer.best = self.score | {"iteration": float(trainer.iteration)}
            self._keep(self.folder.model_path, rows)
            self._publish(self.folder.model_path, measured, label)
        elif self.publisher.wants(trainer.iteration, measured, label):
            self.publish_present(rows, measured, label)

    def publish_present(
        self, rows: dict[str, Any] | None = None, measured: dict[str, float] | None = None, label: str = ""
    ) -> None:  # fmt: skip
        """Hand the present model on, the best or not."""
        path = self.folder.path / "present.pt"
        self._keep(path, rows)
        self._publish(path, measured or {}, label)
        path.unlink(missing_ok=True)

    def finished(self) -> None:
        """Hand on the best model of a training that came to its end, and say where its time went."""
        if self.trainer.iteration % SUMMARY_INTERVAL:
            self.summarise()
        *_, label = conditions(self.trainer.config.task, self.trainer.config.flight)
        self._publish(self.folder.model_path, {}, label, final=True)

    def _keep(self, path: Path, rows: dict[str, Any] | None) -> None:
        trainer = self.trainer
        card = {"iteration": trainer.iteration, "frames": trainer.frames, "seed": trainer.config.seed, "evaluation": rows or {}}
        save_model(path, model_state(trainer.network, trainer.config.network, trainer.config.task, card))
        size = {"model/total_parameters": sum(p.numel() for p in trainer.network.parameters())}
        self.tracker.log(trainer.iteration, size | {"model/file_size_mb": path.stat().st_size / 1e6})

    def _publish(self, path: Path, measured: dict[str, float], label: str = "", *, final: bool = False) -> None:
        best = self.trainer.best
        iteration = int(best["iteration"]) if final and best is not None else self.trainer.iteration
        try:
            told = self.publisher.publish(path, iteration, measured, condition=label, final=final)
        except RegistryError as error:
            self.failure = error
            return
        if told:
            self.display.note(told)

    def saved(self, checkpoints: CheckpointDirectory) -> None:
        """Remember how long the last checkpoint held training up."""
        self._checkpoints = checkpoints.saver.get_stats()
        self._stall = 1000 * self.monitor.get_stats(1)["checkpoint_save"]["mean"]

    def show(self, report: dict[str, float]) -> None:
        """Show where the training stands."""
        trainer, seconds = self.trainer, time.perf_counter() - self._start
        self._recent.append(report)
        done = trainer.iteration - self._first
        totals = {name: values["total"] for name, values in self.monitor.get_stats(None).items()}
        seconds_left = seconds / done * (trainer.iterations - trainer.iteration)
        self.display.update(
            Status(
                iteration=trainer.iteration, iterations=trainer.iterations, frames=trainer.frames,
                total_frames=trainer.iterations * trainer.frames_per_iteration, seconds=seconds,
                frames_per_second=done * trainer.frames_per_iteration / seconds,
                success=self._rate("success_100"), collision=self._rate("static_collision") + self._rate("dynamic_collision"),
                out_of_bounds=self._rate("out_of_bounds"), time_out=self._rate("time_out"),
                episode_return=self._rate("return"), episode_length=self._rate("length"),
                policy_loss=report["policy_loss"], value_loss=report["value_loss"], kl=report["kl"],
                entropy=report["entropy"], learning_rate=report["learning_rate"], gradient_norm=report["gradient_norm"],
                explained_variance=report["explained_variance"],
                phases={name: total / seconds for name, total in totals.items()},
                stall_ms=self._stall, evaluation=self._evaluation, seconds_left=seconds_left,
            )
        )  # fmt: skip

    def _rate(self, name: str) -> float:
        """Return the mean of a statistic over the episodes of the last iterations."""
        counted = [(report["episodes"], report[f"episode/{name}"]) for report in self._recent if report["episodes"]]
        total = sum(count for count, _ in counted)
        return sum(count * value for count, value in counted) / total if total else float("nan")

    def summarise(self) -> None:
        """Print and log where the time went."""
        stats = {f"perf/{name}": values["mean"] for name, values in self.monitor.get_stats().items()}
        stats |= {f"checkpoint/{name}": value for name, value in self._checkpoints.items()}
        self.metrics.write("perf", self.trainer.iteration, **stats)
        self.tracker.log(self.trainer.iteration, stats)
        self.display.note(self.monitor.get_summary())
        counted = self._checkpoints
        if counted:
            self.display.note(
                f"checkpoints: {counted['saves']}, {counted['stored_bytes'] / 1e6:.1f} MB (ratio {counted['ratio']:.2f}), "
                f"stall {counted['stall_ms_p50']:.2f} ms median, {counted['stall_ms_max']:.2f} ms longest"
            )
