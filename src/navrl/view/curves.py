"""Learning curves: success on unseen worlds against decisions and minutes, from the metrics of
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from navrl.errors import ConfigError, ContainerError
from navrl.evaluation.statistics import NORMAL
from navrl.metrics_log import MetricsLog
from navrl.view.topdown import make_figure

# %, the original's policy on worlds drawn by the same rules ...
PUBLISHED = {"static": 94.0, "moving": 64.8}
PUBLISHED_AMONG = ["350 static", "350 static + 80 moving"]  # ... with these obstacles
COLOURS = {"static": "#0072b2", "moving": "#d55e00", "crossing": "#009e73"}
LEGEND = {
    "static": "static obstacles",
    "moving": "moving obstacles too",
    "crossing": "trips across the field",
}
STYLES, MARKERS = ("-", "--", "-."), ("o", "s", "^", "D")

Curve = list[dict[str, Any]]


def read_curve(metrics: Path) -> list[dict[str, Any]]:
    """Return a run's evaluations: frames, minutes, and success in percent among static and among
    moving obstacles, and on trips across the field (NaN where it was not evaluated).
    """
    records = MetricsLog.read(metrics, "eval")
    if not records:
        raise ConfigError(
            f"{metrics} has no evaluation yet; expected the metrics.jsonl of a run with "
            "eval_interval > 0"
        )
    conditions = records[0].get("conditions")
    if isinstance(conditions, dict) and not any("outcomes" in row for row in conditions.values()):
        raise ConfigError(
            f"{metrics} has evaluations of {', '.join(conditions)}; expected the navigation task: "
            "`navrl report RUN` draws the returns of any environment"
        )
    return [_checked_point(metrics, record) for record in records]


def _checked_point(metrics: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Return a point of a curve, or raise a ContainerError that names the record."""
    try:
        return _point(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        told = (
            f"{metrics}: the evaluation of iteration {record['iteration']} lacks numbers "
            "that a curve needs"
        )
        raise ContainerError(
            f"{told} ({type(error).__name__}: {str(error)[:80]}); remove its line"
        ) from error


def _point(record: dict[str, Any]) -> dict[str, Any]:
    outcomes = {
        label: condition["outcomes"]["success_100"]
        for label, condition in record["conditions"].items()
    }
    crossing = {label for label in outcomes if label.startswith("crossing")}
    moving = {label for label in outcomes if "moving" in label} - crossing
    missing = {"share": float("nan")}
    point = {
        "frames": record["frames"],
        "minutes": record.get("seconds", float("nan")) / 60,
        "among": [*record["conditions"]],
    }
    for kind, labels in zip(COLOURS, ({next(iter(outcomes))}, moving, crossing), strict=True):
        outcome = next((found for label, found in outcomes.items() if label in labels), missing)
        point |= {kind: 100 * outcome["share"], f"{kind}_interval": _interval(outcome)}
    return point


def _interval(outcome: dict[str, Any]) -> tuple[float, float]:
    """Return the 95 % interval of a share in percent; the share twice if its error is unknown."""
    share, error = outcome["share"], NORMAL * (outcome.get("standard_error") or 0.0)
    low, high = outcome.get("low"), outcome.get("high")
    if low is None or high is None:
        low, high = max(share - error, 0.0), min(share + error, 1.0)
    return 100 * low, 100 * high


def save_curves(metrics: Sequence[Path], path: Path) -> None:
    """Draw the curves of runs with 95 % intervals; each run has its own line style and marker.

    The published policy is a dotted line where it met the same obstacles.
    """
    curves = [read_curve(file) for file in metrics]
    comparable = all(point["among"][:2] == PUBLISHED_AMONG for curve in curves for point in curve)
    figure = make_figure(12.0, 4.4)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, unit, scale in ((axes[0], "frames", 1e6), (axes[1], "minutes", 1.0)):
        for kind, colour in COLOURS.items():
            for number, curve in enumerate(curves):
                _draw_curve(axis, curve, kind, colour, number, unit, scale)
            if comparable and kind in PUBLISHED:
                axis.axhline(PUBLISHED[kind], color=colour, linestyle=":", linewidth=1.0)
        axis.set(xlabel="million decisions" if unit == "frames" else "minutes", ylim=(0, 100))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("success on unseen worlds (%)")
    _draw_legend(figure, metrics, comparable)
    figure.savefig(path)


def _draw_curve(
    axis: Any, curve: Curve, kind: str, colour: str, number: int, unit: str, scale: float
) -> None:
    across = [point[unit] / scale for point in curve]
    axis.plot(
        across,
        [point[kind] for point in curve],
        color=colour,
        linestyle=STYLES[number % len(STYLES)],
        marker=MARKERS[number % len(MARKERS)],
        markersize=3.5,
        linewidth=1.2,
    )
    low, high = zip(*(point[f"{kind}_interval"] for point in curve), strict=True)
    axis.fill_between(across, low, high, color=colour, alpha=0.12, linewidth=0)


def _draw_legend(figure: Any, metrics: Sequence[Path], comparable: bool) -> None:
    """Explain colours and line styles beside the curves."""
    from matplotlib.lines import Line2D

    keys = [Line2D([], [], color=c, label=LEGEND[kind]) for kind, c in COLOURS.items()]
    if comparable:
        keys.append(Line2D([], [], color="#444444", linestyle=":", label="published policy"))
    for number, file in enumerate(metrics):
        style, marker = STYLES[number % len(STYLES)], MARKERS[number % len(MARKERS)]
        name = file.parent.name if file.name == "metrics.jsonl" else file.stem
        keys.append(Line2D([], [], color="#444444", linestyle=style, marker=marker, label=name))
    figure.legend(handles=keys, loc="outside right upper", frameon=False)
