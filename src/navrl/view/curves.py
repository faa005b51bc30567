"""Learning curves: success on unseen worlds against decisions and minutes, from the metrics of
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from navrl.errors import ConfigError, ContainerError
from navrl.metrics_log import MetricsLog
from navrl.view.topdown import make_figure

# %, the original's policy on worlds drawn by the same rules ...
PUBLISHED = {"static": 94.0, "moving": 64.8}
PUBLISHED_AMONG = ["350 static", "350 static + 80 moving"]  # ... with these obstacles
COLOURS = {"static": "#4575b4", "moving": "#d73027"}


def read_curve(metrics: Path) -> list[dict[str, Any]]:
    """Return a run's evaluations: frames, minutes, and success in percent among static and among
    moving obstacles.
    """
    records = MetricsLog.read(metrics, "eval")
    if not records:
        raise ConfigError(
            f"{metrics} has no evaluation yet; expected the metrics.jsonl of a run with "
            "eval_interval > 0"
        )
    curve = []
    for record in records:
        try:
            curve.append(_point(record))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            told = (
                f"{metrics}: the evaluation of iteration {record['iteration']} lacks numbers "
                "that a curve needs"
            )
            raise ContainerError(
                f"{told} ({type(error).__name__}: {str(error)[:80]}); remove its line"
            ) from error
    return curve


def _point(record: dict[str, Any]) -> dict[str, Any]:
    shares = {
        label: condition["outcomes"]["success_100"]["share"]
        for label, condition in record["conditions"].items()
    }
    static, *_ = shares.values()
    moving = next((share for label, share in shares.items() if "moving" in label), float("nan"))
    return {
        "frames": record["frames"],
        "minutes": record.get("seconds", float("nan")) / 60,
        "static": 100 * static,
        "moving": 100 * moving,
        "among": [*record["conditions"]],
    }


def save_curves(metrics: Sequence[Path], path: Path) -> None:
    """Draw the curves of several runs, thin, and the published policy as a dashed line where it met
    the same obstacles.
    """
    curves = [read_curve(file) for file in metrics]
    comparable = all(point["among"][:2] == PUBLISHED_AMONG for curve in curves for point in curve)
    figure = make_figure(11.0, 4.2)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, unit, scale in ((axes[0], "frames", 1e6), (axes[1], "minutes", 1.0)):
        for kind, colour in COLOURS.items():
            for number, curve in enumerate(curves):
                label = f"{kind} obstacles" if number == 0 else None
                points = [(point[unit] / scale, point[kind]) for point in curve]
                axis.plot(
                    *zip(*points, strict=True), color=colour, marker=".", linewidth=1, label=label
                )
            if comparable:
                axis.axhline(
                    PUBLISHED[kind], color=colour, linestyle="--", linewidth=0.8, alpha=0.7
                )
        axis.set(xlabel="million decisions" if unit == "frames" else "minutes", ylim=(0, 100))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("success on unseen worlds (%)")
    axes[0].legend(loc="lower right", title="dashed: published policy" if comparable else None)
    figure.savefig(path)
