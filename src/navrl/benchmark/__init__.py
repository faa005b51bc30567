"""Benchmarks: ours beside its peers in one run, with gates, and comparisons of two runs.

A benchmark is a file `benchmarks/NAME.py` with a function `suite(smoke: bool) -> Suite`.
"""

from navrl.benchmark.folder import benchmark_folder, find_suite, known_benchmarks, plan
from navrl.benchmark.harness import (
    Case,
    Column,
    Gate,
    Report,
    Results,
    Suite,
    run,
    seconds_per_call,
)

__all__ = [
    "Case",
    "Column",
    "Gate",
    "Report",
    "Results",
    "Suite",
    "benchmark_folder",
    "find_suite",
    "known_benchmarks",
    "plan",
    "run",
    "seconds_per_call",
]
