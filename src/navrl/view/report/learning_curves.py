"""The learning curves of a report: runs, and means over the seeds of one experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from navrl.evaluation.statistics import NORMAL
from navrl.view.report.charts import Line, line_chart
from navrl.view.report.run_data import RunData, group_by_settings

__all__ = ["success_charts", "training_charts"]

MILLION = 1e6
# Student's t for a 95 % interval, by the number of seeds.
STUDENT = {3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
SMOOTHED = 60  # points that a curve of every iteration is averaged to

TRAINING = {
    "episode/success_100": ("success with exploring actions (%)", 100.0),
    "episode/return": ("return of an episode", 1.0),
    "entropy": ("entropy of the policy", 1.0),
    "kl": ("KL of an update", 1.0),
    "explained_variance": ("explained variance of the returns (%)", 100.0),
    "gradient_norm": ("gradient norm before clipping", 1.0),
}

Record = Mapping[str, Any]


def success_charts(runs: Sequence[RunData]) -> str:
    """Return charts of success or return: each condition against decisions and minutes."""
    found = [
        item for run in runs for record in run.evaluations for item in record["conditions"].items()
    ]
    charts = []
    for label in dict.fromkeys(label for label, row in found if "outcomes" not in row):
        for across, value in (("million decisions", _millions), ("minutes", _minutes)):
            lines = _with_means(runs, [_return(run, i, label, value) for i, run in enumerate(runs)])
            charts.append(line_chart(lines, title=label, across=across, up="return"))
    for label in dict.fromkeys(label for label, row in found if "outcomes" in row):
        for across, value in (("million decisions", _millions), ("minutes", _minutes)):
            lines = _with_means(
                runs, [_success(run, i, label, value) for i, run in enumerate(runs)]
            )
            charts.append(
                line_chart(lines, title=label, across=across, up="success (%)", limits=(0.0, 100.0))
            )
    return "".join(charts)


def _millions(record: Record) -> float:
    return float(record.get("frames", 0)) / MILLION


def _minutes(record: Record) -> float:
    return float(record.get("seconds") or math.nan) / 60


def _return(run: RunData, series: int, label: str, across: Callable[[Record], float]) -> Line:
    points = [
        (across(record), float(row["mean_return"]))
        for record in run.evaluations
        if (row := record["conditions"].get(label)) and math.isfinite(across(record))
    ]
    return Line(run.name, series, points)


def _success(run: RunData, series: int, label: str, across: Callable[[Record], float]) -> Line:
    points, bounds = [], []
    for record in run.evaluations:
        outcome = record["conditions"].get(label, {}).get("outcomes", {}).get("success_100")
        x = across(record)
        if outcome is None or not math.isfinite(x):
            continue
        share = outcome["share"]
        error = NORMAL * (outcome.get("standard_error") or 0.0)
        low, high = outcome.get("low"), outcome.get("high")
        points.append((x, 100 * share))
        bounds.append(
            (
                100 * (low if low is not None else max(share - error, 0.0)),
                100 * (high if high is not None else min(share + error, 1.0)),
            )
        )
    return Line(run.name, series, points, bounds)


def _with_means(runs: Sequence[RunData], lines: Sequence[Line]) -> list[Line]:
    """Return the curves; those of several seeds faint, under their mean with its interval."""
    shown: list[Line] = []
    for group in group_by_settings(runs):
        mine = [lines[number] for number in group if lines[number].points]
        if len(mine) < 2:
            shown += mine
            continue
        shown += [Line(line.label, line.series, line.points, faint=True) for line in mine]
        shown.append(_mean(mine, group[0]))
    return shown


def _mean(lines: Sequence[Line], series: int) -> Line:
    """Return the mean of curves where all have a point, and the interval of that mean."""
    count = min(len(line.points) for line in lines)
    points, bounds = [], []
    for i in range(count):
        column = [line.points[i] for line in lines]
        x = math.fsum(x for x, _ in column) / len(column)
        mean = math.fsum(y for _, y in column) / len(column)
        spread = math.fsum((y - mean) ** 2 for _, y in column) / (len(column) - 1)
        half = STUDENT.get(len(column), NORMAL) * math.sqrt(spread / len(column))
        points.append((x, mean))
        bounds.append((mean - half, mean + half))
    label = f"mean of {len(lines)} seeds"
    return Line(label, series, points, bounds if len(lines) > 2 else [])  # two give no interval


def training_charts(runs: Sequence[RunData]) -> str:
    """Return charts of what every iteration logs, averaged to a few dozen points."""
    charts = []
    for key, (title, factor) in TRAINING.items():
        lines = [Line(run.name, i, _averaged(run.train, key, factor)) for i, run in enumerate(runs)]
        if any(line.points for line in lines):
            charts.append(line_chart(lines, title=title, across="million decisions", up=""))
    return "".join(charts)


def _averaged(records: Sequence[Record], key: str, factor: float) -> list[tuple[float, float]]:
    known = [
        (_millions(record), factor * record[key])
        for record in records
        if isinstance(record.get(key), int | float)
    ]
    size = max(1, math.ceil(len(known) / SMOOTHED))
    parts = [known[i : i + size] for i in range(0, len(known), size)]
    return [
        (math.fsum(x for x, _ in part) / len(part), math.fsum(y for _, y in part) / len(part))
        for part in parts
    ]
