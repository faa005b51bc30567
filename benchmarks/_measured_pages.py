"""The tables that user pages show of one benchmark each, written from benchmarks/results/.

`_summary_page.py` writes them after every whole run. The words around them stand in the pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from _page import ROOT, gate_table, measured_on, rewrite
from navrl.benchmark import Column

Results = Mapping[str, Any]  # of one benchmark


@dataclass(frozen=True)
class Table:
    """Cases whose names begin with one of the prefixes, and the sentence above them."""

    columns: tuple[Column, ...]
    about: str = ""
    prefixes: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class Measured:
    """What a page of docs/ shows of a benchmark."""

    benchmark: str
    page: str
    tables: tuple[Table, ...]


MS = 1e3
PAGES = (
    Measured(
        "collectors",
        "collectors.md",
        (
            Table(
                (
                    Column("frames_per_second", "frames/s", ",.0f"),
                    Column("iteration", "s an iteration", ".2f"),
                    Column("waited", "s of it without data", ".2f"),
                ),
                "Training with 512 drones x 32 steps. *Here*: this simulator and 4 epochs of "
                "updates. *Slow*: a simulator that waits 40 ms more a step, and 1 epoch.",
                ("here:", "slow:"),
            ),
            Table(
                (
                    Column("kept", "MB kept", ".1f", 1e-6),
                    Column("most", "MB at most", ".1f", 1e-6),
                    Column("compressing", "compressing ms", ".0f", MS),
                    Column("minibatch", "a minibatch ms", ".1f", MS),
                    Column("whole", "decompressing ms", ".0f", MS),
                ),
                "A rollout of 1024 drones x 32 steps, flown by the package's policy. *At most* is "
                "the peak growth of memory.",
                ("kept:", "sent:"),
            ),
        ),
    ),
    Measured(
        "tracking",
        "trackers.md",
        (
            Table(
                (
                    Column("begin", "begin s", ".2f"),
                    Column("log", "longest log ms", ".1f", MS),
                    Column("artifact", "longest upload ms", ".1f", MS),
                    Column("end", "end s", ".1f"),
                )
            ),
        ),
    ),
    Measured(
        "registry",
        "models.md",
        (
            Table(
                (
                    Column("register", "register a file, ms", ".3g", MS),
                    Column("move", "move an alias, ms", ".3g", MS),
                    Column("resolve", "resolve a name, ms", ".3g", MS),
                )
            ),
        ),
    ),
    Measured(
        "replay",
        "replay.md",
        (
            Table(
                (
                    Column("bytes", "bytes a frame", ",.0f"),
                    Column("batch", "ms a batch of 128", ".2f", MS),
                    Column("added", "frames added a second", ",.0f"),
                )
            ),
        ),
    ),
    Measured(
        "rollouts",
        "rollouts.md",
        (
            Table(
                (
                    Column("bytes", "MB", ".2f", 1e-6),
                    Column("stall", "stall ms", ".1f", MS),
                    Column("durable", "durable ms", ".0f", MS),
                    Column("read", "whole read ms", ".1f", MS),
                    Column("one_env", "one environment ms", ".2f", MS),
                    Column("one_key", "one key ms", ".2f", MS),
                    Column("window", "window ms", ".1f", MS),
                )
            ),
        ),
    ),
)


def write_measured(results: Mapping[str, Results]) -> None:
    """Write the tables of every page whose benchmark has results."""
    for one in PAGES:
        if one.benchmark in results:
            text = measured(one, results[one.benchmark])
            rewrite(ROOT / "docs" / one.page, one.benchmark, text)


def measured(one: Measured, results: Results) -> str:
    """Return the generated part of a page."""
    rounds = max(
        len(value["rounds"])
        for case in results["cases"].values()
        for value in case["metrics"].values()
    )
    parts = [f"`navrl bench {one.benchmark}`, {measured_on(results)}, medians of {rounds} rounds."]
    for table in one.tables:
        parts += [table.about] if table.about else []
        parts.append(_table(table, results))
    return "\n\n".join([*parts, gate_table(results)])


def _table(table: Table, results: Results) -> str:
    lines = [
        f"| | {' | '.join(column.heading for column in table.columns)} |",
        "|---|" + "---:|" * len(table.columns),
    ]
    for name, case in results["cases"].items():
        if name.startswith(table.prefixes):
            cells = [_cell(column, case["metrics"].get(column.metric)) for column in table.columns]
            title = f"**{name}**" if name.startswith("navrl") else name
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(column: Column, value: Mapping[str, Any] | None) -> str:
    if value is None or value["median"] is None:
        return ""
    return format(value["median"] * column.scale, column.format)
