"""The leader's log of a training: metrics, evaluations, the best model, and the display."""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from navrl.errors import RegistryError
from navrl.evaluation import Flights
from navrl.metrics_log import MetricsLog
from navrl.models import model_state, save_model
from navrl.monitor import PerformanceMonitor
from navrl.registry.metric_names import evaluation_metrics, metric_value
from navrl.registry.upload_policy import is_better, told_best
from navrl.training.display import Display
from navrl.training.run_folder import RunFolder
from navrl.training.saving.checkpoints import CheckpointSaving, FileWrites, SaveStatus, reason_of
from navrl.training.saving.publisher import Publisher
from navrl.training.status import Status
from navrl.training.trainers import Trainer

SUMMARY_INTERVAL = 100  # iterations between timing tables
SMOOTHED = 10  # iterations in the moving average of the displayed rates
# metrics of the last evaluation that a checkpoint carries
KEPT_METRICS = ("success_rate", "mean_reward", "episode_length", "min_clearance")


class RunLog:
    """Logs every iteration and evaluation, keeps the best model, updates the display.

    A file that cannot be written is reported once and retried after each checkpoint.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        display: Display,
        metrics: MetricsLog,
        publisher: Publisher,
    ) -> None:
        self.trainer, self.folder, self.display = trainer, folder, display
        self.metrics, self.publisher, self.tracker = metrics, publisher, publisher.tracking
        self.monitor = PerformanceMonitor()
        self.writes = FileWrites()
        self.score: dict[str, float] | None = None  # of the last evaluation
        self.failure: RegistryError | None = None  # ends the training after the next checkpoint
        self._start, self._first = time.perf_counter(), trainer.iteration
        self._last_iteration_end = self._start
        self._seconds_before = _seconds_before(folder.metrics)
        self._recent: deque[dict[str, float]] = deque(maxlen=SMOOTHED)
        self._evaluation: dict[str, float] | None = None  # what `_headline` is, by condition
        self._headline = ""
        # the best of all evaluations; trainer.best belongs to the model on disk
        self._best = _comparable(trainer.best, folder.metrics, trainer.task.conditions[-1])
        self._metrics_failed = False
        self._stall: float | None = None
        self._saves, self._save_statistics = SaveStatus(), dict[str, float]()

    def iteration(self, report: dict[str, float]) -> None:
        """Log the metrics of an iteration."""
        iteration, frames, now = self.trainer.iteration, self.trainer.frames, time.perf_counter()
        for sentence in self.trainer.news():
            self.display.note(sentence)
        self._log("train", frames=frames, **report)
        values = {f"train/{name}": value for name, value in report.items()}
        values |= {
            "env_frames": frames,
            "train/step": iteration,
            "perf/frames_per_second": self.trainer.frames_per_iteration
            / (now - self._last_iteration_end),
        }
        self._last_iteration_end = now
        self.tracker.log(iteration, values)

    def evaluation(self, flights: dict[str, Flights]) -> None:
        """Log an evaluation and keep the model if it is the best so far."""
        trainer = self.trainer
        rows = {label: trainer.task.summary(flight) for label, flight in flights.items()}
        headlines = {label: trainer.task.headline(row) for label, row in rows.items()}
        self._evaluation = {label: value for label, (_, value) in headlines.items()}
        self._headline = next(iter(headlines.values()))[0]
        *_, hardest = rows
        measured = evaluation_metrics(rows[hardest])
        self.score = {name: measured[name] for name in KEPT_METRICS if name in measured}
        seconds = self._seconds_before + time.perf_counter() - self._start
        named = {f"eval/{name}": value for name, value in measured.items()}
        self._log(
            "eval", frames=trainer.frames, seconds=round(seconds, 2), conditions=rows, **named
        )
        shown = {f"eval/{label}": rate for label, rate in self._evaluation.items()}
        self.tracker.log(trainer.iteration, shown | named)
        name = f"iteration_{trainer.iteration:06d}"
        path = self.folder.evaluations / f"{name}.json"
        self._write(path, lambda: self.folder.save_evaluation(name, rows))
        self._keep_best(rows, measured, hardest)

    def _keep_best(self, rows: dict[str, Any], measured: dict[str, float], label: str) -> None:
        """Write and publish the model if it is the best; else publish it if the policy wants it."""
        trainer, policy, values = self.trainer, self.publisher.policy, self._evaluation or {}
        better = is_better(policy, measured, self._best)
        told = ", ".join(
            f"{100 * value:.1f} % {'among' if condition[:1].isdigit() else 'in'} {condition}"
            if self._headline == "success"
            else f"{self._headline} {value:.5g} in {condition}"
            for condition, value in values.items()
        )
        best = f"; {told_best(policy, measured)} so far" if better else ""
        self.display.note(f"iteration {trainer.iteration}: {told}{best}")
        unranked = metric_value(self._best or {}, policy.best_model_metric) is None
        if better or unranked:  # until one has a value, the newest is kept
            self._best = measured | {"iteration": float(trainer.iteration)}
            kept = self._best
            state = self._model(rows)
            iteration = trainer.iteration
            save = self.save_number

            def write() -> None:
                size = self._save(self.folder.model_path, state, iteration)
                trainer.best = kept
                self._log_best(iteration, measured, size)
                self._publish(self.folder.model_path, iteration, measured, label, save=save)

            self._write(self.folder.model_path, write)
        elif self.publisher.wants(measured, label, self.save_number):
            self.publish_current(rows, measured, label)

    @property
    def save_number(self) -> int:
        """The number of the checkpoint that is due now, from 1; 0 if none is.

        Checkpoints at the end or on a signal have no number, so a run that was stopped and resumed
        publishes the same models as an uninterrupted one.
        """
        count, rest = divmod(self.trainer.iteration, self.trainer.config.save_interval)
        return 0 if rest else count

    def _log_best(self, iteration: int, measured: dict[str, float], size: dict[str, float]) -> None:
        best = {f"best_model/{name}": value for name, value in measured.items()} | {
            "best_model/step": iteration
        }
        self._log("best_model", **best, **size)
        self.tracker.log(iteration, best)

    @property
    def publication_due(self) -> bool:
        """Whether the upload policy may want the model of this iteration without an evaluation."""
        return self.publisher.due(self.save_number)

    def publish_current(
        self,
        rows: dict[str, Any] | None = None,
        measured: dict[str, float] | None = None,
        label: str = "",
    ) -> None:
        """Publish the current model, whether it is the best or not."""
        path, iteration = self.folder.path / "present.pt", self.trainer.iteration
        try:
            self._save(path, self._model(rows), iteration)
            self._publish(path, iteration, measured or {}, label, save=self.save_number)
        except OSError as error:
            self.writes.failed += 1
            self.display.note(
                f"the model of iteration {iteration} was not published: {reason_of(error)}"
            )
        finally:
            with suppress(OSError):  # on a read-only disk; the next model overwrites it
                path.unlink()

    def finished(self) -> None:
        """Publish the best model after the last iteration, and print the timing table."""
        iteration = self.trainer.iteration
        if iteration > self._first and iteration % SUMMARY_INTERVAL:
            self._summarise()
        if self.folder.model_path.exists() and self.folder.model_path not in self.writes.pending:
            label = self.trainer.task.conditions[-1]
            best = (
                int(self.trainer.best["iteration"]) if self.trainer.best is not None else iteration
            )
            self._publish(self.folder.model_path, best, {}, label, final=True)

    def _model(self, rows: dict[str, Any] | None) -> dict[str, Any]:
        trainer = self.trainer
        card = {
            "iteration": trainer.iteration,
            "frames": trainer.frames,
            "seed": trainer.config.seed,
            "evaluation": rows or {},
        }
        record = trainer.task.record(trainer.env)
        return model_state(trainer.policy_network, trainer.config.network, record, card)

    def _save(self, path: Path, state: dict[str, Any], iteration: int) -> dict[str, float]:
        """Write a model; log and return its size."""
        save_model(path, state)
        parameters = sum(parameter.numel() for parameter in self.trainer.network.parameters())
        size = {
            "model/total_parameters": parameters,
            "model/file_size_mb": path.stat().st_size / 1e6,
        }
        self.tracker.log(iteration, size)
        return size

    def _publish(
        self,
        path: Path,
        iteration: int,
        measured: dict[str, float],
        label: str,
        *,
        save: int = 0,
        final: bool = False,
    ) -> None:
        try:
            told = self.publisher.publish(
                path, iteration, measured, condition=label, save=save, final=final
            )
        except RegistryError as error:
            self.failure = error
            return
        if told:
            self.display.note(told)

    # ------------------------------------------------------------------ writes that may fail

    def _log(self, kind: str, **values: Any) -> None:
        """Write a record to metrics.jsonl; report the first failure and the recovery."""
        self.metrics.write(kind, self.trainer.iteration, **values)
        failed = bool(self.metrics.failure)
        if failed and not self._metrics_failed:
            self.display.note(
                f"{self.metrics.path} cannot be written: {self.metrics.failure}; "
                "its records are held in memory and written as soon as possible"
            )
        elif self._metrics_failed and not failed:
            self.display.note(f"{self.metrics.path} is written again")
        self.writes.failed += failed and not self._metrics_failed
        self._metrics_failed = failed

    def _write(self, path: Path, write: Any) -> None:
        if failure := self.writes.attempt(path, write):
            self.display.note(
                f"{path} was not written: {failure}; it is tried again after each checkpoint"
            )

    def checkpoints(self, saving: CheckpointSaving, *, after_save: bool) -> None:
        """Show how the checkpoints went; after a save, retry the writes that failed before."""
        for sentence in saving.news():
            self.display.note(sentence)
        self._saves, self._save_statistics = saving.status, saving.statistics()
        if after_save:
            self._stall = 1000 * self.monitor.get_stats(1)["checkpoint_save"]["mean"]
            for path in self.writes.retry():
                self.display.note(f"{path} was written after all")

    def missing(self) -> list[str]:
        """Retry failed writes a last time; return what is still not on disk."""
        self.writes.retry()
        missing = [str(path) for path in self.writes.pending]
        if not self.metrics.flush() or self.metrics.dropped:
            missing.append(
                f"{self.metrics.held + self.metrics.dropped} records of {self.metrics.path}"
            )
        return missing

    # ------------------------------------------------------------------ display

    def show(self, report: dict[str, float]) -> None:
        """Update the display."""
        trainer, seconds = self.trainer, time.perf_counter() - self._start
        self._recent.append(report)
        done = trainer.iteration - self._first
        totals = {name: values["total"] for name, values in self.monitor.get_stats(None).items()}
        seconds_left = seconds / done * (trainer.iterations - trainer.iteration)
        self.display.update(
            Status(
                iteration=trainer.iteration,
                iterations=trainer.iterations,
                frames=trainer.frames,
                total_frames=trainer.iterations * trainer.frames_per_iteration,
                seconds=seconds,
                frames_per_second=done * trainer.frames_per_iteration / seconds,
                success=self._rate("success_100", "success"),
                collision=self._rate("static_collision") + self._rate("dynamic_collision"),
                out_of_bounds=self._rate("out_of_bounds"),
                time_out=self._rate("time_out"),
                episode_return=self._rate("return"),
                episode_length=self._rate("length"),
                policy_loss=report["policy_loss"],
                value_loss=report["value_loss"],
                kl=report["kl"],
                entropy=report["entropy"],
                learning_rate=report["learning_rate"],
                gradient_norm=report["gradient_norm"],
                explained_variance=report["explained_variance"],
                phases={name: total / seconds for name, total in totals.items()},
                stall_ms=self._stall,
                evaluation=self._evaluation,
                headline=self._headline or self._first_headline(),
                seconds_left=seconds_left,
                saves=self._saves,
                unwritten=len(self.writes.pending) + self._metrics_failed,
                collection=trainer.collection,
            )
        )

    def _first_headline(self) -> str:
        """Return what is shown before the first evaluation: success where episodes tell it."""
        rate = self._rate("success_100", "success")
        return (
            "return" if rate != rate and self._rate("return") == self._rate("return") else "success"
        )

    def _rate(self, *names: str) -> float:
        """Return the mean over recent episodes of the first statistic that they have, or NaN."""
        for key in (f"episode/{name}" for name in names):
            counted = [
                (report["episodes"], report[key])
                for report in self._recent
                if report["episodes"] and key in report
            ]
            if total := sum(count for count, _ in counted):
                return sum(count * value for count, value in counted) / total
        return float("nan")

    def summarise_if_due(self) -> None:
        """Print and log the timing table every `SUMMARY_INTERVAL` iterations."""
        if self.trainer.iteration % SUMMARY_INTERVAL == 0:
            self._summarise()

    def _summarise(self) -> None:
        """Print and log the time of each phase, and the statistics of the checkpoints."""
        timed = self.monitor.get_stats()
        stats = {f"perf/{name}": values["mean"] for name, values in timed.items()}
        stats |= {f"seconds/{name}": values["total"] for name, values in timed.items()}
        # Linux counts the peak resident memory in kB
        stats["memory/peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        stats |= {f"checkpoint/{name}": value for name, value in self._save_statistics.items()}
        done = (self.trainer.iteration - self._first) * self.trainer.frames_per_iteration
        rate = done / (time.perf_counter() - self._start)
        self._log("perf", **stats, **{"perf/frames_per_second": rate})
        self.tracker.log(self.trainer.iteration, stats)
        self.display.note(self.monitor.get_summary())
        if self._save_statistics:
            self.display.note(_told_saves(self._save_statistics))
        if self.writes.failed:
            pending = len(self.writes.pending)
            self.display.note(
                f"other files: {self.writes.failed} writes failed, {pending} to be written"
            )


def _told_saves(counted: Mapping[str, Any]) -> str:
    return (
        "[Checkpoint Stats]\n"
        f"  total saved: {counted['total_saved']} "
        f"({counted['stored_bytes'] / 1e6:.1f} MB), "
        f"failed: {counted['failed']}\n"
        f"  compression ratio: {counted['compression_ratio']:.2f}x\n"
        f"  queue size: {counted['queue_size']}\n"
        f"  stall: {counted['stall_ms_p50']:.2f} ms median, "
        f"{counted['stall_ms_max']:.2f} ms longest"
    )


def _comparable(
    best: dict[str, float] | None, metrics: Path, condition: str
) -> dict[str, float] | None:
    """Return the metrics of the best model, or None if it was chosen in another condition.

    A run that an earlier version began may have chosen its best model in an easier condition, whose
    scores no later model could beat.
    """
    if best is None:
        return None
    for record in MetricsLog.read(metrics, "eval"):
        measured = [*record.get("conditions", {})]
        if record["iteration"] == best.get("iteration") and measured:
            return best if measured[-1] == condition else None
    return best


def _seconds_before(metrics: Path) -> float:
    """Return the seconds that a resumed run took until its last evaluation."""
    seconds = [record.get("seconds") for record in MetricsLog.read(metrics, "eval")]
    return float(seconds[-1]) if seconds and isinstance(seconds[-1], int | float) else 0.0
