"""One benchmark: cases run in turn, round after round, with medians, spreads and gates.

The cases of a suite are interleaved, so that a noisy machine is noisy for all of them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from navrl.machine import machine

__all__ = ["Case", "Column", "Gate", "Report", "Results", "Suite", "run", "seconds_per_call"]


@dataclass(frozen=True)
class Case:
    """One thing that is measured: `measure()` runs it once and returns its metrics by name."""

    name: str
    measure: Callable[[], Mapping[str, float]]
    note: str = ""


@dataclass(frozen=True)
class Column:
    """A column of the printed table: which metric, under which heading, written how (`scale`
    multiplies first).
    """

    metric: str
    heading: str
    format: str = ".3g"
    scale: float = 1.0


@dataclass(frozen=True)
class Gate:
    """A promise: `value(results)` must be at least, or at most, the limit. A stretch is reported,
    never enforced.
    """

    name: str
    value: Callable[[Results], float]
    at_least: float | None = None
    at_most: float | None = None
    stretch: bool = False

    def holds(self, value: float) -> bool:
        """Tell whether a measured value keeps the promise; a value that is not a number never
        does.
        """
        above = self.at_least is None or value >= self.at_least
        below = self.at_most is None or value <= self.at_most
        return above and below and value == value

    @property
    def limit(self) -> str:
        """The limit as people write it, such as `>= 150`."""
        parts = [f">= {self.at_least:g}"] if self.at_least is not None else []
        parts += [f"<= {self.at_most:g}"] if self.at_most is not None else []
        return " and ".join(parts)


@dataclass(frozen=True)
class Suite:
    """A whole benchmark: its cases, how they are shown, and what they promise."""

    name: str
    title: str
    cases: Sequence[Case]
    columns: Sequence[Column]
    gates: Sequence[Gate] = ()
    packages: Sequence[str] = ()
    repeats: int = 7
    warm_up: bool = True  # False where every measurement starts a new process
    settings: Mapping[str, Any] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None
    # called with what was written to benchmarks/results, to bring a page of the docs up to date
    publish: Callable[[Mapping[str, Any]], None] = lambda results: None


class Results:
    """Measured values by case and metric, one a round."""

    def __init__(self) -> None:
        self.rounds: dict[str, dict[str, list[float]]] = {}

    def add(self, case: str, metrics: Mapping[str, float]) -> None:
        """Add one round of a case."""
        for metric, value in metrics.items():
            self.rounds.setdefault(case, {}).setdefault(metric, []).append(float(value))

    def median(self, case: str, metric: str) -> float:
        """Return the median over the rounds, or NaN where the case has no such metric."""
        values = self.rounds.get(case, {}).get(metric)
        return median(values) if values else float("nan")

    def spread(self, case: str, metric: str) -> float:
        """Return half the range between the quartiles, as a fraction of the median."""
        values = sorted(self.rounds.get(case, {}).get(metric, []))
        if len(values) < 2 or not median(values):
            return 0.0
        quarter = (len(values) - 1) / 4
        low, high = (_interpolate(values, position) for position in (quarter, 3 * quarter))
        return (high - low) / 2 / abs(median(values))

    def ratio(self, metric: str, case: str, peer: str) -> float:
        """Return the median, over the rounds, of `case / peer` within the same round."""
        ours, theirs = (self.rounds.get(name, {}).get(metric, []) for name in (case, peer))
        pairs = [a / b for a, b in zip(ours, theirs, strict=False) if b]
        return median(pairs) if pairs else float("nan")


def _interpolate(values: Sequence[float], position: float) -> float:
    below = int(position)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (position - below)


@dataclass(frozen=True)
class Report:
    """What a run found: the results, the gates with their values, and the machine."""

    suite: Suite
    results: Results
    gates: Sequence[tuple[Gate, float]]
    machine: Mapping[str, Any]
    smoke: bool
    seconds: float = 0.0  # how long the run took

    @property
    def missed(self) -> list[str]:
        """One sentence for each enforced gate that failed."""
        return [
            f"{gate.name}: {value:.4g}, expected {gate.limit}"
            for gate, value in self.gates
            if not gate.stretch and not gate.holds(value)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values; not-a-number becomes null."""
        whole = {
            "benchmark": self.suite.name,
            "title": self.suite.title,
            "smoke": self.smoke,
            "machine": dict(self.machine),
            "seconds": round(self.seconds, 1),
            "settings": dict(self.suite.settings),
            **self._measured(),
        }
        return json.loads(json.dumps(whole), parse_constant=lambda _: None)

    def _measured(self) -> dict[str, Any]:
        """Return the cases and the gates."""
        cases = {
            case.name: {
                "note": case.note,
                "metrics": {
                    metric: {
                        "median": self.results.median(case.name, metric),
                        "spread": self.results.spread(case.name, metric),
                        "rounds": values,
                    }
                    for metric, values in self.results.rounds.get(case.name, {}).items()
                },
            }
            for case in self.suite.cases
        }
        gates = [
            {
                "name": g.name,
                "value": v,
                "limit": g.limit,
                "stretch": g.stretch,
                "holds": g.holds(v),
            }
            for g, v in self.gates
        ]
        return {"cases": cases, "gates": gates}

    def write(self, path: Path) -> None:
        """Write the JSON; the file appears whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_text(json.dumps(self.as_dict(), indent=1) + "\n")
        scratch.replace(path)


def run(
    suite: Suite,
    *,
    repeats: int | None = None,
    minutes: float | None = None,
    smoke: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run every case once to warm up, then all in turn for `repeats` rounds, and check the gates.

    With `minutes`, no round is started that would probably end later than that; the first always
    is. A smoke run has one round and no warm-up.
    """
    rounds = 1 if smoke else repeats or suite.repeats
    start, results = time.monotonic(), Results()
    longest = 0.0
    try:
        for case in suite.cases if suite.warm_up and not smoke else ():
            progress(f"warming up {case.name}")
            case.measure()
        for number in range(rounds):
            began = time.monotonic()
            if number and minutes is not None and began - start + longest > 60 * minutes:
                break
            left = f", about {_minutes(longest * (rounds - number))} left" if number else ""
            for case in suite.cases:
                progress(f"round {number + 1} of {rounds}{left}: {case.name}")
                results.add(case.name, case.measure())
            longest = max(longest, time.monotonic() - began)
    finally:
        suite.close()
    gates = [(gate, gate.value(results)) for gate in suite.gates]
    about = machine(suite.packages)
    return Report(suite, results, gates, about, smoke, time.monotonic() - start)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else "a minute"


def seconds_per_call(function: Callable[[], object], minimum_seconds: float = 0.1) -> float:
    """Return the mean seconds of a call, over as many calls as fit into `minimum_seconds`."""
    start = time.perf_counter()
    calls = 0
    while True:
        function()
        calls += 1
        elapsed = time.perf_counter() - start
        if elapsed >= minimum_seconds:
            return elapsed / calls
