"""The loop around every learner: iterate, evaluate at intervals of training time, save, resume."""

from __future__ import annotations

import importlib
import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from _learning_peers.course import TARGETS, Judge, Run
from navrl.io import load_checkpoint, save_checkpoint
from navrl.rl.networks.navigation import NavigationNetwork

STATE, RESULT = "state.navrl", "result.json"


class Learner(Protocol):
    """What the `make(run)` of a module returns."""

    network: NavigationNetwork

    def iterate(self, decisions: int) -> int:
        """Collect and learn once after so many decisions; return how many were added."""

    def state(self) -> dict[str, Any]:
        """Return what is needed to resume: weights, optimiser, rates."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state."""


@dataclass
class Course:
    """How far a run has come."""

    seconds: float = 0.0  # of training, evaluations not counted
    decisions: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)  # minutes, decisions, success

    def finished(self, run: Run) -> bool:
        """Return whether the last target is reached or the time or the decisions are used up."""
        reached = bool(self.curve) and self.curve[-1]["success"] >= TARGETS[-1]
        return reached or self.seconds >= 60 * run.minutes or self.decisions >= run.decisions

    def due(self, run: Run) -> bool:
        """Return whether an evaluation is due."""
        intervals = max(0, len(self.curve) - 1)  # the first is before the training
        return not self.curve or self.seconds >= (intervals + 1) * run.interval


def train(run: Run, folder: Path) -> Course:
    """Train until the run is finished; a folder with a saved state is resumed.

    Environments begin new episodes at a resume; those of navrl itself continue bit for bit. The run
    ends early, with its last state on disk, when the process that started it is gone.
    """
    parent = os.getppid()
    learner: Learner = importlib.import_module(f"_learning_peers.{run.learner}").make(run)
    judge, course = Judge(run), Course()
    if (folder / STATE).exists():
        saved = load_checkpoint(folder / STATE)
        course = Course(**saved["course"])
        learner.load(saved["learner"])
    else:
        _judge(run, folder, learner, judge, course)
    while not course.finished(run) and os.getppid() == parent:
        start = time.perf_counter()
        course.decisions += learner.iterate(course.decisions)
        course.seconds += time.perf_counter() - start
        if course.due(run) or course.finished(run):
            _judge(run, folder, learner, judge, course)
    return course


def _judge(run: Run, folder: Path, learner: Learner, judge: Judge, course: Course) -> None:
    """Evaluate, and save the state and the curve."""
    course.curve.append(
        {
            "minutes": course.seconds / 60,
            "decisions": course.decisions,
            "success": judge.success(learner.network),
        }
    )
    state = {"course": asdict(course), "learner": learner.state()}
    save_checkpoint(state, folder / STATE)
    scratch = folder / f".{RESULT}"
    scratch.write_text(json.dumps(asdict(course)))
    scratch.replace(folder / RESULT)
