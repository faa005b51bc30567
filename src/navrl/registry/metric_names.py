"""Names of evaluation metrics, and the other names that settings and scripts use for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from navrl.errors import ConfigError, nearest_name

__all__ = ["KNOWN_METRICS", "check_metric", "evaluation_metrics", "metric_value", "other_names"]

# name -> the one that is logged and stored beside it, and others that are accepted
NAMES: dict[str, tuple[str, ...]] = {
    "success_100": ("success_rate", "success"),
    "mean_return": ("mean_reward", "return", "reward"),
    "mean_length": ("episode_length",),
}
SHARES = (
    "success_100",
    "success_050",
    "static_collision",
    "dynamic_collision",
    "out_of_bounds",
    "time_out",
)
OF_SUCCESSES = ("mean_speed", "time_to_goal", "time_ratio", "min_clearance", "effort")
KNOWN_METRICS = (
    *(names[0] for names in NAMES.values()),
    *SHARES,
    "spl",
    "mean_return",
    "mean_length",
    *OF_SUCCESSES,
)


def evaluation_metrics(row: Any) -> dict[str, float]:
    """Return the metrics of one condition of an evaluation, under all their stored names.

    `row` comes from `navrl.evaluation.report.summary`. What is missing or not finite is left out.
    """
    values = _mapping(row)
    found = {name: values.get(name) for name in ("mean_return", "mean_length")}
    found |= {
        name: _mapping(value).get("share")
        for name, value in _mapping(values.get("outcomes")).items()
    }
    found["spl"] = _mapping(values.get("spl")).get("mean")
    found |= _mapping(values.get("of_successes"))
    return other_names(found) | {
        str(name): value for name, value in found.items() if _is_number(value)
    }


def other_names(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that have a second name, such as `mean_reward`, under that name."""
    return {
        names[0]: metrics[ours] for ours, names in NAMES.items() if _is_number(metrics.get(ours))
    }


def metric_value(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return a metric by any of its names, also with `eval/`; None if missing or not finite."""
    same = next(((ours, *others) for ours, others in NAMES.items() if name in (ours, *others)), ())
    for one in dict.fromkeys((name, *same)):
        for key in (one, f"eval/{one}"):
            if _is_number(value := metrics.get(key)):
                return float(value)
    return None


def check_metric(key: str, name: str) -> None:
    """Raise a ConfigError that lists the known metrics if `name` is not one of them."""
    if name not in KNOWN_METRICS:
        known = ", ".join(KNOWN_METRICS)
        raise ConfigError(
            f"{key} is {name!a:.80}; expected one of {known}.{nearest_name(name, KNOWN_METRICS)}"
        )


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False
