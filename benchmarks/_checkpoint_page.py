"""Writes the measured tables of docs/checkpoints.md from results/checkpoint.json.

python benchmarks/_checkpoint_page.py     # `navrl bench checkpoint` does it after a whole run
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from _page import ROOT, gate_table, rewrite

PAGE = ROOT / "docs" / "checkpoints.md"
RESULTS = ROOT / "benchmarks" / "results" / "checkpoint.json"
WRITER = "benchmarks/_checkpoint_page.py"

SIZES = ("1 MB", "20 MB", "200 MB")
# metric: heading, scale
COLUMNS = {
    "stall": ("stall ms", 1e3),
    "stall_p99": ("p99 ms", 1e3),
    "added": ("added ms", 1e3),
    "durable": ("durable ms", 1e3),
    "size": ("size", 1.0),
    "load": ("load ms", 1e3),
    "load_live": ("load into live ms", 1e3),
    "resume": ("load in a new process ms", 1e3),
    "peak": ("memory MB", 1e-6),
}


def generated(results: Mapping[str, Any]) -> str:
    """Return the tables of the page of checkpoints."""
    parts = [_machine(results), *(_table(results, size) for size in SIZES), gate_table(results)]
    return "\n\n".join(parts)


def _machine(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    return (
        f"`navrl bench checkpoint` on {machine['processor']}, {machine['cores']} cores, torch "
        f"{machine['versions']['torch']}, {machine['date'][:10]}: medians, all writers interleaved "
        "in one run."
    )


def _table(results: Mapping[str, Any], size: str) -> str:
    """Return one row for each writer at a size."""
    suffix = f", {size}"
    rows = {
        name.removesuffix(suffix): case["metrics"]
        for name, case in results["cases"].items()
        if name.endswith(suffix) and "size" in case["metrics"]
    }
    metrics = [name for name in COLUMNS if any(name in row for row in rows.values())]
    lines = [
        f"| {size} | " + " | ".join(COLUMNS[name][0] for name in metrics) + " |",
        "|---|" + "---:|" * len(metrics),
    ]
    for writer, row in rows.items():
        cells = " | ".join(_cell(row, name) for name in metrics)
        lines.append(f"| {_title(writer)} | {cells} |")
    return "\n".join(lines)


def _title(writer: str) -> str:
    return f"**{writer}**" if writer.startswith("navrl") else writer


def _cell(row: Mapping[str, Any], metric: str) -> str:
    median = row.get(metric, {}).get("median")
    if median is None:
        return ""
    value = median * COLUMNS[metric][1]
    if metric == "size":
        return f"{value:.3f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write_pages(results: Mapping[str, Any]) -> None:
    """Bring the page up to date with a run."""
    rewrite(PAGE, WRITER, generated(results))


if __name__ == "__main__":
    write_pages(json.loads(RESULTS.read_text()))
