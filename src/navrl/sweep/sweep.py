"""A study: asks Optuna for settings, trains with them, reports the results to it."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navrl.errors import SweepError, missing_extra
from navrl.sweep.space import Choice, Range, Space
from navrl.sweep.trial import TrialRun, held

if TYPE_CHECKING:
    import optuna

__all__ = ["Result", "Sweep"]

# Trainings of a sweep are not registered as models unless the sweep asks for it.
UNREGISTERED = "registry.name=''"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """What a trial came to."""

    number: int
    state: str  # complete, pruned, running, fail
    value: float | None  # the last evaluation
    settings: dict[str, Any]  # those that vary
    folder: str
    minutes: float | None


class Sweep:
    """A sweep in a folder; any number of processes may run the same one.

    Args:
        space: what varies.
        folder: of the runs, and of the study unless `storage` is given.
        storage: the address of a database that several machines share, such as
            postgresql://user@host/name; None is an SQLite file in the folder.
        tell: called with a line for each thing that happens.

    >>> from pathlib import Path
    >>> from navrl.sweep import Sweep, load_space
    >>> written = Path("space.yaml").write_text("{space: {seed: [1, 2]}, trials: 2}")
    >>> sweep = Sweep(load_space("space.yaml"), Path("sweeps/seeds"))  # then sweep.run()
    """

    def __init__(
        self, space: Space, folder: Path, *, storage: str | None = None, tell: Tell = print
    ) -> None:
        self.space, self.folder, self._tell = space, folder, tell
        folder.mkdir(parents=True, exist_ok=True)
        self._optuna = _optuna()
        with held(folder / "study.lock", wait=True):
            self.study = self._open(storage or f"sqlite:///{(folder / 'study.db').resolve()}")
        self._host = socket.gethostname()

    def _open(self, storage: str) -> optuna.Study:
        space = {key: _described(values) for key, values in self.space.space.items()}
        study = self._optuna.create_study(
            study_name=self.folder.resolve().name,
            storage=storage,
            sampler=self._sampler(),
            pruner=self._pruner(),
            direction=self.space.direction,
            load_if_exists=True,
        )
        known = study.user_attrs.get("space")
        if known is None:
            study.set_user_attr("space", space)
            for values in self.space.grid():
                study.enqueue_trial(values)
        elif known != space:
            changed = sorted(key for key in {*known, *space} if known.get(key) != space.get(key))
            raise SweepError(
                f"{self.folder} holds a sweep over another space: {', '.join(changed)} changed; "
                "name another folder with -o"
            )
        return study

    def _sampler(self) -> Any:
        samplers = self._optuna.samplers
        if self.space.sampler != "tpe":  # the trials of a grid wait in the study
            return samplers.RandomSampler()
        # running trials count as poor ones, so that processes side by side try different settings
        return samplers.TPESampler(constant_liar=True)

    def _pruner(self) -> Any:
        pruners = self._optuna.pruners
        return {
            "median": lambda: pruners.MedianPruner(n_startup_trials=4),
            "hyperband": pruners.HyperbandPruner,
            "none": pruners.NopPruner,
        }[self.space.pruner]()

    def run(self) -> None:
        """Run trials until there are enough, those that a killed sweep left behind first."""
        while True:
            with self._next() as trial:
                if trial is None:
                    return
                self._run(trial)

    @contextlib.contextmanager
    def _next(self) -> Iterator[optuna.Trial | None]:
        """Yield a trial that this process holds: one left behind, or a new one."""
        with contextlib.ExitStack() as stack:
            yield self._left_behind(stack) or self._new(stack)

    def _left_behind(self, stack: contextlib.ExitStack) -> optuna.Trial | None:
        for number in self._running():
            # whoever had it may have ended it before letting go
            if stack.enter_context(held(self._lock_path(number))) and number in self._running():
                frozen = self.study.get_trials(deepcopy=False)[number]
                self._tell(f"trial {number} is resumed")
                return self._optuna.trial.Trial(self.study, frozen._trial_id)
        return None

    def _running(self) -> list[int]:
        """Return the trials that were begun on this machine and have not ended."""
        states = (self._optuna.trial.TrialState.RUNNING,)
        begun = self.study.get_trials(deepcopy=False, states=states)
        return [trial.number for trial in begun if trial.user_attrs.get("host") == self._host]

    def _new(self, stack: contextlib.ExitStack) -> optuna.Trial | None:
        waiting = self._optuna.trial.TrialState.WAITING
        known = self.study.get_trials(deepcopy=False)
        if sum(trial.state != waiting for trial in known) >= self.space.count:
            return None
        distributions = {key: self._distribution(v) for key, v in self.space.space.items()}
        trial = self.study.ask(distributions)
        stack.enter_context(held(self._lock_path(trial.number)))
        if trial.number >= self.space.count:  # another process asked at the same moment
            self.study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            return None
        trial.set_user_attr("folder", str(self._run_folder(trial.number)))
        trial.set_user_attr("host", self._host)
        return trial

    def _distribution(self, values: Choice | Range) -> Any:
        kinds = self._optuna.distributions
        if isinstance(values, Choice):
            return kinds.CategoricalDistribution(values.values)
        if values.whole:
            low, high, step = int(values.low), int(values.high), int(values.step or 1)
            return kinds.IntDistribution(low, high, log=values.log, step=step)
        return kinds.FloatDistribution(values.low, values.high, log=values.log, step=values.step)

    def _run(self, trial: optuna.Trial) -> None:
        """Train a trial and tell the study how it ended."""
        states = self._optuna.trial.TrialState
        overrides = [UNREGISTERED, *self.space.overrides(trial.params)]
        run = TrialRun(self._run_folder(trial.number), overrides, self.space.metric)
        varied = ", ".join(f"{key}={value}" for key, value in trial.params.items())
        self._tell(f"trial {trial.number}: {varied}")
        known = self.study.get_trials(deepcopy=False)[trial.number].intermediate_values

        def should_continue(iteration: int, value: float) -> bool:
            if iteration not in known:
                trial.report(value, iteration)
                self._tell(f"trial {trial.number}, iteration {iteration}: {value:.4g}")
            return not trial.should_prune()

        try:
            value = run.run(should_continue)
        except SweepError as error:
            self._tell(f"trial {trial.number} failed: {error}")
            trial.set_user_attr("error", str(error)[:2000])
            self.study.tell(trial, state=states.FAIL)
            return
        if value is None:
            self._tell(f"trial {trial.number} is pruned")
            self.study.tell(trial, state=states.PRUNED)
        else:
            self._tell(f"trial {trial.number} is done: {self.space.metric} {value:.4g}")
            self.study.tell(trial, value)

    def results(self) -> list[Result]:
        """Return all trials, the best first."""
        sign = 1 if self.space.direction == "minimize" else -1
        found = [
            Result(
                trial.number,
                trial.state.name.lower(),
                trial.value if trial.value is not None else _last(trial.intermediate_values),
                dict(trial.params),
                trial.user_attrs.get("folder", ""),
                trial.duration.total_seconds() / 60 if trial.duration else None,
            )
            for trial in self.study.get_trials(deepcopy=False)
        ]

        def rank(result: Result) -> tuple[bool, float]:
            value = result.value
            return result.state != "complete", float("inf") if value is None else sign * value

        return sorted(found, key=rank)

    def save_results(self) -> Path:
        """Write all trials to `results.json` in the folder, the best first."""
        path = self.folder / "results.json"
        rows = [vars(result) for result in self.results()]
        path.write_text(json.dumps({"metric": self.space.metric, "trials": rows}, indent=1) + "\n")
        return path

    def _run_folder(self, number: int) -> Path:
        return self.folder / f"trial_{number:04d}"

    def _lock_path(self, number: int) -> Path:
        return self.folder / f"trial_{number:04d}.lock"


def _described(values: Choice | Range) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in vars(values).items()}


def _last(values: dict[int, float]) -> float | None:
    return values[max(values)] if values else None


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise missing_extra("sweeps need Optuna", "sweep", "optuna") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
