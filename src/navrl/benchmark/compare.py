"""Two results of one benchmark: which differences are larger than the noise.

For every case and metric the ratio of B to A is estimated from the logarithms of the rounds, with
Welch's t interval. Rounds of one run share the state of the machine, so the interval is widened by
how much the cases of other libraries changed between the two runs: their code is the same in both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from navrl.errors import BenchmarkError

__all__ = ["Change", "Comparison", "compare", "compare_files", "student_quantile"]

CONFIDENCE = 0.99  # many metrics are compared at once
OURS = "navrl"  # the beginning of the names of our own cases
NOISE = "cannot be told from noise"


@dataclass(frozen=True)
class Change:
    """The ratio of B to A for one metric of one case; the bounds are NaN after a single round."""

    case: str
    metric: str
    ratio: float
    low: float
    high: float

    @property
    def real(self) -> bool:
        """True if the interval leaves out 1; equal values of every round have no interval."""
        return self.low > 1 or self.high < 1

    @property
    def verdict(self) -> str:
        """What can be said, such as `higher by 12 %`."""
        if self.low == self.high == 1:
            return "the same"
        if not self.real:
            return NOISE
        return f"{'higher' if self.ratio > 1 else 'lower'} by {100 * abs(self.ratio - 1):.3g} %"


@dataclass(frozen=True)
class Comparison:
    """What two results of one benchmark say together."""

    benchmark: str
    changes: list[Change]
    drift: float  # of the other libraries' cases, as a fraction; 0 where there are none
    warnings: list[str]


def compare_files(first: Path, second: Path) -> list[Comparison]:
    """Return the comparison of two result files, or of the files of equal names in two folders.

    Raises:
        BenchmarkError: a file is missing or no result, or they are of different benchmarks.
    """
    if not (first.is_dir() and second.is_dir()):
        return [compare(_read(first), _read(second))]
    names = sorted({p.name for p in first.glob("*.json")} & {p.name for p in second.glob("*.json")})
    pairs = [
        (_read(first / name), _read(second / name)) for name in names if _is_result(first, name)
    ]
    if not pairs:
        raise BenchmarkError(f"{first} and {second} have no results of the same benchmark")
    return [compare(a, b) for a, b in pairs]


def _is_result(folder: Path, name: str) -> bool:
    return "cases" in json.loads((folder / name).read_text())


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise BenchmarkError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BenchmarkError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict) or not {"benchmark", "cases", "machine"} <= set(content):
        raise BenchmarkError(f"{path} has no results; expected a file that `navrl bench` wrote")
    return content


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> Comparison:
    """Return how the second result differs from the first."""
    if first["benchmark"] != second["benchmark"]:
        raise BenchmarkError(
            f"results of different benchmarks: {first['benchmark']!r} and {second['benchmark']!r}"
        )
    pairs = list(_pairs(first, second))
    drifts = _drifts(pairs)
    changes = [
        _change(case, metric, a, b, 0.0 if _constant([*a, *b]) else drifts.get(metric, 0.0))
        for case, metric, a, b in pairs
    ]
    drift = math.expm1(max(drifts.values(), default=0.0))
    return Comparison(first["benchmark"], changes, drift, _warnings(first, second))


def _pairs(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> Iterable[tuple[str, str, list[float], list[float]]]:
    """Yield case, metric and the rounds of both; metrics that are zero or negative are left out."""
    for case, entry in first["cases"].items():
        others = second["cases"].get(case, {"metrics": {}})["metrics"]
        for metric, values in entry["metrics"].items():
            rounds = values["rounds"], others.get(metric, {"rounds": []})["rounds"]
            if all(rounds) and all(v is not None and v > 0 for r in rounds for v in r):
                yield case, metric, *rounds


def _constant(values: Sequence[float]) -> bool:
    return min(values) == max(values)


def _drifts(pairs: Sequence[tuple[str, str, list[float], list[float]]]) -> dict[str, float]:
    """Return, by metric, the root mean square log ratio of the other libraries' cases."""
    squares: dict[str, list[float]] = {}
    if not any(case.startswith(OURS) for case, *_ in pairs):
        return {}
    for case, metric, a, b in pairs:
        if not case.startswith(OURS):
            squares.setdefault(metric, []).append((_mean_log(b) - _mean_log(a)) ** 2)
    return {metric: math.sqrt(fmean(values)) for metric, values in squares.items()}


def _mean_log(values: Sequence[float]) -> float:
    return fmean(map(math.log, values))


def _change(case: str, metric: str, a: Sequence[float], b: Sequence[float], drift: float) -> Change:
    middle = _mean_log(b) - _mean_log(a)
    half = math.hypot(_half_width(a, b), drift)
    return Change(case, metric, *(math.exp(x) for x in (middle, middle - half, middle + half)))


def _half_width(a: Sequence[float], b: Sequence[float]) -> float:
    """Return half of Welch's t interval of the difference of the mean logarithms."""
    if min(len(a), len(b)) < 2:
        return math.nan
    parts = [variance(list(map(math.log, rounds))) / len(rounds) for rounds in (a, b)]
    if not sum(parts):
        return 0.0
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(rounds) - 1) for part, rounds in zip(parts, (a, b), strict=True)
    )
    return student_quantile((1 + CONFIDENCE) / 2, round(freedom, 1)) * math.sqrt(sum(parts))


@lru_cache(maxsize=1024)
def student_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution, for a probability above one half."""
    low, high = 0.0, 1.0
    while _student_cdf(high, freedom) < probability:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        below = _student_cdf(middle, freedom) < probability
        low, high = (middle, high) if below else (low, middle)
    return high


def _student_cdf(t: float, freedom: float, steps: int = 400) -> float:
    """Return P(T <= t) for t >= 0: Simpson's rule in the angle whose tangent is t / sqrt(freedom).

    The density there is cos^(freedom - 1), smooth and bounded for freedom >= 1.
    """
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    width = math.atan(t / math.sqrt(freedom)) / steps
    heights = [math.cos(i * width) ** (freedom - 1) for i in range(steps + 1)]
    inner = 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    return 0.5 + scale * width / 3 * (heights[0] + inner + heights[-1])


def _warnings(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return why the two may not be comparable."""
    found = []
    for key, words in (("processor", "processors"), ("cores", "numbers of cores")):
        a, b = first["machine"].get(key), second["machine"].get(key)
        if a != b:
            found.append(f"different {words}: {a} and {b}")
    if first.get("smoke") or second.get("smoke"):
        found.append("a smoke run has tiny sizes and one round")
    if first.get("settings") != second.get("settings"):
        found.append("the settings of the two runs differ")
    missing = sorted(set(first["cases"]) ^ set(second["cases"]))
    if missing:
        found.append(f"only in one of them: {', '.join(missing)}")
    return found
